"""What the paper shows, as lists of runs: which table, row and column each run belongs to, and what is printed there.

Importing it does not import torch.

How each table is read stands in docs/bench.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onepass.bench import metrics
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.config import unknown
from onepass.errors import UsageError
from onepass.methods.registry import METHODS, trains
from onepass.paper.printed import printed
from onepass.paper.scales import Selection

Printed = tuple[float, float | None]  # a mean and its interval, in per cent
Measure = Callable[[Result], float | None]
ANALYSIS = "onepass.paper.analysis:Analysis"
MEMORIES = {"cifar10": (100, 200, 500, 1000), "cifar100": (500, 1000, 2000, 5000)}
MEMORIES["mini-imagenet"] = MEMORIES["cifar100"]
EFFECTIVE = ("er", "ss-il", "scr", "er-ace", "ocm", "obc", "pcr", "er-lode", "er-cba", "er-fsl")
BUDGETS = (1, 2, 4, 8, 16)  # times ER's work
BUDGET_METHODS = ("er", "er-ace", "pcr", "scr", "er-fsl", "er-fsl+", "ncm", "slda", "randumb")
OWN = 51.2  # the paper's d / T: 512 features, ten tasks
ABLATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "1": ("ER-FSL", {}),
    "2": ("no L_c", {"new_weight": 0.0}),
    "3": ("no L_b", {"replay_weight": 0.0}),
    "4": ("test in S", {"test_in": "task"}),
    "5": ("one S for all", {"learn_in": "first"}),
    "6": ("inversion", {"learn_in": "used", "replay_in": "task"}),
    "7": ("no gamma", {"new_weight": 1.0, "replay_weight": 1.0}),
}


@dataclass(frozen=True)
class Cell:
    """A place in a table or a point of a curve, the runs behind it, and what the paper prints there by measure."""

    row: str
    column: str
    runs: tuple[RunConfig, ...]
    tags: tuple[str, ...]  # what --only may call it
    printed: Mapping[str, Printed] = field(default_factory=dict)
    group: str = ""  # only cells of one group are compared
    clipped: bool = False  # the paper's would be larger than the network here: no test of what the paper says of it


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    measures: Mapping[str, Measure]
    cells: Sequence[Cell]
    note: str = ""  # on which data, network and memory, and how much of the stream: part of every title
    judged: bool = True  # whether the paper's claims are tested
    faithful: bool = True  # whether data and memories are the paper's: only then its figures stand beside ours

    @property
    def runs(self) -> list[RunConfig]:
        """Every run once, in an order in which the first seeds of all cells come first."""
        ordered = sorted((run for cell in self.cells for run in cell.runs), key=lambda run: run.seed)
        return list(dict.fromkeys(ordered))

    def found(self, results: Iterable[Result | None]) -> dict[RunConfig, Result]:
        """By run what is there, from the results of all runs in their order."""
        return {run: result for run, result in zip(self.runs, results, strict=True) if result is not None}


def _final(result: Result) -> float:
    return result.final_accuracy


def _new(result: Result) -> float:
    return metrics.new_accuracy(result.accuracy_matrix)


def _old(result: Result) -> float | None:
    return metrics.old_accuracy(result.accuracy_matrix)


def _forgetting(result: Result) -> float | None:
    return metrics.forgetting(result.accuracy_matrix, "cba")


def _on(selection: Selection, named: Iterable[str], whole: Experiment, memory: int = 0, more: str = "") -> Experiment:
    """An experiment with what it was made on; the paper's figures stay only where they are of the same."""
    faithful = selection.faithful(named)
    cells = whole.cells if faithful else [replace(cell, printed={}) for cell in whole.cells]
    note = selection.about(named, memory) + more
    return replace(whole, cells=cells, note=note, judged=selection.judged, faithful=faithful)


FINAL: dict[str, Measure] = {"final accuracy": _final}
PARTS: dict[str, Measure] = {"all classes": _final, "new classes": _new, "old classes": _old}


def _table1(selection: Selection) -> Experiment:
    rows = printed()["table1"]["rows"]
    cells = []
    for paper, stream in selection.streams(MEMORIES):
        for memory in MEMORIES[paper]:
            for method in rows:
                if selection.wants(method, memory):
                    values = rows[method][paper]
                    found = {"final accuracy": tuple(values.get("any") or values[str(memory)])}
                    cells.append(_cell(selection, method, paper, stream, memory, found))
    return _on(selection, MEMORIES, Experiment("table1", "Table 1: final accuracy, %", FINAL, cells))


def _cell(selection: Selection, method: str, paper: str, stream: str, memory: int, found: Mapping[str, Any]) -> Cell:
    label = f"{stream}, {selection.size(memory)}"
    return Cell(METHODS[method].title, label, selection.configs(method, stream, memory), (stream, paper, label), found)


