"""GDumb: greedy sampler and dumb learner (Prabhu et al., ECCV 2020)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.config import ReplayConfig, option
from onepass.errors import UsageError
from onepass.learner.augment import decode
from onepass.learner.base import SETTLING_STEPS, Learner
from onepass.learner.batch import Batch
from onepass.learner.functional import Frozen
from onepass.learner.net import Standardise

LONGEST = 10.0  # a longer gradient is scaled down to this length
LOWEST = 0.01  # of the learning rate, at the end of each cycle


@dataclass(frozen=True)
class GDumbConfig(ReplayConfig):
    lr: float = option(0.05, "highest learning rate; it falls in cycles", low=0)
    momentum: float = option(0.9, "momentum of sgd", low=0, high=1)
    weight_decay: float = option(1e-6, "weight decay", low=0)
    replay: int = option(16, "memory samples in each step of the training", low=1)
    epochs: int = option(32, "passes over the memory in each training; the paper's 256", low=1)
    cutmix: float = option(0.0, "share of the steps whose images are mixed by CutMix; the paper's 0.5", low=0, high=1)


class GDumb(Learner):
    """A step only stores, so that the memory holds equally many samples of each class. When a task ends, the network
    starts from its initial weights and is trained on the memory alone, as if nothing had been learned before.

    memory: with n classes in M slots, a sample enters if its class has fewer than M / n; the largest class gives way
    L = mean of CE over 16 samples of the memory and their augmentations, for all of them in turn, `epochs` times
    learning rate in epoch e = 2^k + i, i < 2^k: lowest + (lr - lowest) (1 + cos(pi i / 2^k)) / 2; in the first, lr / 10
    """

    Config = GDumbConfig
    config: GDumbConfig
    known: Tensor
    stale: Tensor

    def setup(self) -> None:
        if self.config.cutmix and len(self.sample_shape) != 3:
            raise UsageError(
                f"cutmix={self.config.cutmix:g} mixes rectangles of images: expected samples of shape (channels, "
                f"height, width), got {self.sample_shape}; use cutmix=0"
            )
        self.initial = Frozen(self.net)
        self.register_buffer("known", torch.zeros(self.problem.n_classes, dtype=torch.bool))  # of the last training
        self.register_buffer("stale", torch.tensor(False))  # the memory has changed since

    def widen(self, n_classes: int) -> None:
        super().widen(n_classes)
        self.known = F.pad(self.known, (0, n_classes - len(self.known)))

    # Greedy: what is stored.

    def remember(self, batch: Batch) -> None:
        slots = self.places(batch.y.tolist())
        self.memory.write(slots, batch)
        self.stale |= bool((slots >= 0).any())

    def places(self, labels: Sequence[int]) -> Tensor:
        """Slots for the next samples, -1 for those not to be kept."""
        rng, capacity, filled = self.memory.rng, self.memory.capacity, len(self.memory)
        y = self.memory.field("y").to("cpu", copy=True).numpy()
        counts = np.bincount(y[:filled], minlength=self.problem.n_classes)
        slots = []
        for label in labels:  # one by one: each meets the memory that the one before it left
            if counts[label] * np.count_nonzero(counts) >= capacity:
                slots.append(-1)
                continue
            if filled < capacity:
                slot, filled = filled, filled + 1
            else:
                largest = np.flatnonzero((counts == counts.max())[y])
                slot = int(largest[torch.randint(len(largest), (), generator=rng)])
                counts[y[slot]] -= 1
            y[slot] = label
            counts[label] += 1
            slots.append(slot)
        return torch.tensor(slots)

    # Dumb: when and how it is learned.

    def absorb(self, batch: Batch) -> Tensor:
        """Nothing; but where nobody tells when a task ends, a training 20, 40, 80, ... steps after it began."""
        if self.arrived is not None:
            times, rest = divmod(self.steps - self.arrived, SETTLING_STEPS)
            if times and not rest and not times & (times - 1):
                self.fit()
        return torch.zeros((), device=self.device)

    def end_task(self) -> None:
        super().end_task()
        self.fit()

    def fit(self) -> None:
        """Train on the memory if it has changed. If a step is refused, all stays as it was."""
        if not self.stale:
            return
        self.train()
        with self._all_or_nothing(everything=True):
            self.start_again()
        self.known.fill_(False)[self.memory.field("y")[: len(self.memory)]] = True
        self.stale.fill_(False)

    def start_again(self) -> None:
        """From the initial weights, `epochs` passes over the memory in random order."""
        self.net.load_state_dict(self.initial.module.state_dict())
        for layer in self.net.modules():
            if isinstance(layer, Standardise):
                layer.meet(decode(self.memory.field("x")[: len(self.memory)]))
        [group] = self.optimizer.param_groups
        highest, stored, steps = group["lr"], len(self.memory), 0
        try:
            for epoch in range(self.config.epochs):
                group["lr"] = rate(epoch, highest)
                order = torch.randperm(stored, generator=self.rng)
                for slots in order.tensor_split(-(-stored // self.replay)):  # even parts: no rest of one sample
                    self.descend(self.memory.read(slots))
                    steps += 1
                    if self.average is not None:
                        self.average.follow(steps)
        finally:  # the next training has a momentum of its own
            group["lr"] = highest
            self.optimizer.state.clear()

    def descend(self, stored: Batch) -> None:
        loss = self.memory_loss(stored)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.trainable(), LONGEST)
        self.update(loss)

    def memory_loss(self, stored: Batch) -> Tensor:
        [(x, y)] = self.views(stored)
        if not self.config.cutmix or torch.rand((), generator=self.rng) >= self.config.cutmix:
            return self.cross_entropy(self.net(x), y)
        mixed, other, share = cutmix(x, self.rng)
        logits = self.net(mixed)
        return share * self.cross_entropy(logits, y) + (1 - share) * self.cross_entropy(logits, y[other])

    def scorer(self) -> Callable[[Tensor], Tensor]:
        if not self.known.any():  # not trained yet: as good as chance
            return self.net
        unknown = torch.zeros(len(self.known), device=self.device).masked_fill_(~self.known, -torch.inf)
        return lambda x: self.net(x) + unknown


def rate(epoch: int, highest: float) -> float:
    """A first epoch at a tenth; then cycles of 1, 2, 4, ... epochs, each from the highest rate down a half cosine."""
    if epoch == 0:
        return highest / 10
    length = 1 << (epoch.bit_length() - 1)
    lowest = LOWEST * highest
    return lowest + (highest - lowest) * (1 + math.cos(math.pi * (epoch - length) / length)) / 2


def cutmix(x: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor, float]:
    """Images with one rectangle, at the same place in all, from another image; which that is; what is left of each."""
    other = torch.randperm(len(x), generator=rng)
    area, down, across = torch.rand(3, generator=rng, dtype=torch.float64).tolist()
    (top, bottom), (left, right) = (
        span(size, math.sqrt(area), place) for size, place in zip(x.shape[2:], (down, across), strict=True)
    )
    mixed = x.clone()
    mixed[:, :, top:bottom, left:right] = x[other.to(x.device), :, top:bottom, left:right]
    return mixed, other.to(x.device), 1 - (bottom - top) * (right - left) / math.prod(x.shape[2:])


def span(size: int, part: float, place: float) -> tuple[int, int]:
    """A stretch of this part of a side, around a place on it; what lies outside is cut off."""
    centre, half = int(size * place), int(size * part) // 2
    return max(0, centre - half), min(size, centre + half)
