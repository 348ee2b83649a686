"""OBC: online bias correction (Chrysakis and Moens, ICLR 2023)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from onepass.config import option
from onepass.learner.batch import Batch
from onepass.learner.functional import all_or_nothing, frozen_batchnorm
from onepass.learner.net import widen
from onepass.methods.er import ER, ERConfig


@dataclass(frozen=True)
class OBCConfig(ERConfig):
    correct: int = option(10, "memory samples that the predicting head learns in each step", low=1)
    smoothing: float = option(0.5, "label smoothing of the predicting head's loss", low=0, high=1)


class OBC(ER):
    """Experience replay biases the head towards the stream's newest classes, so another head predicts.
    That one learns after each step, on the features as they then are, from a memory batch of its own alone.

    L_o = CE with label smoothing (o(z), y) over a memory batch; z without gradient, a step of SGD on o alone
    """

    Config = OBCConfig
    config: OBCConfig

    def setup(self) -> None:
        self.corrected = copy.deepcopy(self.net.head)
        self.corrector = self.optimizer_of(self.corrected.parameters())

    def learn(self, batch: Batch, replay: Batch) -> Tensor:
        with all_or_nothing(self.net):
            loss = super().learn(batch, replay)
            memory = self.memory.sample(self.config.correct, self.rng)
            if len(memory):
                self.step(self.correction(memory), self.corrector)
        return loss

    def correction(self, memory: Batch) -> Tensor:
        """The predicting head's loss. Looking at the features moves no running statistics."""
        with torch.no_grad(), frozen_batchnorm(self.net):
            [(features, y)] = self.forward_batches(self.net.features, memory, joint=False)
        return self.cross_entropy(self.corrected(features), y, smoothing=self.config.smoothing)

    def widen(self, n_classes: int) -> None:
        super().widen(n_classes)
        widen(self.corrected, self.rng, outputs=n_classes)

    def predictors(self) -> list[nn.Module]:
        return [self.net, self.corrected]

    def scorer(self) -> Callable[[Tensor], Tensor]:
        return lambda x: self.corrected(self.net.features(x))
