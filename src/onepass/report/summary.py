"""Results as tables. Reads results only; never trains."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.bench import metrics
from onepass.bench.evaluate import QUICK_IMAGES
from onepass.bench.metrics import Summary, summarise
from onepass.config import unknown
from onepass.errors import UsageError
from onepass.files import write_text
from onepass.methods.registry import METHODS, canonical
from onepass.report import significance, tables
from onepass.report.tables import Cell, Table

if TYPE_CHECKING:
    from onepass.bench.result import Result, RunConfig


def _looks(result: Result) -> list[list[float]]:
    return [point["accuracy"] for point in result.anytime]


COLUMNS: dict[str, tuple[str, Callable[[Result], float | None]]] = {
    "final_accuracy": ("final accuracy %", lambda r: r.final_accuracy),
    "final_accuracy_average": ("by averaged weights %", lambda r: _final(r.accuracy_matrix_average)),
    "forgetting": ("forgetting %", lambda r: r.forgetting),
    "learning_accuracy": ("just after learning %", lambda r: metrics.learning_accuracy(r.accuracy_matrix)),
    "average_anytime": ("average anytime %", lambda r: metrics.average_anytime(_looks(r)) if r.anytime else None),
    "worst_case": ("worst case %", lambda r: metrics.worst_case(_looks(r), r.accuracy_matrix) if r.anytime else None),
    "prequential": ("prequential %", lambda r: metrics.prequential_accuracy(r.prequential) if r.prequential else None),
}
NOTE = "mean ± 95 % Student-t interval over runs; forgetting as in Chaudhry et al. 2018"
BOLD = "bold: final accuracy above every other method's by a paired t test over seeds, Holm-adjusted, at 5 %"
REFERENCES = "; IID and IID++ are references and take no part"
MEASURES = ("anytime", "prequential")  # settings of a run that change none of its other figures; nor does an average
SHARED = ("stream", "net", "batch", "tasks", "class_order", "fraction", "image_size", "validate")
BY_SEED = ("seed", "tasks", "class_order")  # of a result's protocol


def _final(matrix: metrics.Matrix) -> float | None:
    return metrics.final_accuracy(matrix) if matrix else None


def reference(method: str) -> bool:
    """Whether a method has the whole stream shuffled, and so is no rival of those that have it task by task."""
    return method in METHODS and METHODS[method].scenario in ("iid", "iid++")


def by_method(results: Iterable[Result]) -> dict[str, list[Result]]:
    """The runs of each method, each once."""
    groups: dict[str, list[Result]] = {}
    for result in deduplicate(results):
        groups.setdefault(result.config.method, []).append(result)
    return groups


def deduplicate(results: Iterable[Result]) -> list[Result]:
    """A run that was made twice, the second time measuring more, counts once."""
    runs: dict[RunConfig, dict[float | None, Result]] = {}
    for result in results:
        averages = runs.setdefault(trained(result.config), {})
        decay = result.config.learner_config.average
        averages[decay] = _joined(averages[decay], result) if decay in averages else result
    found = []
    for averages in runs.values():
        plain = averages.get(None)
        kept = [result for decay, result in averages.items() if decay is not None or len(averages) == 1]
        # Two averages of one run stay two, and are refused by `check_one_protocol`.
        found += [result if plain is None else _joined(result, plain) for result in kept]
    return found


def trained(config: RunConfig) -> RunConfig:
    """The run that was trained, whatever was measured beside it: neither looks nor an average change its weights."""
    unset: dict[str, Any] = {name: type(getattr(config, name))() for name in MEASURES}
    return replace(config, settings=replace(config.learner_config, average=None), **unset)


def _joined(result: Result, other: Result) -> Result:
    """One run, trained twice: what the first did not measure is the second's."""
    missing = [name for name in MEASURES if not getattr(result, name)]
    config = replace(result.config, **{name: getattr(other.config, name) for name in missing})
    return replace(result, config=config, **{name: getattr(other, name) for name in missing})


def check_one_protocol(results: Sequence[Result]) -> None:
    """Figures of different protocols must not stand in one table: refuse, and say what differs for whom."""
    if not results:
        raise UsageError("no results to show: train some first (onepass compare --help)")
    problems = _differing([(result.config.method, _shared(result)) for result in results])
    for method, group in by_method(results).items():
        own = [(f"seed {result.config.seed}", _own(result)) for result in group]
        problems += [f"for {method}, {problem}" for problem in _differing(own)]
    _refuse(problems)