def _table2(selection: Selection) -> Experiment:
    """Two interpretations of "the setup described in CBA": the rate alone, which it names; batches and order too."""
    columns = {"cifar10": (200, 500), "cifar100": (2000, 5000)}
    readings: dict[str, dict[str, Any]] = {
        "lr 0.03": {"settings": {"lr": 0.03}},
        "lr 0.03, 32 + 32, fixed order": {
            "settings": {"lr": 0.03, "replay": 32},
            "batch": 32,
            "class_order": "fixed",
        },
    }
    rows, measures = printed()["table2"]["rows"], {**FINAL, "forgetting": _forgetting}
    cells = [
        Cell(
            f"{METHODS[method].title}, {reading}",
            f"{stream}, {selection.size(memory)}",
            selection.configs(method, stream, memory, **dict(changes)),
            (stream, paper, reading),
            {name: (value, None) for name, value in zip(measures, rows[method][paper][str(memory)], strict=True)},
            reading,
        )
        for paper, stream in selection.streams(columns)
        for memory in columns[paper]
        for reading, changes in readings.items()
        for method in ("er-cba", "er-fsl")
        if selection.wants(method, memory)
    ]
    title = "Table 2: final accuracy and forgetting in CBA's setting, %"
    return _on(selection, columns, Experiment("table2", title, measures, cells))


def _table3(selection: Selection) -> Experiment:
    stream, columns = selection.streams(["cifar100"])[0][1], printed()["table3"]["columns"]
    cells = [
        Cell(
            "ER-FSL",
            f"{index} {name}",
            selection.configs("er-fsl", stream, 1000, settings=settings),
            (index, name),
            {measure: (value, None) for measure, value in zip(PARTS, columns[index], strict=True)},
        )
        for index, (name, settings) in ABLATIONS.items()
    ]
    whole = Experiment("table3", "Table 3: ablation, final accuracy, %", PARTS, cells)
    return _on(selection, ["cifar100"], whole, 1000)


def _table4(selection: Selection) -> Experiment:
    """Sizes keep their ratio to d / T, which decides when dimensions are reused; none is larger than d."""
    stream, columns = selection.streams(["cifar100"])[0][1], printed()["table4"]["columns"]
    whole = selection.configs("er-fsl", stream, 1000)
    import torch

    from onepass.learner.net import make_net

    with torch.device("meta"):  # only to ask the network how many features it has
        features = make_net(whole[0].net, (3, 32, 32), 1, seed=0).head.in_features
    own = features // whole[0].tasks
    sizes: dict[int, list[str]] = {}
    for size in columns:
        ours = own if size == "51" else max(1, round(int(size) * features / whole[0].tasks / OWN))
        sizes.setdefault(min(ours, features), []).append(size)
    cells: list[Cell] = []
    for ours, paper in sorted(sizes.items()):
        runs = whole if ours == own else selection.configs("er-fsl", stream, 1000, settings={"subspace": ours})
        reuse = "reuse" if ours * whole[0].tasks > features else "no reuse"
        first = reuse == "reuse" and not any("first reuse" in cell.tags for cell in cells)
        tags = (f"k={ours}", *paper, *(["first reuse"] if first else []))
        theirs = "51" if "51" in paper else paper[0]  # sizes that fall together are nearly one
        clipped = ours == features
        found = {} if clipped else {"final accuracy": (columns[theirs], None)}
        cells.append(Cell("ER-FSL", f"k={ours}, {reuse}", runs, tags, found, clipped=clipped))
    more = f"; d / T is {own} here, {int(OWN)} in the paper; other sizes in proportion"
    found_by_size = Experiment("table4", "Table 4: final accuracy by subspace size, %", FINAL, cells)
    return _on(selection, ["cifar100"], found_by_size, 1000, more)


def _figure2(selection: Selection) -> Experiment:
    stream, found = selection.streams(["cifar10"])[0][1], printed()["figure2"]["accuracy"]
    panels = [("b", "finetune", 1.0, 1), ("c", "er", 1.0, 1), ("d", "er", 0.3, 1)]
    panels += [("e", "finetune", step / 10, 0) for step in range(1, 11)]
    panels += [("f", "er", step / 10, 0) for step in range(1, 11)]
    cells = [
        Cell(
            f"({panel}) {rule}",
            f"{scale:g}",
            selection.configs(
                ANALYSIS, stream, 1000, tasks=2, settings={"rule": rule, "scale": scale, "since": since, "scope": "all"}
            ),
            (panel, *([f"{panel}{scale:g}"] if panel in "ef" else ["a"])),  # (a) is the first task of b, c and d
            {"all classes": (found[panel], None)} if panel in found else {},
            panel,
        )
        for panel, rule, scale, since in panels
    ]
    measures = {**PARTS, "first task when learned": lambda result: result.accuracy_matrix[0][0]}
    title = "Figure 2: two tasks, accuracy by the share of features that new samples are learned in, %"
    return _on(selection, ["cifar10"], Experiment("figure2", title, measures, cells), 1000)


