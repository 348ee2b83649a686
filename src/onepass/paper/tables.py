"""An experiment's results as a table, each figure beside the printed one; and what the paper claims, tested."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from onepass.bench.footprint import of_result
from onepass.bench.metrics import summarise
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.methods.registry import is_reference
from onepass.paper.claims import CLAIMS, Claim, Untested
from onepass.paper.experiments import Cell, Experiment, Measure, Printed
from onepass.paper.printed import printed
from onepass.report import grouping, power, significance, tables
from onepass.report.summary import HELD
from onepass.report.tables import Table

StoredResults = Mapping[RunConfig, Result]
Place = tuple[str, str]  # row and column
OURS = "mean ± 95 % Student-t interval over runs, one or two runs as they are"
NOTE = f"{OURS}, and the printed figure in brackets"
BOLD = "bold: significantly the best (paired t test over seeds, Holm-adjusted, 5 %)"


def check(experiment: Experiment, found: StoredResults) -> None:
    """Refuse what must not stand in one table."""
    places = {f"{cell.row}, {cell.column}": cell.runs for cell in experiment.cells}
    grouping.check_alike({place: [found[run] for run in runs if run in found] for place, runs in places.items()})


def table(experiment: Experiment, found: StoredResults) -> Table:
    """Rows and columns as the paper has them; a row for each measure where there are several."""
    rows = list(dict.fromkeys(cell.row for cell in experiment.cells))
    columns = _columns(experiment)
    check(experiment, found)
    cells = {(cell.row, cell.column): cell for cell in experiment.cells}
    lines: dict[tuple[str, str], list[tables.Cell]] = {}
    for measure, function in experiment.measures.items():
        values = {place: by_seed(cell, function, found) for place, cell in cells.items()}
        best = _best(experiment.cells, values, -1 if measure == "forgetting" else 1)
        for row in rows:
            label = row if len(experiment.measures) == 1 else measure if len(rows) == 1 else f"{row}: {measure}"
            lines[row, measure] = [tables.Cell(label)]
            for place in ((row, column) for column in columns):
                shown = tables.Cell("")
                if place in cells:
                    shown = _figure(values[place], cells[place].printed.get(measure), len(cells[place].runs))
                lines[row, measure].append(replace(shown, bold=place in best))
    counts = sorted({len(cell.runs) for cell in experiment.cells})
    planned = f"n = {'/'.join(map(str, counts))} unless a figure says otherwise"
    ordered = [lines[row, measure] for row in rows for measure in experiment.measures]
    hosts = grouping.hosts([found[run] for run in experiment.runs if run in found])
    heads, held = ["", *columns], _held(experiment, found, rows)
    if held:
        heads.append("MB held")
        ordered = [
            [*line, held[row]]
            for line, row in zip(ordered, (r for r in rows for _ in experiment.measures), strict=True)
        ]
    notes = [f"{NOTE if experiment.faithful else OURS}; {planned}; {BOLD}", *([HELD] if held else []), *hosts]
    return Table(f"{experiment.title}; {experiment.note}", heads, ordered, notes)


def _held(experiment: Experiment, found: StoredResults, rows: Sequence[str]) -> dict[str, tables.Cell]:
    """What each row holds, over the memories of its columns; nothing where all rows are one method's."""
    if len(rows) == 1:
        return {}
    shown = {}
    for row in rows:
        runs = [found[run] for cell in experiment.cells if cell.row == row for run in cell.runs[:1] if run in found]
        sizes = sorted({sum(held.values()) / 1e6 for held in map(of_result, runs) if held})
        span = [sizes[0], sizes[-1]] if len(sizes) > 1 else sizes
        shown[row] = tables.Cell(" to ".join(f"{size:.1f}" for size in span) or "n/a")
    return shown if any(cell.text != "n/a" for cell in shown.values()) else {}


def _columns(experiment: Experiment) -> list[str]:
    columns = list(dict.fromkeys(cell.column for cell in experiment.cells))
    numbers = [column for column in columns if re.fullmatch(r"[\d.]+", column)]
    words = [column for column in columns if column not in numbers]
    return [*sorted(numbers, key=float), *words] if len(numbers) > len(words) else columns


def by_seed(cell: Cell | None, measure: Measure, found: StoredResults) -> dict[int, float]:
    """What was measured in a cell, by seed."""
    runs = () if cell is None else cell.runs
    values = {run.seed: measure(found[run]) for run in runs if run in found}
    return {seed: value for seed, value in values.items() if value is not None}


