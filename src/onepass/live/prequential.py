"""Predictions made before learning: recent accuracy, confusion, and the temperature that makes probabilities honest.

Not every sample is predicted first: that would cost as much again. The first 100 are, then ever fewer, down to one
in 64. What was predicted by a model that had learned less than a quarter of what this one has is no longer counted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

FIRST = 100  # samples that are predicted whatever they cost; about two thirds as many each time their number doubles
ONE_IN = 64  # of all others
WINDOW = 1000  # predictions that are remembered
ENOUGH = 100  # predictions by which a temperature can be told
LOWEST = -1e30  # stands for minus infinity, where that would give NaN
FITTED = 512  # of the last predictions tell the temperature
STRAY = 0.01


@dataclass
class Tested:
    number: int  # of the sample in the journal, or -1
    label: int
    predicted: int
    scores: NDArray[np.float32]
    place: int  # of the label among the scores; -1: it was not known yet
    at: int  # samples learned when it was predicted


class Prequential:
    """The last predictions that were made of samples before they were learned."""

    def __init__(self) -> None:
        self.window: deque[Tested] = deque(maxlen=WINDOW)
        self.tested = 0
        self._fitted: tuple[int, float] | None = None  # after how many tests which temperature
        self._changes = 0

    def allowance(self, learned: int, n: int) -> int:
        """How many of the next n samples to predict first, when so many were learned."""
        due = FIRST * (1 + math.log(max(1, (learned + n) / FIRST))) + (learned + n) / ONE_IN
        return max(0, min(n, int(due) - self.tested))

    def note(
        self,
        numbers: Sequence[int],
        labels: Sequence[int],
        classes: Sequence[int],
        scores: NDArray[np.float32],
        learned: int,
    ) -> None:
        """Scores of these classes, when so many samples were learned, of samples that turn out to have these labels."""
        places = {c: place for place, c in enumerate(classes)}
        for number, label, row in zip(numbers, labels, scores, strict=True):
            predicted = classes[int(row.argmax())]
            self.window.append(Tested(number, label, predicted, row, places.get(label, -1), learned))
        while self.window[0].at * 4 < learned:
            self.window.popleft()
        self.tested += len(labels)
        self._changes += 1

    def forget(self, numbers: set[int]) -> None:
        kept = [entry for entry in self.window if entry.number not in numbers]
        if len(kept) < len(self.window):
            self.window = deque(kept, maxlen=WINDOW)
            self._changes += 1

    def relabel(self, number: int, to: int) -> None:
        for entry in self.window:
            if entry.number == number:
                entry.label, entry.place = to, -1  # the scores were of another question

    @property
    def accuracy(self) -> float | None:
        """Of the remembered predictions; None: there are none."""
        return float(np.mean([e.label == e.predicted for e in self.window])) if self.window else None

    def by_class(self) -> dict[int, tuple[int, int]]:
        """Of each class: how many were predicted right, of how many."""
        found: dict[int, tuple[int, int]] = {}
        for e in self.window:
            right, total = found.get(e.label, (0, 0))
            found[e.label] = right + (e.label == e.predicted), total + 1
        return found

    def confusion(self) -> dict[tuple[int, int], int]:
        """How often each label was predicted as each class."""
        found: dict[tuple[int, int], int] = {}
        for e in self.window:
            found[e.label, e.predicted] = found.get((e.label, e.predicted), 0) + 1
        return found

    @property
    def calibrated(self) -> bool:
        """Whether enough was predicted to tell a temperature."""
        return sum(e.place >= 0 for e in self.window) >= ENOUGH

    @property
    def temperature(self) -> float:
        """By which scores are divided before they become probabilities; 1 while too little was predicted."""
        if self._fitted is None or self._fitted[0] != self._changes:
            self._fitted = self._changes, self._fit() if self.calibrated else 1.0
        return self._fitted[1]

    def _fit(self) -> float:
        known = [e for e in self.window if e.place >= 0]
        width = max(len(e.scores) for e in known)
        scores = np.full((len(known), width), LOWEST)
        for row, e in zip(scores, known, strict=True):
            row[: len(e.scores)] = np.maximum(e.scores, LOWEST)
        return temperature(scores, np.array([e.place for e in known]))

    def to_tree(self) -> dict[str, Any]:
        entries = list(self.window)
        width = max((len(e.scores) for e in entries), default=0)
        scores = np.full((len(entries), width), np.nan, np.float32)
        for row, e in zip(scores, entries, strict=True):
            row[: len(e.scores)] = e.scores
        facts = [[e.number, e.label, e.predicted, e.place, e.at] for e in entries]
        return {
            "tested": self.tested,
            "facts": torch.tensor(facts, dtype=torch.int64).reshape(-1, 5),
            "scores": torch.from_numpy(scores),
        }

    @classmethod
    def from_tree(cls, tree: Any, n_classes: int) -> Prequential:
        facts, scores, tested = tree["facts"], tree["scores"], tree["tested"]
        if type(tested) is not int or tuple(facts.shape) != (len(scores), 5) or scores.dim() != 2:
            raise ValueError("its predictions are none")
        if len(scores) > WINDOW or scores.dtype != torch.float32 or scores.shape[1] > n_classes:
            raise ValueError("its predictions are too many")
        found = cls()
        found.tested = tested
        for (number, label, predicted, place, at), row in zip(facts.tolist(), scores.numpy(), strict=True):
            row = row[~np.isnan(row)]
            if not (0 <= label < n_classes and 0 <= predicted < n_classes and -1 <= place < len(row)):
                raise ValueError("its predictions name classes that there are not")
            found.window.append(Tested(number, label, predicted, row.copy(), place, at))
        return found


def temperature(scores: NDArray[np.float64], places: NDArray[np.int64]) -> float:
    """The temperature T at which softmax(scores / T) was most probable (Guo et al., 2017), by a finer and finer grid.

    One answer in a hundred may come from nowhere: p = 0.99 softmax + 0.01 / classes. So a few absurd scores do not
    decide, and T stays above 0 where all predictions were right.
    """
    scores = scores[-FITTED:] - scores[-FITTED:].max(axis=1, keepdims=True)
    rows, places = np.arange(len(scores)), places[-FITTED:]
    stray = STRAY / scores.shape[1]

    def loss(log: float) -> float:
        weights = np.exp(np.exp(-log) * scores)
        right = weights[rows, places] / weights.sum(axis=1)
        return float(-np.log((1 - STRAY) * right + stray).mean())

    best, step = 0.0, 2.0
    grid = np.arange(-4, 10) * step
    for _ in range(4):
        best = min(grid, key=loss)
        step /= 4
        grid = best + np.arange(-3, 4) * step
    return float(np.exp(min(grid, key=loss)))
