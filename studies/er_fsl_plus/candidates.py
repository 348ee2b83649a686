"""What might make ER-FSL better at ER's cost, one change at a time: the learner behind plus.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.config import option
from onepass.learner.augment import decode
from onepass.learner.batch import Batch
from onepass.learner.losses import unit
from onepass.methods.er_fsl import ERFSL, ERFSLConfig, Space


@dataclass(frozen=True)
class CandidateConfig(ERFSLConfig):
    draw: Literal["uniform", "balanced", "old"] = option(
        "uniform",
        "every stored sample alike, every class alike, or once there are old classes these alone",
    )
    store: Literal["reservoir", "balanced"] = option("reservoir", "a fair sample of the stream, or of each class")
    follow: bool = option(False, "gamma follows the share of old classes, where that is larger")
    cosine: float = option(0.0, "scores are cosines times this; 0: inner products", low=0)
    teach: float = option(0.0, "distillation from the average on replayed images, times gamma", low=0)
    adam: bool = option(False, "step by Adam, as OCM does, instead of by plain SGD")
    softening: float = option(2.0, "temperature of that distillation", low=0.01)


class Candidate(ERFSL):
    """ER-FSL with one or more of the changes."""

    Config = CandidateConfig
    config: CandidateConfig

    def setup(self) -> None:
        super().setup()
        self.register_buffer("met", torch.zeros(self.problem.n_classes, dtype=torch.int64))  # samples of each class
        self.register_buffer("full", torch.zeros(self.problem.n_classes, dtype=torch.bool))  # was ever the largest

    def widen(self, n_classes: int) -> None:
        super().widen(n_classes)
        self.met, self.full = (F.pad(rows, (0, n_classes - len(rows))) for rows in (self.met, self.full))

    def make_optimizer(self) -> torch.optim.Optimizer:
        if not self.config.adam:
            return super().make_optimizer()
        return torch.optim.Adam(self.trainable(), lr=self.config.lr, betas=(0.9, 0.99))

    def retrieve(self, batch: Batch) -> Batch:
        if self.config.draw == "uniform" or not len(self.memory):
            return super().retrieve(batch)
        y = self.memory.field("y")[: len(self.memory)].cpu()
        if self.config.draw == "balanced":
            weight = 1 / y.bincount(minlength=self.problem.n_classes)[y].double()
        elif not len(self.old):
            return super().retrieve(batch)
        else:
            weight = torch.isin(y, self.old.cpu()).double()
        n = min(self.replay, int((weight > 0).sum()))
        slots = torch.multinomial(weight, n, generator=self.rng) if n else torch.empty(0, dtype=torch.int64)
        return self.memory.read(slots)

    def remember(self, batch: Batch) -> None:
        if self.config.store == "reservoir":
            super().remember(batch)
            return
        # Class-balancing reservoir (Chrysakis and Moens, 2020), one sample at a time: a class that ever was the largest
        # is full, and keeps a fair sample of itself; any other takes its place from the largest.
        memory, rng = self.memory, self.memory.rng
        for row, label in enumerate(batch.y.tolist()):
            self.met[label] += 1
            if len(memory) < memory.capacity:
                slot = len(memory)
            else:
                y = memory.field("y").cpu()
                counts = y.bincount(minlength=self.problem.n_classes)
                largest = counts == counts.max()
                self.full |= largest.to(self.full.device)
                full, own = bool(self.full[label]), int(counts[label])
                if full and torch.rand((), generator=rng, dtype=torch.float64) >= own / int(self.met[label]):
                    continue
                places = (y == label if full else largest[y]).nonzero().flatten()
                slot = int(places[torch.randint(len(places), (), generator=rng)])
            memory.write(torch.tensor([slot]), Batch(batch.x[row : row + 1], batch.y[row : row + 1]))

    def terms(self, batch: Batch, replay: Batch) -> list[tuple[Batch, Space, float]]:
        if not self.config.follow:
            return super().terms(batch, replay)
        gamma = max(self.config.gamma, len(self.old) / len(self.seen))
        return [(batch, self.config.learn_in, 1 - gamma), (replay, self.config.replay_in, gamma)]

    def logits(self, features: Tensor, space: Space, head: nn.Linear | None = None) -> Tensor:
        if not self.config.cosine:
            return super().logits(features, space, head)
        mask = self.space(space)
        return self.config.cosine * unit(features * mask) @ unit((head or self.net.head).weight * mask).T

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        if not self.config.teach or not len(replay) or self.average is None:
            return super().loss(batch, replay)
        taught = self.teacher(replay)
        joint = self.config.forward == "joint"
        (new, y), (old, y_old) = self.forward_batches(self.net.features, batch, replay, joint=joint)
        (_, learn_in, weight), (_, replay_in, gamma) = self.terms(batch, replay)
        logits = self.logits(old, replay_in)
        given = F.log_softmax(self.scoped(logits) / self.config.softening, dim=1)
        wanted = taught.repeat(len(given) // len(taught), 1)
        distance = self.config.softening**2 * F.kl_div(given, wanted, reduction="batchmean", log_target=True)
        return (
            weight * self.cross_entropy(self.logits(new, learn_in), y)
            + gamma * self.cross_entropy(logits, y_old)
            + gamma * self.config.teach * distance
        )

    def teacher(self, replay: Batch) -> Tensor:
        """What the average says of the replayed images themselves: ten more images forward."""
        assert self.average is not None
        self.eval()
        with self.average.in_place(), torch.no_grad():
            logits = self.logits(self.net.features(decode(replay.x)), self.config.test_in)
        self.train()
        return F.log_softmax(self.scoped(logits) / self.config.softening, dim=1)
