"""Whole streams, both data sets side by side: the leaderboard's table, and the README's part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cells import by_last_weights, printed_cell, rows
from onepass.bench import metrics
from onepass.bench.result import Result
from onepass.config import options
from onepass.methods.registry import METHODS
from onepass.report import summary as report

STREAMS = ("cifar10", "cifar100")
SHORT = ("patch-lda", "er-fsl+", "er-fsl", "er", "finetune", "iid++")  # the README's


def whole_streams(results: Sequence[Result]) -> str:
    """Every row's final accuracy on test images, by last weights and by what predicts; the highest first."""
    whole = [one for one in results if one.config.fraction == 1 and not one.config.validate]
    groups: dict[str, dict[str, list[Result]]] = {}
    for one in whole:
        groups.setdefault(label(one), {}).setdefault(one.config.stream, []).append(one)
    ranked = sorted(groups.items(), key=lambda pair: -_height(pair[1]))
    body = [[label, *(cell for name in STREAMS for cell in _cells(group.get(name, [])))] for label, group in ranked]
    heads = ["method", *(text for name in ("CIFAR-10", "CIFAR-100") for text in (name, "last weights", "n", "printed"))]
    return rows(heads, body)


def short(results: Sequence[Result]) -> str:
    """Some rows of it, by the last weights unless an average is part of the method, without what was printed."""
    chosen = [one for one in results if one.config.method in SHORT and "reach" not in label(one)]
    lines = whole_streams(by_last_weights(chosen)).splitlines()[2:]
    body = [[cells[place] for place in (0, 1, 3, 5, 7)] for cells in (line[2:-2].split(" | ") for line in lines)]
    return rows(["method", "CIFAR-10", "n", "CIFAR-100", "n"], body)


def label(result: Result) -> str:
    """The method, and those of its own settings that are not the defaults."""
    settings = result.config.learner_config
    shared = ("average", "memory")
    other = [
        f"{name} {getattr(settings, name)}"
        for name, entry in options(settings).items()
        if name not in shared and getattr(settings, name) != entry.default
    ]
    title = METHODS[result.config.method].title
    return f"{title}, {', '.join(other)}" if other else title


def _height(group: Mapping[str, Sequence[Result]]) -> float:
    """By the second stream if both were run: more classes tell more apart."""
    found = group.get("cifar100") or group["cifar10"]
    return sum(one.final_accuracy for one in found) / len(found) + (0 if "cifar100" in group else -1)


def _cells(group: Sequence[Result]) -> list[str]:
    if not group:
        return ["not run", "-", "-", "-"]
    last = [one.by_last_weights().final_accuracy for one in group if one.accuracy_matrix_last]
    printed = printed_cell(group[0].config)
    return [
        _values([one.final_accuracy for one in group]),
        _values(last) if last else "-",
        str(len(group)),
        "-" if printed is None else f"{printed[0]} ± {printed[1]}",
    ]


def _values(finals: Sequence[float]) -> str:
    """Mean and interval; of two runs both values, as an interval from two says nothing."""
    if len(finals) > 2:
        return report.cell(metrics.summarise(list(finals)))
    return ", ".join(f"{100 * value:.1f}" for value in finals)
