"""Is a difference of two methods significant? Runs with equal seeds met equal streams, so differences are paired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from onepass.bench.metrics import mean, summarise

LEVEL = 0.05
NOISE = 12  # decimals: accuracies differ by more than this or not at all


@dataclass(frozen=True)
class Difference:
    """Mean of n paired differences, the half-width of its 95 % Student-t interval, and the two-sided p of the paired
    t test. The interval is None below three pairs, p below two; both where all are alike; the mean where n is 0."""

    mean: float | None
    interval: float | None
    p: float | None
    n: int
    values: tuple[float, ...] = field(default=(), compare=False)  # the differences, pair by pair


def paired(values: Sequence[float], baseline: Sequence[float]) -> Difference:
    """Values minus baseline, pair by pair."""
    differences = [round(value - other, NOISE) for value, other in zip(values, baseline, strict=True)]
    if not differences:
        return Difference(None, None, None, 0)
    found = summarise(differences)
    alike = len(set(differences)) == 1 and bool(differences[0])
    interval, p = (None, None) if alike else (found.interval, _p(differences))
    return Difference(found.mean, interval, p, found.n, found.values)


def _p(differences: Sequence[float]) -> float | None:
    n = len(differences)
    if n < 2:
        return None
    if not any(differences):
        return 1.0
    from scipy.special import stdtr

    centre = mean(differences)
    variance = sum((difference - centre) ** 2 for difference in differences) / (n - 1)
    return float(2 * stdtr(n - 1, -abs(centre) / (variance / n) ** 0.5))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Holm-Bonferroni: p-values adjusted for how many there are. None stays None and does not count."""
    known = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    adjusted: list[float | None] = [None] * len(ps)
    highest = 0.0
    for rank, (p, place) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        adjusted[place] = highest
    return adjusted


def against(groups: Mapping[str, Mapping[int, float]], baseline: str) -> dict[str, Difference]:
    """Every other row minus the baseline over the seeds that both have, p Holm-adjusted over these comparisons.

    Groups are seed -> value.
    """
    found = {name: _over_common(values, groups[baseline]) for name, values in groups.items() if name != baseline}
    adjusted = holm([difference.p for difference in found.values()])
    return {name: replace(found[name], p=p) for name, p in zip(found, adjusted, strict=True)}


def _over_common(values: Mapping[int, float], baseline: Mapping[int, float]) -> Difference:
    seeds = sorted(values.keys() & baseline.keys())
    return paired([values[seed] for seed in seeds], [baseline[seed] for seed in seeds])


def significant(difference: Difference) -> bool:
    return difference.p is not None and difference.p < LEVEL


def best(groups: Mapping[str, Mapping[int, float]]) -> str | None:
    """The row with the highest mean, if its difference to every other row is significant; groups are seed -> value."""
    if len(groups) < 2:
        return None
    top = max(groups, key=lambda name: mean(list(groups[name].values())))
    others = against(groups, top).values()
    lower = all(other.mean is not None and other.mean < 0 for other in others)  # on common seeds it may be otherwise
    return top if lower and all(map(significant, others)) else None
