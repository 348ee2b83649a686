"""Results as tables of figures over runs, in every format, and as one JSON document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.bench import metrics
from onepass.bench.evaluate import QUICK_IMAGES
from onepass.bench.footprint import of_result
from onepass.bench.metrics import Summary, summarise
from onepass.config import unknown
from onepass.data.catalog import find_stream
from onepass.files import write_text
from onepass.methods.registry import canonical, is_reference, trains
from onepass.report import footing, series_names, significance, tables
from onepass.report.grouping import by_method, check_one_protocol, hosts
from onepass.report.series_names import title
from onepass.report.tables import Cell, Table
from onepass.text import printable

if TYPE_CHECKING:
    from onepass.bench.result import Result


def _looks(result: Result) -> list[list[float]]:
    return [point["accuracy"] for point in result.anytime]


COLUMNS: dict[str, tuple[str, Callable[[Result], float | None]]] = {
    "final_accuracy": ("final accuracy %", lambda r: r.final_accuracy),
    "final_accuracy_last": ("by last weights %", lambda r: _final(r.accuracy_matrix_last)),
    "forgetting": ("forgetting %", lambda r: r.forgetting),
    "backward_transfer": ("backward transfer %", lambda r: r.backward_transfer),
    "forward_transfer": ("forward transfer %", lambda r: r.forward_transfer),
    "learning_accuracy": ("just after learning %", lambda r: metrics.learning_accuracy(r.accuracy_matrix)),
    "lowest_class": ("lowest class %", lambda r: metrics.lowest_class(r.confusion)),
    "average_anytime": ("average anytime %", lambda r: metrics.average_anytime(_looks(r)) if r.anytime else None),
    "worst_case": ("worst case %", lambda r: metrics.worst_case(_looks(r), r.accuracy_matrix) if r.anytime else None),
    "prequential": ("prequential %", lambda r: metrics.prequential_accuracy(r.prequential) if r.prequential else None),
}


NOTE = (
    "mean ± 95 % Student-t interval over runs; forgetting: Chaudhry et al. 2018; transfer: Lopez-Paz and Ranzato 2017"
)


FEW = "; one or two runs stand as they are"


BOLD = "bold: final accuracy above every other method's by a paired t test over seeds, Holm-adjusted, at 5 %"


HELD = "MB held: memory, weights, statistics and copies, in million bytes; not what a step holds only for itself"


REFERENCES = "; IID and IID++ are references and take no part"


def _final(matrix: metrics.Matrix) -> float | None:
    return metrics.final_accuracy(matrix) if matrix else None


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


def cell(value: Summary | None) -> str:
    return tables.format_spread(value)


def caption(results: Sequence[Result]) -> str:
    """Data set, tasks, network, memory, and all that differs from the stream's whole protocol."""
    config = next((result.config for result in results if trains(result.config.method)), results[0].config)
    sizes = sorted({getattr(result.config.settings, "memory", 0) for result in results} - {0})
    memory = f", memory {'/'.join(map(str, sizes))}" if sizes else ""
    n_tasks = max(len(result.accuracy_matrix) for result in results)
    tasks = f"{n_tasks} {'task' if n_tasks == 1 else 'tasks'}"
    usual = find_stream(config.stream).scenario
    others = dict.fromkeys(result.config.scenario for result in results if not is_reference(result.config.method))
    scenario = "".join(f", {name}" for name in others if name != usual)
    said = set(scenario.split(", ")) | {config.net, tasks}
    more = [words for words in series_names.protocol_words(config) if words not in said]
    more += [series_names.spelt(*pair) for pair in series_names.common([one.config for one in results]).items()]
    return f"{printable(config.stream_label)}, {tasks}{scenario}, {config.net}{memory}{''.join(f', {w}' for w in more)}"


def _rivals(results: Sequence[Result]) -> dict[str, dict[int, float]]:
    """Final accuracy by seed of each method that can be compared with others, on an equal footing."""
    return {
        method: {result.config.seed: result.final_accuracy for result in group}
        for method, group in by_method(footing.even(results)[0]).items()
        if not is_reference(method)
    }


def overview(results: Sequence[Result]) -> Table:
    """A row for each method, a column for each measure that any of them has; bold where the best is significant.

    Where some rows predict by an average and others do not, all measures are by last weights, and the average has a
    column of its own."""
    check_one_protocol(results)
    groups, winner, below = by_method(results), significance.best(_rivals(results)), below_statistics(results)
    compared, _ = footing.even(results)
    rows = summary(compared)
    names = [name for name in COLUMNS if any(columns[name] for columns in rows.values())]
    columns = [(_head(name, results), {method: rows[method][name] for method in rows}) for name in names]
    if footing.mixed(results):
        averaged = {method: [one.final_accuracy for one in group if one.config.average is not None]
                    for method, group in groups.items()}  # fmt: skip
        columns.insert(1, ("by average %", {method: summarise(found) for method, found in averaged.items() if found}))
    everywhere = series_names.common([result.config for result in results])
    held = {method: megabytes(group) for method, group in groups.items()}
    known = any(one.numbers[""] for one in held.values())

    def shown(method: str, place: int) -> Cell:
        value, runs = columns[place][1].get(method), len(groups[method])
        fewer = f" (n = {value.n})" if value and value.n < runs else ""
        return Cell(cell(value) + fewer, method == winner and place == 0, tables.numbers(value))

    lines = [
        [
            Cell(series_names.row_label(group[0].config, everywhere) + (" †" if method in below else "")),
            *(shown(method, place) for place in range(len(columns))),
            *([held[method]] if known else []),
            Cell(str(len(group))),
        ]
        for method, group in groups.items()
    ]
    heads = ["method", *(head for head, _ in columns), *(["MB held"] if known else []), "runs"]
    return Table(caption(results), heads, lines, _notes(results))