def check_alike(places: Mapping[str, Sequence[Result]]) -> None:
    """Runs of one place in a table must have one protocol, and all runs on a stream the same data."""
    problems = []
    for place, group in places.items():
        own = [
            (f"seed {one.config.seed}", {k: v for k, v in one.protocol.items() if k not in BY_SEED}) for one in group
        ]
        problems += [f"for {place}, {problem}" for problem in _differing(own)]
    results = [one for group in places.values() for one in group]
    data = [(one.config.method, {f"{k}, {one.config.stream}": v for k, v in _data(one).items()}) for one in results]
    _refuse(problems + _differing(data))


def _data(result: Result) -> dict[str, str]:
    return {"sha256 of the data": result.data["sha256"][:12]} if "sha256" in result.data else {}


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        what = "; ".join(problems)
        raise UsageError(f"runs of several protocols cannot stand in one table: {what}. Give runs of one protocol only")


def _shared(result: Result) -> dict[str, Any]:
    """What must be the same in all rows."""
    config = result.config
    facts = {name: getattr(config, name) for name in SHARED}
    if not reference(config.method):
        facts["scenario"] = config.scenario
    if hasattr(config.settings, "memory"):
        facts["memory"] = config.settings.memory
    return facts | _data(result)


def _own(result: Result) -> dict[str, Any]:
    """What must be the same in all runs of one method, beside that."""
    config = result.config
    facts = {"scenario": config.scenario, **result.protocol, **config.learner_config.to_json()}
    if facts["average"] is None:  # trained as those that kept one
        facts.pop("average")
    return {name: value for name, value in facts.items() if name not in (*BY_SEED, *_shared(result))}


