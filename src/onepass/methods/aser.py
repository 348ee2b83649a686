"""ASER: adversarial Shapley value experience replay, in its mean form (Shim et al., AAAI 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.config import option
from onepass.learner.augment import decode
from onepass.learner.batch import Batch
from onepass.learner.functional import evaluating
from onepass.methods.er import ER, FORWARD, ERConfig, Forward


@dataclass(frozen=True)
class ASERConfig(ERConfig):
    neighbours: int = option(3, "neighbours that vote (K)", low=1)
    per_class: int = option(9, "memory samples of each class that are scored, and as many that judge (n_s)", low=1)
    forward: Forward = option("joint", FORWARD)


def knn_shapley(distances: Tensor, same: Tensor, k: int) -> Tensor:
    """The exact Shapley value of each candidate (column) in the vote of the k nearest on each judge's class (row).

    With candidates by distance from 1 to N, s_m = s_(m+1) + (same_m - same_(m+1)) min(k, m) / (k m), and 0 beyond N.
    """
    order = distances.argsort(dim=1, stable=True)
    hits = F.pad(same.gather(1, order).to(distances.dtype), (0, 1))
    rank = torch.arange(1, hits.shape[1], dtype=distances.dtype, device=distances.device)
    steps = (hits[:, :-1] - hits[:, 1:]) * (rank.clamp(max=k) / (k * rank))
    values = steps.flip(1).cumsum(1).flip(1)
    return torch.empty_like(values).scatter_(1, order, values)


class ASER(ER):
    """Replayed are memory samples that speak for their class among others in the memory and against the new batch's.
    Kept are those that help a nearest-neighbour vote on the classes in the memory.

    score(i) = mean over memory judges of s(i) - mean over new samples of s(i), s the KNN Shapley value in feature space
    kept: the largest sum over judges of s(i)
    """

    Config = ASERConfig
    config: ASERConfig

    def retrieve(self, batch: Batch) -> Batch:
        if self.memory.seen <= self.memory.capacity:
            return super().retrieve(batch)
        size = self.config.per_class
        slots, rank = self.first_of_each(2 * size, self.shuffled())
        candidates = self.memory.read(slots[rank < size])
        judges = self.memory.read(slots[(rank >= size) & (rank < 2 * size)])
        n = len(candidates)
        values = self.values(n, slice(n, None), candidates, judges, batch)
        cooperative, adversarial = values.split([len(judges), len(batch)])
        score = -adversarial.mean(0)
        if len(judges):  # none, if no class has more samples than become candidates
            score += cooperative.mean(0)
        return candidates[score.argsort(descending=True, stable=True)[: self.replay]]

    def remember(self, batch: Batch) -> None:
        first, capacity = len(self.memory), self.memory.capacity
        self.memory.seen += len(batch)
        if first < capacity:
            slots = torch.arange(first, first + len(batch))
            self.memory.write(slots.masked_fill(slots >= capacity, -1), batch)
            batch = batch[slots[slots >= capacity] - first]
        if len(batch):
            self.replace(batch)

    def replace(self, batch: Batch) -> None:
        """New samples against memory samples: as many as there were of these stay."""
        order, size, n_classes = self.shuffled(), self.config.per_class, self.problem.n_classes
        slots, rank = self.first_of_each(size, order)
        judge = (rank < size).nonzero().flatten()  # places in the order; all others are the rest
        left = len(order) - len(judge)
        if not left:  # no class has more samples than judge
            return
        drawn = torch.randperm(left, generator=self.rng)[: size * n_classes].to(judge)
        before = torch.searchsorted(judge - torch.arange(len(judge), device=self.device), drawn, right=True)
        rest = order[drawn + before]
        judges, candidates = self.memory.read(slots[judge]), self.memory.read(rest)
        share = self.memory.field("y").bincount(minlength=n_classes)[batch.y] / self.memory.capacity
        # New samples of rare classes judge too: else nobody would speak for theirs, and none would get in.
        rare = share < torch.rand((), generator=self.rng) / n_classes
        judging = torch.cat([torch.zeros_like(candidates.y), rare, torch.ones_like(judges.y)]).bool()
        n = len(candidates) + len(batch)
        values = self.values(n, judging, candidates, batch, judges).sum(0)
        stays = torch.zeros_like(values, dtype=torch.bool)
        stays[values.argsort(descending=True, stable=True)[: len(rest)]] = True
        stored, new = stays.split([len(rest), len(batch)])
        target = torch.full_like(batch.y, -1)
        target[new] = rest[~stored]
        self.memory.write(target, batch)

    def shuffled(self) -> Tensor:
        """The filled slots in random order."""
        return torch.randperm(len(self.memory), generator=self.rng).to(self.device)

    def first_of_each(self, most: int, order: Tensor) -> tuple[Tensor, Tensor]:
        """As much of the order as holds so many of each class, or all of it, and how many of its own class come before
        each. A large memory is not sorted for a few samples of each class."""
        y = self.memory.field("y")
        wanted = y[: len(order)].bincount(minlength=self.problem.n_classes).clamp(max=most)
        n = 4 * int(wanted.sum())
        while n < len(order) and (y[order[:n]].bincount(minlength=len(wanted)) < wanted).any():
            n *= 2
        slots = order[:n]
        labels, places = y[slots].sort(stable=True)
        rank = torch.empty_like(slots)
        rank[places] = torch.arange(len(slots), device=self.device) - torch.searchsorted(labels, labels)
        return slots, rank

    @torch.no_grad()
    def values(self, n: int, judging: Tensor | slice, *batches: Batch) -> Tensor:
        """Values of the first n of all rows for those that judge, by features of raw images in evaluation mode."""
        images, y = torch.cat([decode(batch.x) for batch in batches]), torch.cat([batch.y for batch in batches])
        with evaluating(self.net):
            z = torch.cat([self.net.features(part) for part in images.split(self.chunk)])
        # By differences: by products, cdist's own choice, near neighbours may change places.
        distances = torch.cdist(z[judging], z[:n], compute_mode="donot_use_mm_for_euclid_dist")
        return knn_shapley(distances, y[judging][:, None] == y[:n], self.config.neighbours)