def _figure4(selection: Selection) -> Experiment:
    """The dimensions of the paper's size, and of the one that must reuse some."""
    whole = _table4(selection)
    sizes = {tag: cell for cell in whole.cells for tag in cell.tags[1:]}
    cells = [replace(cell, runs=cell.runs[:1], printed={}) for cell in (sizes["51"], sizes["first reuse"])]
    return replace(whole, name="figure4", title="Figure 4: where each task learns and replays", cells=cells)


def _figure5(selection: Selection) -> Experiment:
    methods = tuple(name for name in (selection.methods or EFFECTIVE))
    whole = _table1(replace(selection, methods=methods, memory=(1000,)))
    cells = [replace(cell, column=cell.tags[0]) for cell in whole.cells]
    title = f"Figure 5: accuracy after each task, memory {selection.size(1000)}, %"
    return replace(whole, name="figure5", title=title, cells=cells)


def _figure6(selection: Selection) -> Experiment:
    stream = selection.streams(["cifar100"])[0][1]
    anchor = dict(zip(PARTS, ((value, None) for value in printed()["table3"]["columns"]["1"]), strict=True))
    cells = [
        Cell(
            "ER-FSL",
            f"{step / 10:g}",
            selection.configs("er-fsl", stream, 1000, settings={"gamma": step / 10}),
            (f"{step / 10:g}",),
            anchor if step == 3 else {},
        )
        for step in range(1, 10)
    ]
    return _on(
        selection, ["cifar100"], Experiment("figure6", "Figure 6: final accuracy by gamma, %", PARTS, cells), 1000
    )


def _budget(selection: Selection) -> Experiment:
    """Ours: each method at 1 to 16 times ER's work, by more updates on each batch; none below what it costs at least.
    Methods that train no network have one cost and one accuracy."""
    [(_, stream)] = selection.streams(["cifar10"])
    cells = []
    for method in selection.methods or BUDGET_METHODS:
        cost = METHODS[method].cost
        if not trains(method):
            runs = selection.configs(method, stream, 1000)
            cells.append(Cell(METHODS[method].title, "own", runs, ("own", method)))
            continue
        for budget in BUDGETS:
            updates = round(budget / cost)
            if updates:
                runs = selection.configs(method, stream, 1000, settings={"updates": updates})
                cells.append(Cell(METHODS[method].title, f"{budget}", runs, (f"{budget}", method), group=f"{budget}"))
    title = "Accuracy by budget: final accuracy by last weights at so many times ER's work, %"
    measures: dict[str, Measure] = {"final accuracy": lambda result: result.final_accuracy_last}
    return replace(_on(selection, [stream], Experiment("budget", title, measures, cells), 1000), judged=False)


EXPERIMENTS: dict[str, tuple[str, Callable[[Selection], Experiment]]] = {
    "table1": ("final accuracy: 20 methods, three data sets, four memories each", _table1),
    "table2": ("ER-CBA and ER-FSL in CBA's setting: accuracy and forgetting", _table2),
    "table3": ("ablation of ER-FSL: all, new and old classes", _table3),
    "table4": ("ER-FSL by subspace size, with and without reuse", _table4),
    "figure2": ("the analysis of features: decomposed inner products, accuracy by scale", _figure2),
    "figure4": ("which dimensions each task learns and replays in", _figure4),
    "figure5": ("accuracy after each task, memory 1000", _figure5),
    "figure6": ("ER-FSL by gamma", _figure6),
    "budget": ("ours: accuracy at 1 to 16 times ER's work", _budget),
}


BY_METHOD = ("table1", "table2", "figure5", "budget")
BY_MEMORY = ("table1", "table2")


def experiment(name: str, selection: Selection) -> Experiment:
    """A table or figure of the paper, cut down as asked."""
    given = {"methods": (selection.methods, BY_METHOD), "memory": (selection.memory, BY_MEMORY)}
    for flag, (words, cuts) in given.items():
        if words and name not in cuts:
            raise UsageError(f"--{flag} does not cut {name}, only {', '.join(cuts)}; --only cuts each of them")
    _check_rows(name, selection)
    whole = EXPERIMENTS[name][1](selection)
    known = list(dict.fromkeys(tag for cell in whole.cells for tag in cell.tags))
    for word in selection.only:
        if word not in known:
            raise unknown("part", word, known, f"{name} has")
    return replace(
        whole, cells=[cell for cell in whole.cells if not selection.only or set(selection.only) & set(cell.tags)]
    )


def _check_rows(name: str, selection: Selection) -> None:
    """Each method and each memory that is asked for must be there."""

    def there(flag: str, one: str | int) -> bool:
        alone: dict[str, Any] = {"methods": (), "memory": (), flag: (one,)}
        return bool(EXPERIMENTS[name][1](replace(selection, **alone)).cells)

    memories = sorted({size for sizes in MEMORIES.values() for size in sizes})
    for flag, given, possible in (("methods", selection.methods, [*METHODS]), ("memory", selection.memory, memories)):
        for one in given:
            if not there(flag, one):
                known = ", ".join(str(other) for other in possible if there(flag, other))
                raise UsageError(f"--{flag} {one}: {name} has {known}")
