"""Bounds that readers of data, learners and the server share."""

from __future__ import annotations

LARGEST_VALUE = 1e15  # of a vector, either sign: sums of squares of larger ones leave float32
