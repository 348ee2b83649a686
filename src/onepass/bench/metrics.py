"""Measures of one run as pure functions of its accuracy matrix, and of several runs as mean and interval.

A matrix is a list of rows: matrix[i][j] is the accuracy on task j after task i was learned, j <= i, in [0, 1].
A confusion is a list of rows, one for each class: what its images were predicted as and how often, as class, count,
class, count, and so on. So it is never larger than the images are many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from onepass.config import unknown

Matrix = Sequence[Sequence[float]]
Confusion = Sequence[Sequence[int]]


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def average_accuracies(matrix: Matrix) -> list[float]:
    """A_i for every i: the mean accuracy on the tasks learned so far."""
    return [mean(row) for row in matrix]


def final_accuracy(matrix: Matrix) -> float:
    """A_T: the mean accuracy on all tasks at the end."""
    return mean(matrix[-1])


def learning_accuracy(matrix: Matrix) -> float:
    """The mean accuracy on each task just after it was learned."""
    return mean([row[-1] for row in matrix])


def new_accuracy(matrix: Matrix) -> float:
    """At the end, on the last task."""
    return matrix[-1][-1]


def old_accuracy(matrix: Matrix) -> float | None:
    """At the end, the mean over all tasks but the last; None with one task."""
    return mean(matrix[-1][:-1]) if len(matrix) > 1 else None


def backward_transfer(matrix: Matrix) -> float | None:
    """What later tasks did to earlier ones: the accuracy at the end minus that just after learning, over all tasks but
    the last (Lopez-Paz and Ranzato, 2017); None with one task."""
    return mean([last - matrix[j][j] for j, last in enumerate(matrix[-1][:-1])]) if len(matrix) > 1 else None


def forward_transfer(before: Sequence[float], untrained: Sequence[float]) -> float | None:
    """What earlier tasks did for later ones: the accuracy on each task but the first just before it began, minus that
    of the untrained learner (Lopez-Paz and Ranzato, 2017); None where they were not measured."""
    gains = [now - then for now, then in zip(before, untrained, strict=True)]
    return mean(gains) if gains else None


def predicted_as(row: Sequence[int]) -> Iterator[tuple[int, int]]:
    """A row of a confusion as pairs of class and count."""
    return zip(row[::2], row[1::2], strict=True)


def class_accuracies(confusion: Confusion) -> list[float | None]:
    """The share of each class's images that was predicted right; None for a class without any."""
    counts = [dict(predicted_as(row)) for row in confusion]
    return [row.get(c, 0) / sum(row.values()) if row else None for c, row in enumerate(counts)]


def lowest_class(confusion: Confusion) -> float | None:
    """The accuracy of the class that is predicted right least often; None where no class was measured."""
    return min((value for value in class_accuracies(confusion) if value is not None), default=None)


def average_anytime(points: Matrix) -> float:
    """The mean over all evaluations during training of the accuracy on the tasks met so far (Caccia et al., 2022)."""
    return mean([mean(point) for point in points])


def worst_case(points: Matrix, matrix: Matrix) -> float:
    """WC-ACC at the end (De Lange et al., 2023): the last task's accuracy, and of each earlier task the lowest that it
    had at any evaluation after it was learned, averaged over tasks. `points` are accuracies by task met so far."""
    looks = [*points, *matrix]
    lowest = [min(look[j] for look in looks if len(look) > j + 1) for j in range(len(matrix) - 1)]
    return mean([*lowest, matrix[-1][-1]])


def prequential_accuracy(stretches: Sequence[Sequence[int]]) -> float:
    """The share of all samples of the stream that were predicted right just before they were learned."""
    return sum(right for right, _ in stretches) / sum(seen for _, seen in stretches)


def prequential_curve(stretches: Sequence[Sequence[int]]) -> list[float]:
    """The same, stretch by stretch."""
    return [right / seen for right, seen in stretches]


def _drops(matrix: Matrix, best: Callable[[int], float]) -> list[float]:
    return [best(j) - last for j, last in enumerate(matrix[-1][:-1])]


def _chaudhry2018(matrix: Matrix) -> float:
    """Best before the last task minus last, over the old tasks (Chaudhry et al., 2018, eq. 3)."""
    return mean(_drops(matrix, lambda j: max(row[j] for row in matrix[j:-1])))


def _cba(matrix: Matrix) -> float:
    """As above, but the best may be the last: never negative (Mammoth, CBA: the paper's table 2)."""
    return mean(_drops(matrix, lambda j: max(row[j] for row in matrix[j:])))


def _raptormai(matrix: Matrix) -> float:
    """As `cba`, but averaged over all tasks; the last one counts as 0."""
    return _cba(matrix) * (len(matrix) - 1) / len(matrix)


def _avalanche(matrix: Matrix) -> float:
    """Just after learning minus last, over the old tasks."""
    return mean(_drops(matrix, lambda j: matrix[j][j]))


FORGETTING: dict[str, Callable[[Matrix], float]] = {
    "chaudhry2018": _chaudhry2018,
    "cba": _cba,
    "raptormai": _raptormai,
    "avalanche": _avalanche,
}


def forgetting(matrix: Matrix, variant: str = "chaudhry2018") -> float | None:
    """How much of what was once known is lost at the end; None with one task."""
    if variant not in FORGETTING:
        raise unknown("forgetting variant", variant, FORGETTING, "allowed")
    return FORGETTING[variant](matrix) if len(matrix) > 1 else None


FEWEST = 3  # values that make an interval: of two it would be 6.4 times their difference


@dataclass(frozen=True)
class Summary:
    """Mean of n values, the half-width of its 95 % Student-t interval (None below three values), and the values."""

    mean: float
    interval: float | None
    n: int
    values: tuple[float, ...] = field(default=(), compare=False)


def summarise(values: Sequence[float]) -> Summary:
    """Mean, half of the 95 % Student-t interval (None below three values), how many there are, and which."""
    n, centre = len(values), mean(values)
    if n < FEWEST:
        return Summary(centre, None, n, tuple(values))
    from scipy.special import stdtrit

    variance = math.fsum((value - centre) ** 2 for value in values) / (n - 1)
    return Summary(centre, float(stdtrit(n - 1, 0.975)) * math.sqrt(variance / n), n, tuple(values))
