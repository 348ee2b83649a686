"""ER-ACE: experience replay with asymmetric cross-entropy (Caccia et al., ICLR 2022)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.config import option
from onepass.learner.batch import Batch
from onepass.learner.losses import unit
from onepass.methods.er import ER, ERConfig

SCALE = 10  # of the cosines, as in the authors' code: a softmax of bare cosines would be nearly even


@dataclass(frozen=True)
class ERACEConfig(ERConfig):
    head: Literal["linear", "cosine"] = option(
        "linear",
        f"scores by inner products and a bias, or {SCALE} times the cosine of features and weights, without bias",
        since="0.2.0",
    )


class ERACE(ER):
    """New samples compete only among the classes of their own batch, so they do not push the old classes down.
    Replayed samples compete among all classes seen.

    L = mean of CE(new, over the classes in the new batch) and CE(replayed, over the classes seen so far)
    """

    Config = ERACEConfig
    config: ERACEConfig

    def setup(self) -> None:
        if self.config.head == "cosine":
            self.net.head.register_parameter("bias", None)

    def score(self, x: Tensor) -> Tensor:
        if self.config.head == "linear":
            logits: Tensor = self.net(x)
            return logits
        return SCALE * unit(self.net.features(x)) @ unit(self.net.head.weight).T

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        (logits, y), *replayed = self.forward_batches(self.score, batch, replay, joint=self.config.forward == "joint")
        present = torch.tensor(batch.classes, device=y.device)
        target = torch.searchsorted(present, y)
        new = F.cross_entropy(logits.index_select(1, present), target)  # zero if the batch has one class: as it should
        return self.combine([(new, len(y)), *((self.cross_entropy(logits, y), len(y)) for logits, y in replayed)])

    def scorer(self) -> Callable[[Tensor], Tensor]:
        return self.score
