"""Drift: recent accuracy leaves the band in which it lay before."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from onepass.live.prequential import Prequential

RECENT = 50  # predictions that count as recent, and the fewest before them that make a band
DEVIATIONS = 3.0


@dataclass(frozen=True)
class Drift:
    """Recent accuracy, the band around what it was before, and on which side it lies: -1 below, 1 above, 0 within."""

    recent: float
    low: float
    high: float
    side: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def drift(prequential: Prequential) -> Drift | None:
    """None: too few predictions to tell.

    The band is three standard deviations of the difference between two shares of these sizes. The earlier share has
    one hit and one miss added: where all were right before, one mistake is no drift.
    """
    right = [entry.label == entry.predicted for entry in prequential.window]
    before, recent = right[:-RECENT], right[-RECENT:]
    if len(before) < RECENT:
        return None
    was, now = (sum(before) + 1) / (len(before) + 2), sum(recent) / RECENT
    width = DEVIATIONS * math.sqrt(was * (1 - was) * (1 / len(before) + 1 / RECENT))
    low, high = max(0.0, was - width), min(1.0, was + width)
    return Drift(now, low, high, -1 if now < low else 1 if now > high else 0)
