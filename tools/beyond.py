"""The tables of docs/beyond.md, from stored runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from onepass import metrics, report
from onepass.results import Result
from onepass.statistics import Difference, against, holm, paired, real
from onepass.store import key
from onepass.tables import figure

TITLES = {"cifar10": "CIFAR-10", "cifar100": "100 classes of Tiny ImageNet"}  # the latter in CIFAR-100's layout
Seeds = dict[int, float]


def signed(difference: Difference) -> str:
    """In points, with its interval and n; bold where it is real."""
    if difference.mean is None:
        return "not run"
    text = f"{figure(difference.mean, difference.interval, '+')} ({difference.n})"
    return f"**{text}**" if real(difference) else text


def rows(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(cells) + " |" for cells in body)])


def averages(folder: Path) -> str:
    """Every average that was kept beside a run minus the last weights, a column for each method and stream."""
    found: dict[tuple[str, str], dict[str, Seeds]] = {}
    for path in sorted(folder.glob("*.json")):
        values = json.loads(path.read_text())
        config = values["config"]
        column = found.setdefault((config["stream"], config["method"]), {})
        for name, accuracies in values["accuracy"].items():
            column.setdefault(name, {})[config["seed"]] = metrics.mean(accuracies)
    if not found:
        return "Not run yet."
    heads = ["kept", *(f"{report.title(method)}, {TITLES[stream]}" for stream, method in found)]
    last = [
        "the last weights",
        *(report.cell(metrics.summarise(list(column["last"].values()))) for column in found.values()),
    ]
    differences = [against(column, "last") for column in found.values()]
    names = [name for name in next(iter(found.values())) if name != "last"]
    body = [[name, *(signed(column[name]) for column in differences)] for name in names]
    return "\n".join([rows(heads, [last, *body]), "", f"Points above the last weights of the same runs. {BOLD}"])


def last_and_average(results: Sequence[Result]) -> str:
    """Each method by its last weights and by their average: at the end, on the way, and at its worst."""
    groups = {
        name: [one for one in group if one.accuracy_matrix_average] for name, group in report.by_method(results).items()
    }
    groups = {name: group for name, group in groups.items() if group}
    if not groups:
        return "Not run yet."
    found = {name: _pairs(group) for name, group in groups.items()}
    finals = [paired(*pairs["final"]) for pairs in found.values()]
    adjusted = holm([difference.p for difference in finals])
    body = []
    for (name, pairs), final, p in zip(found.items(), finals, adjusted, strict=True):
        last, average = (report.cell(metrics.summarise(values)) for values in pairs["final"])
        cells = [report.title(name), last, average, signed(Difference(final.mean, final.interval, p, final.n))]
        for measure in ("anytime", "worst"):
            cells += [f"{100 * metrics.mean(values):.1f}" if values else "n/a" for values in pairs[measure]]
        body.append([*cells, str(final.n)])
    heads = [
        "row",
        "last weights",
        "average",
        "difference",
        "anytime, last",
        "average",
        "worst case, last",
        "average",
        "n",
    ]
    return "\n".join([rows(heads, body), "", BOLD])


def _pairs(group: Sequence[Result]) -> Mapping[str, tuple[list[float], list[float]]]:
    """By the last weights and by the average, a value for each run."""
    final = [[metrics.final_accuracy(matrix) for matrix in matrices] for matrices in _matrices(group)]
    looks = [
        [[point[name] for point in result.anytime] for result in group if result.anytime]
        for name in ("accuracy", "accuracy_average")
    ]
    anytime = [[metrics.average_anytime(points) for points in side] for side in looks]
    worst = [
        [metrics.worst_case(points, matrix) for points, matrix in zip(side, matrices, strict=False)]
        for side, matrices in zip(looks, _matrices(group), strict=True)
    ]
    return {name: (side[0], side[1]) for name, side in (("final", final), ("anytime", anytime), ("worst", worst))}


def _matrices(group: Sequence[Result]) -> tuple[list[list[list[float]]], list[list[list[float]]]]:
    return [result.accuracy_matrix for result in group], [result.accuracy_matrix_average for result in group]


def changes(results: Sequence[Result]) -> str:
    """Each change to ER-FSL minus the runs without it, by their averages, a column for each stream."""
    import plus

    stored = {(key(result.config), result.config.seed): result for result in results}
    base, *others = plus.CHANGES
    columns: dict[str, dict[str, Seeds]] = {}
    for stream in TITLES:
        for name, change in plus.CHANGES.items():
            for seed in range(plus.RUNS):
                config = plus.config(change, stream, seed)
                if result := stored.get((key(config), seed)):
                    final = metrics.final_accuracy(result.accuracy_matrix_average)
                    columns.setdefault(stream, {}).setdefault(name, {})[seed] = final
    columns = {stream: column for stream, column in columns.items() if base in column}
    if not columns:
        return "Not run yet."
    first = [base, *(report.cell(metrics.summarise(list(column[base].values()))) for column in columns.values())]
    differences = [against(column, base) for column in columns.values()]
    nothing = Difference(None, None, None, 0)
    body = [[name, *(signed(column.get(name, nothing)) for column in differences)] for name in others]
    return "\n".join([rows(["change", *(TITLES[stream] for stream in columns)], [first, *body]), "", BOLD])


BOLD = (
    "In brackets the number of seeds. Bold: real by a paired t test over seeds, Holm-adjusted in its column (p < 0.05)."
)
