"""RanDumb: random Fourier features and streaming LDA (Prabhu et al., NeurIPS 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from onepass.config import option
from onepass.learner.augment import decode
from onepass.learner.batch import Batch
from onepass.methods.slda import SLDA, SLDAConfig


@dataclass(frozen=True)
class RanDumbConfig(SLDAConfig):
    features: int = option(2000, "random features; the paper has 25000, whose second moment takes 2.5 GB", low=1)
    flip: bool = option(True, "count each image and its mirror image; vectors have none")


class RanDumb(SLDA):
    """Random waves of the values stand in for an RBF kernel, and a linear discriminant is estimated on them.

    z = sqrt(2 / D) cos(x W + b), W ~ N(0, 2 g), b ~ U(0, 2 pi), g = 1 / (values x their variance in the first batch)
    prediction: argmax over classes of z S^-1 m_c - m_c S^-1 m_c / 2
    """

    Config = RanDumbConfig
    config: RanDumbConfig
    foundation = 256  # the spread is that of the first batch, which is hardly ever larger
    directions: Tensor
    phases: Tensor
    spread: Tensor

    def setup(self) -> None:
        super().setup()
        inputs = self.net.head.in_features
        self.register_buffer("directions", torch.randn(inputs, self.width, generator=self.rng))
        self.register_buffer("phases", 2 * torch.pi * torch.rand(self.width, generator=self.rng))
        self.register_buffer("spread", torch.tensor(1.0))  # the deviation of a value

    @property
    def width(self) -> int:
        return self.config.features

    def features(self, x: Tensor) -> Tensor:
        rows = x.flatten(1)
        g = 1 / (rows.shape[1] * float(self.spread) ** 2)
        waves = torch.addmm(self.phases, rows, self.directions, alpha=math.sqrt(2 * g))
        return waves.cos_().mul_(math.sqrt(2 / self.width))

    @torch.no_grad()
    def absorb(self, batch: Batch) -> Tensor:
        x = decode(batch.x)
        if not self.begun:
            self.spread.copy_(x.std(correction=0).clamp(min=1e-6))
        return super().absorb(batch)

    def add(self, batch: Batch, times: int = 1) -> None:
        if self.config.flip and self.problem.images and self.encoder is None:
            x = decode(batch.x)
            batch = Batch(torch.cat([x, x.flip(3)]), batch.y.repeat(2))
        super().add(batch, times)
