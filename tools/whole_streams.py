"""Whole streams, both data sets side by side: the leaderboard's table, and the README's part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cells import height, printed_cell, rows, sides, values
from onepass.bench.result import Result
from onepass.config import options
from onepass.methods.registry import METHODS

STREAMS = ("cifar10", "cifar100")
SHORT = ("patch-lda", "pcr", "er-fsl+", "er-fsl", "er", "finetune", "iid++")  # the README's


def whole_streams(results: Sequence[Result]) -> str:
    """Every row's final accuracy on test images, by last weights and by an average; the highest first."""
    whole = [one for one in results if one.config.fraction == 1 and not one.config.validate]
    groups: dict[str, dict[str, list[Result]]] = {}
    for one in whole:
        groups.setdefault(label(one), {}).setdefault(one.config.stream, []).append(one)
    ranked = sorted(groups.items(), key=lambda pair: -_height(pair[1]))
    body = [[label, *(cell for name in STREAMS for cell in _cells(group.get(name, [])))] for label, group in ranked]
    heads = ["method", *(text for name in ("CIFAR-10", "CIFAR-100") for text in (name, "average", "n", "printed"))]
    return rows(heads, body)


def short(results: Sequence[Result]) -> str:
    """Some rows that CIFAR-100 has, without what was printed; of Patch-LDA the default and what has pairs."""
    chosen = [one for one in results if one.config.method in SHORT and ("," not in label(one) or "pairs" in label(one))]
    lines = whole_streams(chosen).splitlines()[2:]
    cells = [line[2:-2].split(" | ") for line in lines]
    body = [[*row[:4], *row[5:8]] for row in cells if row[5] != "not run"]
    return rows(["method", "CIFAR-10", "average", "n", "CIFAR-100", "average", "n"], body)


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
    return height(group["cifar100"]) if "cifar100" in group else height(group["cifar10"]) - 1


def _cells(group: Sequence[Result]) -> list[str]:
    if not group:
        return ["not run", "-", "-", "-"]
    last, average = ([one.final_accuracy for one in side] for side in sides(group))
    printed = printed_cell(group[0].config)
    n = str(len({one.config.seed for one in group}))
    return [values(last), values(average), n, "-" if printed is None else f"{printed[0]} ± {printed[1]}"]