def _differing(facts: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """A phrase for each name that has several values; facts are who and what."""
    problems = []
    for name in dict.fromkeys(name for _, values in facts for name in values):
        holders: dict[str, list[str]] = {}
        for who, values in facts:
            if name in values:
                text = values[name] if isinstance(values[name], str) else json.dumps(values[name])
                holders.setdefault(text, []).append(who)
        if len(holders) > 1:
            said = (f"{text} ({', '.join(dict.fromkeys(who))})" for text, who in holders.items())
            problems.append(f"{name} is {' and '.join(said)}")
    return problems


def summary(results: Sequence[Result]) -> dict[str, dict[str, Summary | None]]:
    """For each method and column the mean, interval and n; None where a measure does not exist (one task)."""
    rows: dict[str, dict[str, Summary | None]] = {}
    for method, group in by_method(results).items():
        rows[method] = {}
        for name, (_, measure) in COLUMNS.items():
            values = [value for result in group if (value := measure(result)) is not None]
            rows[method][name] = summarise(values) if values else None
    return rows


def document(results: Sequence[Result], baseline: str = "") -> dict[str, Any]:
    """The one JSON document of `--json`. Accuracies are fractions; differences are to the baseline, if one is given."""
    rows = {
        method: {name: None if cell is None else vars(cell) for name, cell in columns.items()}
        for method, columns in summary(results).items()
    }
    found = {"runs": [result.to_json() for result in results], "summary": rows, "forgetting_variant": "chaudhry2018"}
    if baseline:
        differences = significance.against(_rivals(results), canonical(baseline))
        found["differences"] = {method: vars(difference) for method, difference in differences.items()}
    return found


def title(method: str) -> str:
    return METHODS[method].title if method in METHODS else method


def cell(value: Summary | None) -> str:
    return "n/a" if value is None else tables.format_share(value.mean, value.interval)


def caption(results: Sequence[Result]) -> str:
    config = results[0].config
    sizes = sorted({getattr(result.config.settings, "memory", 0) for result in results} - {0})
    memory = f", memory {'/'.join(map(str, sizes))}" if sizes else ""
    n_tasks = max(len(result.accuracy_matrix) for result in results)
    return f"{config.stream_label}, {n_tasks} tasks, {config.net}{memory}"


def _rivals(results: Sequence[Result]) -> dict[str, dict[int, float]]:
    """Final accuracy by seed of each method that can be compared with others."""
    return {
        method: {result.config.seed: result.final_accuracy for result in group}
        for method, group in by_method(results).items()
        if not reference(method)
    }


def overview(results: Sequence[Result]) -> Table:
    """A row for each method, a column for each measure that any of them has; bold where the best is really better."""
    check_one_protocol(results)
    rows, groups = summary(results), by_method(results)
    names = [name for name in COLUMNS if any(columns[name] for columns in rows.values())]
    winner = significance.best(_rivals(results))

    def shown(method: str, name: str) -> Cell:
        value, runs = rows[method][name], len(groups[method])
        fewer = f" (n = {value.n})" if value and value.n < runs else ""
        bold = method == winner and name == "final_accuracy"
        return Cell(cell(value) + fewer, bold, tables.numbers(value))

    lines = [
        [Cell(title(method)), *(shown(method, name) for name in names), Cell(str(len(group)))]
        for method, group in groups.items()
    ]
    heads = ["method", *(COLUMNS[name][0] for name in names), "runs"]
    return Table(caption(results), heads, lines, _notes(results))


def _notes(results: Sequence[Result]) -> list[str]:
    notes = [NOTE]
    if len(_rivals(results)) > 1:
        notes.append(BOLD + (REFERENCES if any(reference(result.config.method) for result in results) else ""))
    if every := sorted({result.config.anytime for result in results if result.anytime}):
        steps = " or ".join(map(str, every))
        notes.append(
            f"average anytime (Caccia et al. 2022) and worst case (De Lange et al. 2023): measured every {steps} steps "
            f"on the first {QUICK_IMAGES} test images of each class"
        )
    if any(result.prequential for result in results):
        notes.append("prequential: each batch predicted just before it was learned")
    return notes + hosts(results)


def hosts(results: Sequence[Result]) -> list[str]:
    """What differs between runs of one table though it is no part of their protocol."""
    notes = []
    by = {"torch": "from torch {}", "onepass": "from onepass {}", "device": "on {}", "threads": "on {} threads"}
    for name, what in by.items():
        found = dict.fromkeys(str(result.host[name]) for result in results if name in result.host)
        if len(found) > 1:
            notes.append("runs " + what.format(" and ".join(found)))
    unsaid = sum(not result.protocol for result in results)
    if 0 < unsaid < len(results):
        notes.append(f"{unsaid} of {len(results)} runs are of a version that stored settings, not the whole protocol")
    return notes


def comparison(results: Sequence[Result], baseline: str) -> Table:
    """Each method's final accuracy minus the baseline's, over the seeds that both have."""
    check_one_protocol(results)
    baseline, rivals = canonical(baseline), _rivals(results)
    if baseline not in rivals:
        raise unknown("baseline", baseline, rivals, "methods that can be compared here")
    rows = []
    for method, found in significance.against(rivals, baseline).items():
        shown = tables.format_share(found.mean, found.interval, "+")
        difference = Cell(shown, significance.significant(found), tables.numbers(found))
        p = "n/a" if found.p is None else "< 0.001" if found.p < 0.001 else f"{found.p:.3f}"
        rows.append([Cell(title(method)), difference, Cell(p, numbers={"": found.p}), Cell(str(found.n))])
    name = title(baseline)
    note = (
        f"final accuracy minus {name}'s in points, mean ± 95 % Student-t interval over the n seeds that both have; "
        "p: paired t test, two-sided, Holm-adjusted over the rows; bold: p < 0.05"
    )
    heads = ["method", f"difference to {name}", "p", "n"]
    return Table(f"{caption(results)}: compared with {name}", heads, rows, [note, *hosts(results)])


def markdown(results: Sequence[Result]) -> str:
    return tables.markdown(overview(results))


def write(
    results: Sequence[Result], out: Path, formats: Sequence[str] = ("md",), pictures: Sequence[str] = ("png",)
) -> list[Path]:
    """The table in each format, the picture in each of its own, and the curves of runs that measured on their way."""
    from onepass.report import plots as drawing

    for known, given in ((tables.FORMATS, formats), (drawing.KINDS, pictures)):
        if wrong := [kind for kind in given if kind not in known]:
            raise unknown("format", wrong[0], known, "allowed")
    shown, stem = overview(results), results[0].config.stream_label
    paths = [out / f"{stem}.{kind}" for kind in formats]
    for path, kind in zip(paths, formats, strict=True):
        write_text(path, tables.FORMATS[kind](shown))
    draws = {"": drawing.picture}
    if any(result.anytime for result in results):
        draws["-anytime"] = drawing.curves
    if any(result.prequential for result in results):
        draws["-prequential"] = drawing.prequential
    for end, draw in draws.items():
        for kind in pictures:
            paths.append(out / f"{stem}{end}.{kind}")
            draw(results, paths[-1])
    return paths
