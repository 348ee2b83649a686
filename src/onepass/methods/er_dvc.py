"""ER-DVC: dual view consistency (Gu et al., CVPR 2022)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from onepass.config import option
from onepass.learner.batch import Batch
from onepass.learner.net import linear, widen
from onepass.methods.mir import MIR, MIRConfig

HIDDEN = 128  # units of the small network that sees an image and its augmentation


@dataclass(frozen=True)
class ERDVCConfig(MIRConfig):
    dl_weight: float = option(2.0, "weight of the distance of both predictions from the joint one (lambda)", low=0)


class ERDVC(MIR):
    """An image and an augmentation of it shall be predicted alike, each as from both together. All classes shall be
    predicted equally often. Of some random candidates from the memory, replay those whose gradient a step on the new
    batch would enlarge most.

    L(batch) = CE + mean over P, P', Q of <mean P, log mean P> + lambda mean(|Q - P|, |Q - P'|), Q = softmax q(l, l')
    replayed: the candidates with the largest s(theta') - s(theta), s = |P - onehot(y)|_1 |z|_1
    L = mean of L(new) and L(replayed), weighted by their samples
    """

    Config = ERDVCConfig
    config: ERDVCConfig

    def setup(self) -> None:
        n = self.problem.n_classes
        self.qnet = nn.Sequential(linear(2 * n, HIDDEN, self.rng), nn.ReLU(), linear(HIDDEN, n, self.rng))

    def trainable(self) -> Iterator[nn.Parameter]:
        yield from self.net.parameters()
        yield from self.qnet.parameters()

    def batch_loss(self, batch: Batch) -> Tensor:
        [(logits, y)] = self.forward_batches(self.net, batch, joint=False)
        pair = logits[: len(batch)], logits[-len(batch) :]  # images and augmentations; without any, the images twice
        joint = self.qnet(torch.cat(pair, dim=1))
        p = self.scoped(torch.stack([*pair, joint])).softmax(dim=-1)
        distance = (p[:2] - p[2]).abs().sum(
            dim=-1
        ).mean() / self.problem.n_classes  # nobody predicts those not in scope
        return self.cross_entropy(logits, y) + negentropy(p) + self.config.dl_weight * distance

    def measure(self, images: Tensor, y: Tensor) -> Tensor:
        features = self.net.features(images)
        return gradient_size(self.scoped(self.net.head(features)), features, self.targets(y))

    def widen(self, n_classes: int) -> None:
        old = self.problem.n_classes
        super().widen(n_classes)
        inner, outer = (layer for layer in self.qnet if isinstance(layer, nn.Linear))
        widen(inner, self.rng, columns=[old, 2 * old] * (n_classes - old))  # at the end of each of the two's logits
        widen(outer, self.rng, outputs=n_classes)


def negentropy(p: Tensor) -> Tensor:
    """Minus the entropy of a batch's mean prediction, from predictions (kinds, rows, classes); mean over kinds."""
    mean = p.mean(dim=1).clamp(min=sys.float_info.epsilon)  # a class that nobody predicts has no logarithm
    return (mean * mean.log()).sum(dim=1).mean()


def gradient_size(logits: Tensor, features: Tensor, y: Tensor) -> Tensor:
    """The L1 norm of each sample's cross-entropy gradient for the head's weights: |P - onehot|_1 |z|_1."""
    right = logits.softmax(dim=1).gather(1, y[:, None])[:, 0]
    return 2 * (1 - right) * features.abs().sum(dim=1)  # the other classes' probabilities sum to 1 - right, too