def _head(name: str, results: Sequence[Result]) -> str:
    kinds = footing.kinds(results)
    if name != "final_accuracy" or footing.AVERAGE not in kinds:
        return COLUMNS[name][0]
    return "by last weights %" if len(kinds) == 2 else "by average %"


def megabytes(group: Sequence[Result]) -> Cell:
    """What runs of one method hold between two steps, in million bytes."""
    found = next((known for known in map(of_result, group) if known), None)
    if found is None:
        return Cell("n/a", numbers={"": None})
    return Cell(f"{sum(found.values()) / 1e6:.1f}", numbers={"": sum(found.values()) / 1e6})


def below_statistics(results: Sequence[Result]) -> dict[str, str]:
    """The methods that train a network and end below the best of those that train none, which stands beside each."""
    ends = {
        method: summarise([result.final_accuracy for result in group]).mean
        for method, group in by_method(footing.even(results)[0]).items()
        if not is_reference(method)
    }
    floor = max((method for method in ends if not trains(method)), key=ends.__getitem__, default="")
    return {method: floor for method in ends if floor and trains(method) and ends[method] < ends[floor]}


def _notes(results: Sequence[Result]) -> list[str]:
    few = any(len(group) < metrics.FEWEST for group in by_method(results).values())
    notes = [NOTE + FEW if few else NOTE]
    if below := below_statistics(results):
        [floor] = set(below.values())
        notes.append(f"†: ends below {title(floor)}, which trains no network and replays nothing")
    if len(_rivals(results)) > 1:
        notes.append(BOLD + (REFERENCES if any(is_reference(result.config.method) for result in results) else ""))
    if every := sorted({result.config.anytime for result in results if result.anytime}):
        steps = " or ".join(map(str, every))
        notes.append(
            f"average anytime (Caccia et al. 2022) and worst case (De Lange et al. 2023): measured every {steps} steps "
            f"on the first {QUICK_IMAGES} test images of each class"
        )
    if basis := footing.basis(results):
        kept = dict.fromkeys(title(one.config.method) for one in results if one.config.average is not None)
        verb = "predicts by an average of its weights" if len(kept) == 1 else "predict by averages of their weights"
        apart = dict.fromkeys(title(one.config.method) for one in footing.even(results)[1])
        missing = f"; not measured by last weights and not compared: {', '.join(apart)}" if apart else ""
        others = f"; all other columns, bold and † are {basis}{missing}" if footing.mixed(results) else ""
        notes.append(f"{' and '.join(kept)} {verb}{others}")
    if any(map(of_result, results)):
        notes.append(HELD)
    if any(result.config.scenario == "task-incremental" for result in results):
        notes.append("task-incremental: predictions are made among the classes of the image's task, which is told")
    if any(result.prequential for result in results):
        notes.append("prequential: each batch predicted just before it was learned")
    if any(result.confusion for result in results):
        notes.append("lowest class: the accuracy at the end of the class that is predicted right least often")
    return notes + hosts(results)


def comparison(results: Sequence[Result], baseline: str) -> Table:
    """Each method's final accuracy minus the baseline's, over the seeds that both have."""
    check_one_protocol(results)
    baseline, rivals = canonical(baseline), _rivals(results)
    if baseline not in rivals:
        raise unknown("baseline", baseline, rivals, "methods that can be compared here")
    rows = []
    for method, found in significance.against(rivals, baseline).items():
        shown = tables.format_spread(found, "+")
        difference = Cell(shown, significance.significant(found), tables.numbers(found))
        p = "n/a" if found.p is None else "< 0.001" if found.p < 0.001 else f"{found.p:.3f}"
        rows.append([Cell(title(method)), difference, Cell(p, numbers={"": found.p}), Cell(str(found.n))])
    name = title(baseline)
    note = (
        f"final accuracy minus {name}'s in points, mean ± 95 % Student-t interval over the n seeds that both have; "
        "p: paired t test, two-sided, Holm-adjusted over the rows; bold: p < 0.05"
    )
    basis = footing.basis(results)
    note += f"; all {basis}" if basis else ""
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
    compared, _ = footing.even(results)
    if any(result.anytime for result in compared):
        draws["-anytime"] = drawing.curves
    if any(result.prequential for result in compared):
        draws["-prequential"] = drawing.prequential
    for end, draw in draws.items():
        for kind in pictures:
            paths.append(out / f"{stem}{end}.{kind}")
            draw(results, paths[-1])
    return paths
