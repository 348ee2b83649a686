"""PCR: proxy-based contrastive replay (Lin et al., CVPR 2023)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from onepass.config import ReplayConfig, option
from onepass.learner.base import Learner
from onepass.learner.batch import Batch
from onepass.learner.losses import proxy_contrast, unit
from onepass.methods.er import FORWARD, Forward


@dataclass(frozen=True)
class PCRConfig(ReplayConfig):
    temperature: float = option(0.09, "divides the cosines of samples and proxies (tau)", low=1e-3)
    forward: Forward = option("separate", FORWARD)


class PCR(Learner):
    """Each class has a proxy, its row of the head, and samples are compared with proxies by cosine. A sample is
    contrasted with the proxies of the samples in its step only, so that classes absent from it are left alone.

    L = mean over rows i of -log(exp(cos(z_i, w_yi) / tau) / sum over rows j of exp(cos(z_i, w_yj) / tau))
    """

    Config = PCRConfig
    config: PCRConfig

    def setup(self) -> None:
        self.net.head.register_parameter("bias", None)  # a cosine has none

    def learn(self, batch: Batch, replay: Batch) -> Tensor:
        if not len(replay):  # as published: the first batch, with nothing to replay, is not learned
            return torch.zeros((), device=self.device)
        return super().learn(batch, replay)

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        passes = self.forward_batches(self.net.features, batch, replay, joint=self.config.forward == "joint")
        features, labels = (torch.cat(part) for part in zip(*passes, strict=True))
        return proxy_contrast(features, self.net.head.weight, labels, self.config.temperature)

    def scorer(self) -> Callable[[Tensor], Tensor]:
        proxies = unit(self.net.head.weight)
        return lambda x: unit(self.net.features(x)) @ proxies.T
