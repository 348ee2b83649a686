"""By which weights rows predict. Rows by an average and rows by last weights are compared by last weights."""

from __future__ import annotations

from collections.abc import Sequence

from onepass.bench.result import Result
from onepass.methods.registry import trains

AVERAGE, LAST = "average of the weights", "last weights"


def kinds(results: Sequence[Result]) -> set[str]:
    """What predicts, over all rows; a method that trains no network has nothing to average."""
    trained = [result.config for result in results if trains(result.config.method)]
    return {LAST if config.average is None else AVERAGE for config in trained}


def mixed(results: Sequence[Result]) -> bool:
    return len(kinds(results)) == 2


def even(results: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """The results as they can stand beside each other, and those that cannot: runs of an average whose last weights
    were not measured."""
    if not mixed(results):
        return list(results), []
    apart = [result for result in results if result.final_accuracy_last is None]
    return [result.by_last_weights() for result in results if result.final_accuracy_last is not None], apart


def basis(results: Sequence[Result]) -> str:
    """What comparisons are by, in words; nothing where no row has an average."""
    found = kinds(results)
    return "" if AVERAGE not in found else f"by {LAST if len(found) == 2 else AVERAGE}"
