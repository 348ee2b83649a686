"""ER: experience replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from onepass.batch import Batch
from onepass.config import ReplayConfig, option
from onepass.learner import Learner


@dataclass(frozen=True)
class ERConfig(ReplayConfig):
    combine: Literal["mean", "sum"] = option(
        "mean", "one mean over new and replayed samples (eq. 2), or the sum of their two means, twice the step"
    )


class ER(Learner):
    """The new batch and a replayed one, learned alike (eq. 2)."""

    Config = ERConfig
    config: ERConfig

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        passes = self.passes(self.net, batch, replay, joint=self.config.forward == "joint")
        if self.config.combine == "sum":
            return torch.stack([self.cross_entropy(logits, y) for logits, y in passes]).sum()
        return self.mean_loss(passes)
