"""ER: experience replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from onepass.config import CombineConfig, option
from onepass.learner.base import Learner
from onepass.learner.batch import Batch
from onepass.learner.functional import union_mean

Forward = Literal["separate", "joint"]
FORWARD = "new and replayed images in two passes, each normalised by its own batch, or in one"


@dataclass(frozen=True)
class ERConfig(CombineConfig):
    forward: Forward = option("separate", FORWARD)


class ER(Learner):
    """Each new batch is learned beside a random part of the memory, which keeps a fair sample of the past.

    L = mean of CE over new and replayed samples (eq. 2)
    """

    Config = ERConfig
    config: ERConfig

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        passes = self.forward_batches(self.net, batch, replay, joint=self.config.forward == "joint")
        return self.combine([(self.cross_entropy(logits, y), len(y)) for logits, y in passes])

    def combine(self, terms: Sequence[tuple[Tensor, int]]) -> Tensor:
        """The losses of new and replayed rows as one; of the new alone if nothing is replayed."""
        if self.config.combine == "sum":
            return torch.stack([loss for loss, _ in terms]).sum()
        return union_mean(terms)
