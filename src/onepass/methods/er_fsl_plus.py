"""ER-FSL+: ER-FSL that replays more for the same work, and predicts by an average; ours (docs/beyond.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.config import option
from onepass.learner.batch import Batch
from onepass.methods.class_slots import ClassSlots
from onepass.methods.er import FORWARD, Forward
from onepass.methods.er_fsl import ERFSL, ERFSLConfig


@dataclass(frozen=True)
class ERFSLPlusConfig(ERFSLConfig):
    replay: int = option(30, "memory samples replayed in each step", low=1)
    gamma: float = option(0.7, "weight of the replayed loss; 1 - gamma weighs the new batch", low=0, high=1)
    images: Literal["augmented", "both"] = option(
        "augmented",
        "what is learned of each image: an augmentation alone, or the image and an augmentation",
        before={"view": "augmented"},
    )
    forward: Forward = option("joint", FORWARD)
    average: float | None = option(0.98, "decay a step of the average of the weights that predicts", low=0, high=1)


class ERFSLPlus(ERFSL):
    """ER-FSL's loss, over new and replayed samples in one pass. Each image is learned as one augmentation. ER-FSL
    learns the image too; so three times as many can be replayed for the same work. The memory holds every class alike.
    An average of the weights predicts.

    memory: a class that ever was the largest keeps a fair sample of itself; any other takes its place from the largest
    V, v = averages of the weights W of the head and of those of the network, their statistics too, after each step:
    v <- d v + (1 - d) w, with d = min(average, (n - 1) / (n + 9)) after step n
    prediction: argmax over classes of V[:, A] z[A], z the features by v
    """

    Config = ERFSLPlusConfig
    config: ERFSLPlusConfig
    met: Tensor
    full: Tensor

    def setup(self) -> None:
        super().setup()
        self.register_buffer("met", torch.zeros(self.problem.n_classes, dtype=torch.int64))  # samples of each class
        self.slots: ClassSlots | None = None  # found out from the memory
        self.register_buffer("full", torch.zeros(self.problem.n_classes, dtype=torch.bool))  # was ever the largest

    def widen(self, n_classes: int) -> None:
        super().widen(n_classes)
        self.met, self.full = (F.pad(rows, (0, n_classes - len(rows))) for rows in (self.met, self.full))

    def views(self, *batches: Batch) -> list[tuple[Tensor, Tensor]]:
        if self.config.images == "both":
            return super().views(*batches)
        return [(view, batch.y) for (_, view), batch in zip(self.images_and_views(*batches), batches, strict=True)]

    def remember(self, batch: Batch) -> None:
        self.memory.write(self.places(batch.y.tolist()), batch)
        if self.slots is not None:
            self.slots.accept()

    def places(self, labels: Sequence[int]) -> Tensor:
        """Slots for the next samples, -1 for those not to be kept (Chrysakis and Moens, 2020)."""
        rng, capacity, filled = self.memory.rng, self.memory.capacity, len(self.memory)
        if self.slots is None or not self.slots.current(self.problem.n_classes):
            self.slots = ClassSlots(self.memory, self.problem.n_classes)
        held, counts = self.slots, self.slots.counts
        met, full = (rows.to("cpu", copy=True).numpy() for rows in (self.met, self.full))
        slots = []
        for label in labels:  # one by one: each draws from the memory that the one before it left
            met[label] += 1
            empty = filled < capacity
            if empty:
                slot, filled = filled, filled + 1
            else:
                largest = counts == counts.max()
                full |= largest
                if full[label] and torch.rand((), generator=rng, dtype=torch.float64) >= counts[label] / met[label]:
                    slots.append(-1)
                    continue
                among = np.arange(len(counts)) == label if full[label] else largest
                slot = held.find(among, int(torch.randint(int(counts[among].sum()), (), generator=rng)))
            held.put(slot, label, empty=empty)
            slots.append(slot)
        self.met.copy_(torch.from_numpy(met))
        self.full.copy_(torch.from_numpy(full))
        return torch.tensor(slots)
