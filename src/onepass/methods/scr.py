"""SCR: supervised contrastive replay (Mai et al., CVPR workshops 2021)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.config import ReplayConfig, option
from onepass.learner.base import Learner
from onepass.learner.batch import Batch
from onepass.learner.functional import nearest_mean
from onepass.learner.losses import supcon
from onepass.learner.net import linear


@dataclass(frozen=True)
class SCRConfig(ReplayConfig):
    temperature: float = option(0.1, "divides the similarities of two samples (tau)", low=1e-3)


class SCR(Learner):
    """Features of one class are pulled together and those of others pushed away, among new and replayed samples and
    their augmentations. An image is then given the class whose stored samples have the nearest mean feature.

    L = mean over rows a, and over rows b of the same class, of -log(exp(u_a u_b / tau) / sum_c exp(u_a u_c / tau))
    prediction: argmax over classes of f(x) m_c, with m_c the direction of the mean of f over the stored samples of c
    """

    Config = SCRConfig
    config: SCRConfig

    def setup(self) -> None:
        width = self.net.head.in_features
        self.project = nn.Sequential(linear(width, width, self.rng), nn.ReLU(), linear(width, 128, self.rng))

    def trainable(self) -> Iterator[nn.Parameter]:
        return chain(self.net.body.parameters(), self.project.parameters())

    def learn(self, batch: Batch, replay: Batch) -> Tensor:
        if not len(replay):  # as published: without a memory to contrast with, nothing is learned
            return torch.zeros((), device=self.device)
        return super().learn(batch, replay)

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        # Batch-norm sees images and augmentations apart, but new and replayed samples together.
        passes = (torch.cat(part) for part in zip(*self.images_and_views(replay, batch), strict=True))
        vectors = torch.cat([self.project(self.net.features(x)) for x in passes])
        return supcon(F.normalize(vectors), torch.cat([replay.y, batch.y]).repeat(2), self.config.temperature)

    def scorer(self) -> Callable[[Tensor], Tensor]:
        return nearest_mean(self)
