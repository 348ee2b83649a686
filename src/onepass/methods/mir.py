"""MIR: maximally interfered retrieval (Aljundi et al., NeurIPS 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from onepass.config import CombineConfig, option
from onepass.learner.augment import decode
from onepass.learner.batch import Batch
from onepass.learner.functional import exact, frozen_batchnorm, virtual_step
from onepass.methods.lookahead import Lookahead


@dataclass(frozen=True)
class MIRConfig(CombineConfig):
    candidates: int = option(50, "memory samples drawn, of which the replayed ones are chosen", low=1)


class MIR(Lookahead):
    """Of some random candidates from the memory, replay those that a step on the new batch alone would harm most.
    That step is tried and taken back.

    replayed: the candidates with the largest CE(x; theta') - CE(x; theta), theta' = theta - lr grad L(new; theta)
    L = mean of CE over new and replayed samples
    """

    Config = MIRConfig
    config: MIRConfig

    def retrieve(self, batch: Batch) -> Batch:
        return self.memory.sample(self.config.candidates, self.rng)

    @torch.no_grad()
    def choose(self, pool: Batch) -> Batch:
        if len(pool) <= self.replay:
            return pool
        images = decode(pool.x)
        with exact(self.net), frozen_batchnorm(self.net):
            before = self.measure(images, pool.y)
            with virtual_step(self.net, self.config.lr):
                after = self.measure(images, pool.y)
        return pool[(after - before).topk(self.replay).indices]

    def measure(self, images: Tensor, y: Tensor) -> Tensor:
        """One number for each image: those in which it grows most are replayed."""
        return self.cross_entropy(self.net(images), y, reduction="none")
