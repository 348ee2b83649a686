"""DER++: dark experience replay (Buzzega et al., NeurIPS 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.config import ReplayConfig, option
from onepass.learner.base import Learner
from onepass.learner.batch import Batch


@dataclass(frozen=True)
class DERPPConfig(ReplayConfig):
    alpha: float = option(0.2, "weight of the distance to the stored logits", low=0)
    beta: float = option(0.5, "weight of the replayed samples' cross-entropy", low=0)
    draws: Literal["two", "one"] = option("two", "a memory batch for each of the two terms, or one for both")


class DERPP(Learner):
    """The memory keeps with each sample the logits that the network gave it when it was new.
    Replay holds the network to those logits, and a second memory batch to its labels.

    L = CE(new) + alpha MSE(logits of A, logits stored with A) + beta CE(B); A, B drawn from the memory
    """

    Config = DERPPConfig
    config: DERPPConfig

    def setup(self) -> None:
        self.memory.add_field("logits", (self.problem.n_classes,), torch.float32)

    def replayed(self, replay: Batch) -> list[tuple[Batch, float, float]]:
        """Each memory batch that is needed, with the weights of its two terms."""
        alpha, beta = self.config.alpha, self.config.beta
        if self.config.draws == "one":
            parts = [(replay, alpha, beta)]
        else:
            parts = [(replay, alpha, 0.0)]
            if beta:
                parts.append((self.memory.sample(self.replay, self.rng), 0.0, beta))
        return [part for part in parts if len(part[0]) and any(part[1:])]

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        parts = self.replayed(replay)
        (logits, y), *passes = self.forward_batches(self.net, batch, *(part for part, _, _ in parts), joint=False)
        batch.keep(logits=logits[: len(batch)])  # of the images, not of their augmentations; from before the step
        loss = self.cross_entropy(logits, y)
        for (logits, y), (part, alpha, beta) in zip(passes, parts, strict=True):
            if alpha:
                loss = loss + alpha * drift(logits, part.extra["logits"])
            if beta:
                loss = loss + beta * self.cross_entropy(logits, y)
        return loss

    def widen(self, n_classes: int) -> None:
        super().widen(n_classes)
        self.memory.widen_field("logits", n_classes)


def drift(logits: Tensor, stored: Tensor) -> Tensor:
    """Mean squared distance of the logits of images and augmentations to those stored with the images.

    A class that did not exist when the sample was stored (NaN) counts as no distance.
    """
    target = stored.repeat(len(logits) // len(stored), 1)
    return F.mse_loss(logits, torch.where(target.isnan(), logits.detach(), target))
