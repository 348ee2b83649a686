"""GMED: gradient-based memory editing (Jin et al., NeurIPS 2021), with experience replay."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from onepass.config import CombineConfig, option
from onepass.learner.batch import Batch
from onepass.learner.functional import exact, frozen_batchnorm, virtual_step
from onepass.methods.lookahead import Lookahead


@dataclass(frozen=True)
class GMEDConfig(CombineConfig):
    stride: float = option(0.1, "length of an edit (alpha), for pixels in [0, 1]", low=0)
    regular: float = option(0.01, "how much an edit spares the present loss (beta); negative: published code's sign")
    decay: float = option(1.0, "factor on the stride for each earlier edit of the sample (gamma)", low=0, high=1)


class GMED(Lookahead):
    """Stored images are edited before they are replayed, so that a step on the new batch would harm them more.
    The edited images replace the stored ones.

    x <- x + alpha gamma^k grad_x [CE(x; theta') - CE(x; theta) - beta CE(x; theta)], k = earlier edits of x
    theta' = theta - lr grad CE(new);  L = mean of CE over new and edited samples
    """

    Config = GMEDConfig
    config: GMEDConfig
    image_dtype = torch.float32  # an edit is far smaller than a byte's step

    def setup(self) -> None:
        self.memory.add_field("edits", (), torch.int64)
        self.edited: Batch | None = None  # only from `choose` to `remember`

    def learn(self, batch: Batch, replay: Batch) -> Tensor:
        self.edited = None  # a refused step may have left some
        return super().learn(batch, replay)

    def choose(self, pool: Batch) -> Batch:
        config, edits = self.config, pool.extra["edits"]
        with exact(self.net), frozen_batchnorm(self.net):
            now = self.slope(pool)
            with virtual_step(self.net, config.lr):
                ahead = self.slope(pool)
        strides = config.stride * config.decay**edits
        sides = (-1, *(1 for _ in self.sample_shape))
        moved = pool.x + strides.view(sides) * (ahead - (1 + config.regular) * now)
        edited = moved.clamp_(0, 1) if self.problem.images and self.encoder is None else moved
        self.edited = replace(pool, x=edited, extra={**pool.extra, "edits": edits + 1})
        return self.edited

    def slope(self, pool: Batch) -> Tensor:
        """The gradient of the mean loss for the images."""
        images = pool.x.detach().requires_grad_()
        [slope] = torch.autograd.grad(self.cross_entropy(self.net(images), pool.y), images)
        return slope

    def remember(self, batch: Batch) -> None:
        if self.edited is not None and self.edited.slots is not None:
            self.memory.write(self.edited.slots, self.edited)
            self.edited = None
        batch.keep(edits=torch.zeros_like(batch.y))
        super().remember(batch)
