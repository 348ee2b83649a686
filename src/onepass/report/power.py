"""How large a difference so many paired runs could have shown."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onepass.bench.metrics import mean
from onepass.report.significance import LEVEL

POWER = 0.8


def detectable(differences: Sequence[float]) -> float | None:
    """The smallest true mean difference that a two-sided paired t test at 5 % finds with a power of 80 %, if
    differences spread as these do; None where they do not (fewer than two, or all alike)."""
    n = len(differences)
    if n < 2 or len(set(differences)) == 1:
        return None
    centre = mean(differences)
    spread = math.sqrt(math.fsum((value - centre) ** 2 for value in differences) / (n - 1))
    return standardised(n) * spread


def standardised(n: int) -> float:
    """The same in standard deviations of the differences: the noncentrality at which the power is 80 %, over
    the root of n, by bisection."""
    low, high = 0.0, 1.0
    while power(n, high) < POWER:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if power(n, middle) < POWER else (low, middle)
    return high


def power(n: int, effect: float) -> float:
    """The chance that n pairs with a true difference of `effect` standard deviations are significant, with its sign:
    the upper tail of the noncentral t beyond the bound of the two-sided test."""
    from scipy.special import nctdtr, stdtrit

    bound, shift = float(stdtrit(n - 1, 1 - LEVEL / 2)), effect * math.sqrt(n)
    return 1 - float(nctdtr(n - 1, shift, bound))
