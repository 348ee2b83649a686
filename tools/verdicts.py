"""Is ER-FSL above the other rows of table 1, as the paper says? Paired differences on whole streams, with power."""

from __future__ import annotations

from collections.abc import Iterable

from cells import by_last_weights, printed_cell, rows
from onepass.bench.result import Result
from onepass.methods.registry import METHODS, is_reference
from onepass.paper.tables import verdict_word
from onepass.report import power
from onepass.report.significance import Difference, against
from onepass.report.tables import format_spread

OURS = "er-fsl"
Finals = dict[str, dict[int, float]]  # of each method, by seed


def verdicts(results: Iterable[Result]) -> str:
    """ER-FSL minus each other row, by last weights as the paper's rows are, and by an average of the weights."""
    runs = [one for one in results if not is_reference(one.config.method)]
    printed = {one.config.method: cell for one in runs if (cell := printed_cell(one.config))}
    last, average = _finals(by_last_weights(runs)), _finals(one for one in runs if one.accuracy_matrix_last)
    if OURS not in last:
        return "Not run yet."
    body = []
    for name in (name for name in METHODS if name in printed and name != OURS):
        [difference] = _minus(last, name)
        least = power.detectable(difference.values)
        could = "-" if least is None else f"{100 * least:.3g}"
        cells = [f"{printed[OURS][0] - printed[name][0]:+.1f}", _cell(difference), could]
        verdict = "not run" if difference.mean is None else verdict_word(difference, could)
        body.append([METHODS[name].title, *cells, verdict, *map(_cell, _minus(average, name))])
    return rows(["ER-FSL minus", "printed", "ours (n)", "detectable", "verdict", "by averages (n)"], body)


def _finals(results: Iterable[Result]) -> Finals:
    found: Finals = {}
    for one in results:
        found.setdefault(one.config.method, {})[one.config.seed] = one.final_accuracy
    return found


def _minus(finals: Finals, name: str) -> list[Difference]:
    groups = {OURS: finals.get(OURS, {}), name: finals.get(name, {})}
    return [against(groups, name)[OURS]]


def _cell(difference: Difference) -> str:
    return "not run" if difference.mean is None else f"{format_spread(difference, '+')} ({difference.n})"
