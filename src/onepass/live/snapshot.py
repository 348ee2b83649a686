"""What a model answers, as an object that never changes: any number of threads may ask it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from onepass.errors import UsageError
from onepass.live.labels import Label


class Scorer(Protocol):
    """Samples to a score for each class of a snapshot."""

    def scores(self, x: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class Snapshot:
    """`names` are those of the classes with a score, in the order of the columns."""

    names: tuple[Label, ...]
    shape: tuple[int, ...]
    temperature: float
    calibrated: bool
    scorer: Scorer
    version: int = 0  # of the model that it was taken of
    learned: int = 0  # samples

    def scores(self, x: Tensor) -> Tensor:
        """Bigger is more likely; -inf: no sample of the class is left."""
        return self.scorer.scores(x)

    def probabilities(self, x: Tensor) -> Tensor:
        """One for each class, in double precision: they sum to 1."""
        return probabilities(self.scores(x), self.temperature)

    def top(self, x: Tensor, n: int = 1) -> list[list[tuple[Label, float]]]:
        """The n most probable classes of each sample."""
        found = self.probabilities(x).topk(min(n, len(self.names)), dim=1)
        pairs = zip(found.indices.tolist(), found.values.tolist(), strict=True)
        return [[(self.names[c], p) for c, p in zip(classes, values, strict=True)] for classes, values in pairs]


def check_scored(p: Tensor) -> Tensor:
    """Refuse samples that have no score: beyond what floats hold, or none is left of any class."""
    good = torch.isfinite(p).all(dim=1)
    if not bool(good.all()):
        place = int((~good).nonzero()[0])
        raise UsageError(f"sample {place}: Expected a sample like those learned, got one without a score.")
    return p


def probabilities(scores: Tensor, temperature: float) -> Tensor:
    return torch.softmax(scores.double() / temperature, dim=1)
