"""One row of the page of results: the numbers of runs that differ in their seed alone, and what decided them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from onepass.bench import metrics
from onepass.bench.metrics import Summary, summarise
from onepass.bench.result import WINDOW, Result
from onepass.bench.run_config import RunConfig
from onepass.bench.schema import conforms
from onepass.methods.registry import METHODS, is_reference, trains
from onepass.report import series_names
from onepass.report import summary as report
from onepass.report.plots import BANDED
from onepass.report.series_names import Group

# Mean and interval, in per cent, that the paper prints for a method, a stream and a memory, if it does.
Printed = Callable[[str, str, int], tuple[float, float] | None]
PAPER_NET, PAPER_RUNS = "resnet18", 10
DIGITS = 6
LONGEST_TEXT = 160  # letters of a fact that differs between runs


def count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def comparable(group: Group, even: bool) -> Group:
    """The runs as they stand beside the others: none of a method whose last weights were not measured."""
    return [run.by_last_weights() for run in group if run.final_accuracy_last is not None] if even else group


def row(runs: Group, printed: Printed, even: bool) -> dict[str, Any]:
    """One group's numbers. Without a final accuracy it is in the table by its average alone, and in no chart."""
    group = comparable(runs, even) or runs
    config, matrices = runs[0].config, [run.accuracy_matrix for run in group]
    summary = {name: _summary([measure(run) for run in group]) for name, (_, measure) in report.COLUMNS.items()}
    if even:
        averaged = [run.final_accuracy for run in runs if run.config.average is not None]
        summary["by_average"] = _summary(averaged) if averaged else None
    averages = [metrics.average_accuracies(matrix) for matrix in matrices]
    rows = zip(*matrices, strict=True)
    drops = zip(*([_drop(matrix, task) for task in range(len(matrix) - 1)] for matrix in matrices), strict=True)
    entry = {
        "memory": getattr(config.settings, "memory", 0),
        "n": len(group),
        "megabytes": report.megabytes(runs).text,
        "summary": summary,
        "printed": _printed(runs, printed),
        "curve": _curve(list(range(1, len(matrices[0]) + 1)), averages),
        "anytime": _anytime_curve(group),
        "prequential": _prequential_curve(group),
        "matrix": [[round(metrics.mean(cells), DIGITS) for cells in zip(*row, strict=True)] for row in rows],
        "drops": [_summary(values) for values in drops],
        "classes": _classes(group),
        "cost": (METHODS[config.method].cost or None) if config.method in METHODS else None,  # the scale has no 0
        "reference": is_reference(config.method),
        "trains": trains(config.method) or is_reference(config.method),
        "protocol": _protocol(runs),
    }
    if comparable(runs, even):
        return entry
    unseen: dict[str, Any] = {**dict.fromkeys(("curve", "anytime", "prequential", "cost")), "drops": []}
    return {**entry, **unseen, "summary": {**summary, **dict.fromkeys(report.COLUMNS)}}


def _summary(values: Sequence[float | None]) -> dict[str, Any] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    found = _numbers(summarise(known))
    return found if len(known) == len(values) else {**found, "text": f"{found['text']} (n = {len(known)})"}


def _numbers(found: Summary) -> dict[str, Any]:
    interval = None if found.interval is None else round(found.interval, DIGITS)
    return {"mean": round(found.mean, DIGITS), "interval": interval, "text": report.cell(found)}


def _drop(matrix: metrics.Matrix, task: int) -> float | None:
    """One task's share of the forgetting: that of a stream in which this task is the only old one."""
    return metrics.forgetting([[row[task], 0.0] for row in matrix[task:]])


def _classes(group: Group) -> dict[str, Any] | None:
    """How much of each class is right at the end, and what its images are taken for, over all runs that recorded it.

    Classes stand in the order in which they came if that is the same in all runs, else in that of the data.
    """
    n = max(len(run.confusion) for run in group)
    runs = [run for run in group if n and len(run.confusion) == n]
    if not runs:
        return None
    names = [_class_names(run) for run in runs]
    came = all(list(other) == list(names[0]) for other in names)
    order = list(names[0]) if came else range(n)
    place = {c: number for number, c in enumerate(order)}
    pooled: list[Counter[int]] = [Counter() for _ in order]
    for run in runs:
        for c, row in enumerate(run.confusion):
            pooled[place[c]].update({place[answer]: count for answer, count in metrics.predicted_as(row)})
    by_class = list(zip(*(run.class_accuracies for run in runs), strict=True))
    return {
        "names": [names[0][c] for c in order],
        "begins": _task_begins(runs[0]) if came else [],
        "accuracy": [_summary(by_class[c]) for c in order],
        "confusion": [[number for pair in sorted(row.items()) for number in pair] for row in pooled],
    }


