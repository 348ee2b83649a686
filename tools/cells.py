"""What the tables of the documents share: reading stored runs, and writing cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from onepass.bench import metrics
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.bench.store import load_all
from onepass.paper.printed import table1
from onepass.report import summary as report
from onepass.report.significance import Difference, significant
from onepass.report.tables import format_spread

ROOT = Path(__file__).resolve().parent.parent
LEARNERS = ("candidates:Candidate", "once:Once", "rivals:MoreER", "rivals:MorePCR")  # of studies/er_fsl_plus
BOLD = (
    "In brackets the number of seeds. "
    "Bold: significant by a paired t test over seeds, Holm-adjusted in its column (p < 0.05)."
)


def stored(folder: str) -> list[Result]:
    return _read(ROOT / folder)


@cache  # each page of a method asks for every folder
def _read(folder: Path) -> list[Result]:
    return load_all(folder, allow=LEARNERS)


def rows_of_the_paper(folder: str) -> list[Result]:
    return [result for result in stored(folder) if printed_cell(result.config)]


def by_last_weights(results: Iterable[Result]) -> list[Result]:
    """Each run as it is without an average that was kept beside it; an average that is part of the method stays."""
    return [one.by_last_weights() if one.accuracy_matrix_last and not _own_average(one) else one for one in results]


def _own_average(result: Result) -> bool:
    return type(result.config.learner_config)().to_json().get("average") is not None


def sides(results: Iterable[Result]) -> tuple[list[Result], list[Result]]:
    """Runs by their last weights, one for each seed, and those with an average by that."""
    group = list(results)
    last = {
        one.config.seed: one.by_last_weights() if one.accuracy_matrix_last else one
        for one in group
        if one.accuracy_matrix_last or not _averages(one)
    }
    return list(last.values()), [one for one in group if _averages(one)]


def _averages(result: Result) -> bool:
    return getattr(result.config.learner_config, "average", None) is not None


def height(results: Iterable[Result]) -> float:
    """What a row is ranked by: its mean by last weights, or by its average where those were not measured."""
    last, average = sides(results)
    found = last or average
    return sum(one.final_accuracy for one in found) / len(found)


def values(shares: Sequence[float]) -> str:
    """Mean and interval in per cent; of one or two runs their values, as an interval from two says nothing."""
    if not shares:
        return "-"
    if len(shares) > 2:
        return report.cell(metrics.summarise(list(shares)))
    return ", ".join(f"{100 * share:.1f}" for share in shares)


def printed_cell(config: RunConfig) -> tuple[float, float] | None:
    """The paper's mean and interval for a run's row and column, if it has that row."""
    return table1(config.method, config.stream, getattr(config.settings, "memory", 0))


def rows(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(cells) + " |" for cells in body)])


def signed(difference: Difference) -> str:
    """In points, with its interval and n; bold where it is significant."""
    if difference.mean is None:
        return "not run"
    text = f"{format_spread(difference, '+')} ({difference.n})"
    return f"**{text}**" if significant(difference) else text