def _best(cells: Sequence[Cell], values: Mapping[Place, Mapping[int, float]], sign: int) -> set[Place]:
    """The places of bold figures: in each group, among the rows of a column, or among the columns of a single row."""
    rows: dict[str, set[str]] = {}
    for cell in cells:
        rows.setdefault(cell.group, set()).add(cell.row)
    lists: dict[tuple[str, str], list[Place]] = {}
    for cell in cells:
        if not any(is_reference(run.method) for run in cell.runs):
            column = "" if len(rows[cell.group]) == 1 else cell.column
            lists.setdefault((column, cell.group), []).append((cell.row, cell.column))
    bold = set()
    for places in lists.values():
        groups = {
            str(number): {seed: sign * value for seed, value in values[place].items()}
            for number, place in enumerate(places)
            if values[place]
        }
        if (top := significance.best(groups)) is not None:
            bold.add(places[int(top)])
    return bold


def _figure(values: Mapping[int, float], paper: Printed | None, planned: int) -> tables.Cell:
    theirs = "" if paper is None else f" ({_as_printed(*paper)})"
    behind = {"printed": None if paper is None else paper[0]}
    behind |= {"printed ±": paper[1]} if paper is not None and paper[1] is not None else {}
    if not values:
        return tables.Cell(f"not run{theirs}", numbers=tables.numbers() | behind)
    found = summarise(list(values.values()))
    few = "" if found.n == planned else f", n = {found.n}"
    return tables.Cell(f"{tables.format_spread(found)}{few}{theirs}", numbers=tables.numbers(found) | behind)


def _as_printed(mean: float, interval: float | None) -> str:
    """With the paper's decimals: two in its table 2, one elsewhere."""
    shown = f"{mean:.1f}" if round(mean, 1) == mean else f"{mean:.2f}"
    return shown if interval is None else f"{shown} ± {interval:.1f}"


def verdicts(experiment: Experiment, found: StoredResults) -> Table | None:
    """A line for each claim of the paper about this experiment; none at a scale that cannot tell."""
    claims = CLAIMS.get(experiment.name, [])
    if not claims or not experiment.judged:
        return None
    rows = [[tables.Cell(text) for text in _verdict(claim, experiment, found)] for claim in claims]
    held = "held: the paired difference over seeds has the claimed sign and its 95 % interval excludes 0"
    note = f"difference: in points, of inner products as they are; {held} (not adjusted for the number of claims)"
    could = "detectable: the smallest true difference that so many runs show at 5 % in four of five cases, at the "
    could += "observed spread of the differences (two-sided paired t test, noncentral t)"
    heads = ["claim", "difference", "n", "detectable", "the paper's", "verdict"]
    return Table(f"{experiment.title}: the paper's claims; {experiment.note}", heads, rows, [note, could])


def _verdict(claim: Claim | Untested, experiment: Experiment, found: StoredResults) -> Sequence[str]:
    if isinstance(claim, Untested):
        return claim.text, "-", "0", "-", "-", f"not tested: {claim.reason}"
    sides, cells = [], []
    for tag, measure in (claim.higher, claim.lower):
        function = claim.measures.get(measure) or experiment.measures[measure]
        cell = next((cell for cell in experiment.cells if tag in cell.tags), None)
        cells.append(cell)
        sides.append((by_seed(cell, function, found), None if cell is None else cell.printed.get(measure)))
    (high, printed_high), (low, printed_low) = sides
    theirs = "-" if printed_high is None or printed_low is None else f"{printed_high[0] - printed_low[0]:+.1f}"
    if claim.printed and experiment.faithful:
        first, second = (printed()[experiment.name][name] for name in claim.printed)
        theirs = f"{first - second:+.3g}"
    difference = significance.against({"higher": high, "lower": low}, "lower")["higher"]
    if any(cell is not None and cell.clipped for cell in cells):
        return claim.text, "-", "0", "-", theirs, "not tested at this scale"
    if difference.mean is None:
        return claim.text, "-", "0", "-", theirs, "left out" if None in cells else "not run"
    shown = tables.format_spread(difference, "+", claim.unit, ".3g")
    least = power.detectable(difference.values)
    could = "-" if least is None else f"{claim.unit * least:.3g}"
    return claim.text, shown, str(difference.n), could, theirs, verdict_word(difference, could)


def verdict_word(difference: significance.Difference, could: str) -> str:
    assert difference.mean is not None
    side = "as" if difference.mean > 0 else "not as"
    if difference.n == 1:
        return f"{side} claimed in one run; no test"
    if significance.significant(difference):
        return "held" if difference.mean > 0 else "not held"
    if could == "-":
        return f"undecided; {side} claimed, by the same in every run"
    return f"undecided; in the mean {side} claimed; {difference.n} runs detect no less than {could}"
