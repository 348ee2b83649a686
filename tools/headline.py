"""ER-FSL+ and its baselines, by last weights and by an average of them: the README's table, and what it is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cells import rows
from onepass.bench import metrics
from onepass.bench.result import Result
from onepass.methods.registry import METHODS
from onepass.report import grouping, series_names
from onepass.report import summary as report

PLUS, BASELINES = "er-fsl+", ("er-fsl", "ocm", "pcr", "scr", "er-ace", "iid", "iid++")
FINAL, ANYTIME, WORST = range(3)  # the last: a measure that one task alone does not have


def by_last(result: Result) -> tuple[float, float, float]:
    return by_average(result.by_last_weights())


def by_average(result: Result) -> tuple[float, float, float]:
    """By what predicts, which is an average where one is kept."""
    return _measures(result.accuracy_matrix, [point["accuracy"] for point in result.anytime])


def _measures(matrix: metrics.Matrix, looks: metrics.Matrix) -> tuple[float, float, float]:
    return metrics.final_accuracy(matrix), metrics.average_anytime(looks), metrics.worst_case(looks, matrix)


def with_both(results: Sequence[Result]) -> dict[str, list[Result]]:
    """The runs of each method that kept an average and were evaluated on the way."""
    found = [one for one in results if one.accuracy_matrix_last and one.anytime]
    if found:
        grouping.check_one_protocol(found)
    return grouping.by_method(found)


def contest(results: Sequence[Result]) -> tuple[list[Result], dict[str, list[Result]]]:
    """The runs of ER-FSL+, and of each baseline those on the same seeds: others would shift its mean."""
    ours = grouping.by_method([one for one in results if one.config.method == PLUS and one.anytime]).get(PLUS, [])
    seeds = {one.config.seed for one in ours}
    groups = with_both([one for one in results if one.config.method in BASELINES and one.config.seed in seeds])
    if ours:
        grouping.check_one_protocol([*ours, *(one for group in groups.values() for one in group)])
    return ours, {name: groups[name] for name in BASELINES if name in groups}


def headline(results: Sequence[Result]) -> str:
    """Where ER-FSL+ and its baselines end, and what a step of each costs: for a reader in a hurry."""
    ours, groups = contest(results)
    if not ours:
        return "Not run yet."

    def end(group: Sequence[Result], side: Callable[[Result], tuple[float, ...]]) -> str:
        return report.cell(metrics.summarise([side(one)[FINAL] for one in group]))

    cells = {PLUS: ["-", end(ours, by_average)]}  # its last weights were not measured
    cells |= {name: [end(group, by_last), end(group, by_average)] for name, group in groups.items()}
    runs = {PLUS: ours, **groups}
    body = [
        [series_names.title(name), *both, f"{METHODS[name].cost:g}", str(len(runs[name]))]
        for name, both in cells.items()
    ]
    return rows(["final accuracy %", "by last weights", "by an average of them", "FLOPs / ER", "runs"], body)