def _task_classes(run: Result) -> list[list[str]]:
    """The names of each task's classes, if the run wrote them down."""
    tasks: Any = run.protocol.get("tasks")
    return tasks if conforms(tasks, list[list[str]]) else []


def _class_names(run: Result) -> dict[int, str]:
    """The name of each class, in the order in which they came; numbers, if the run did not write that down."""
    order: Any = run.protocol.get("class_order")
    names, n = dict.fromkeys(name for task in _task_classes(run) for name in task), len(run.confusion)
    if len(names) == n and conforms(order, list[int]) and sorted(order) == list(range(n)):
        return dict(zip(order, names, strict=True))
    return {c: str(c) for c in range(n)}


def _task_begins(run: Result) -> list[int]:
    """How many classes had come before each task that brought new ones."""
    tasks = _task_classes(run)
    came = [len({name for task in tasks[:done] for name in task}) for done in range(len(tasks) + 1)]
    return sorted({*came} - {0, came[-1]})


def _curve(x: list[int], runs: list[list[float]]) -> dict[str, Any]:
    """Means, with their intervals from BANDED runs on, and with the runs themselves below."""
    points = [summarise(values) for values in zip(*runs, strict=True)]
    banded = len(runs) >= BANDED
    return {
        "x": x,
        "mean": [round(point.mean, DIGITS) for point in points],
        "interval": [round(point.interval or 0, DIGITS) for point in points] if banded else [],
        "runs": [] if banded or len(runs) == 1 else [[round(value, DIGITS) for value in run] for run in runs],
    }


def _anytime_curve(group: Group) -> dict[str, Any] | None:
    looks = [{look["step"]: look["accuracy"] for look in run.anytime} for run in group if run.anytime]
    steps = sorted(set.intersection(*(set(run) for run in looks))) if looks else []
    if not steps:
        return None
    tasks = [len(looks[0][step]) for step in steps]
    begins = [step for step, before, now in zip(steps[1:], tasks, tasks[1:], strict=False) if now > before]
    return {**_curve(steps, [[metrics.mean(run[step]) for step in steps] for run in looks]), "begins": begins}


def _prequential_curve(group: Group) -> dict[str, Any] | None:
    runs = [metrics.prequential_curve(run.prequential) for run in group if run.prequential]
    length, last = min(map(len, runs), default=0), min(run.steps for run in group)
    steps = [min(WINDOW * (place + 1), last) for place in range(length)]
    return _curve(steps, [run[:length] for run in runs]) if length else None


def _printed(group: Group, printed: Printed) -> dict[str, Any] | None:
    """The paper's figure for this method, stream and memory, and what was done otherwise here."""
    config, memory = group[0].config, getattr(group[0].config.settings, "memory", 0)
    cell = printed(config.method, config.stream, memory)
    if cell is None:
        return None
    settings = {"memory": memory} if memory else {}
    paper = RunConfig(config.method, stream=config.stream, net=PAPER_NET, settings=settings)
    theirs = {**series_names.own(paper), **series_names.shared(paper)}
    differs = series_names.differing({**series_names.shared(config), **series_names.own(config)}, [theirs])
    if len(group) != PAPER_RUNS:
        differs.append(count(len(group), "run"))
    return {**_numbers(Summary(cell[0] / 100, cell[1] / 100, PAPER_RUNS)), "differs": differs}


def _protocol(group: Group) -> list[list[str]]:
    """What was done, as names and texts; what differs between the runs of a group says so."""
    every = [_facts(run) for run in group]
    rows = []
    for name in every[0]:
        texts = list(dict.fromkeys(series_names.text(facts.get(name)) for facts in every))
        text = ", ".join(texts)
        short = len(texts) == 1 or len(text) < LONGEST_TEXT
        rows.append([name.replace("_", " "), text if short else "differs between runs"])
    return rows


def _facts(run: Result) -> dict[str, Any]:
    """What was asked for and, where it says more, what was done: 5 tasks, and the classes of each."""
    asked = {**run.config.to_json(), **run.config.learner_config.to_json()}
    asked["average"] = asked.get("average") or "none"
    done = {
        name if asked.get(name, value) == value else f"{name} as run": value for name, value in run.protocol.items()
    }
    data = {f"images {name}": value for name, value in run.data.items()}
    facts = {**asked, **done, **data, **run.host, "steps": run.steps, "seconds": round(run.seconds)}
    return {name: value for name, value in facts.items() if name not in ("method", "stream", "settings")}
