"""Patch-LDA: a linear discriminant on whitened random patches (Coates et al., 2011; Hayes and Kanan, 2020)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from onepass.config import option
from onepass.errors import UsageError
from onepass.learner.augment import decode
from onepass.learner.batch import Batch
from onepass.learner.memory import Memory
from onepass.methods.patches import Patches
from onepass.methods.slda import SLDA, SLDAConfig
from onepass.methods.symmetric import oas

# OAS takes rows to be normally distributed; responses are not. On held-back images of both streams, from 100 images to
# 45,000 and from 800 features to 8,000, eight times its value was near the best (studies/never_forget). Products of
# responses have longer tails still.
TIMES_OAS = 8.0
TIMES_OAS_OF_PAIRS = 16.0
MOST = 0.8


@dataclass(frozen=True)
class PatchLDAConfig(SLDAConfig):
    filters: int = option(400, "patches that images are compared with; 8 features each", low=1)
    size: int = option(6, "side of a patch, in pixels", low=1)
    pool: int = option(2, "parts of each side that responses are averaged over", low=1)
    reach: float = option(
        0.65,
        "share of the side, from a part's middle, where responses count no more; 0: parts do not overlap",
        low=0,
    )
    threshold: float = option(0.25, "response below which there is none", low=0)
    first: int = option(1000, "images that filters are made from; until then they are kept", low=2)
    mirror: bool | None = option(
        None, "whether an image and its mirror image are the same to it; default: if they are to the augmentation"
    )
    root: bool = option(True, "take the square root of averaged responses")
    pairs: int = option(
        0,
        "main components of the responses around a place; products of any two of them are features too",
        low=0,
        since="0.2.0",
    )


class PatchLDA(SLDA):
    """Filters are patches of the first images, whitened. Averaged responses to them never change again, and a linear
    discriminant is estimated on them.

    z = sqrt((responses of the image + responses of its mirror image) / 2), averaged around the middles of its quarters
    and, with `pairs`, products of main components of the responses at a place, averaged likewise
    prediction: argmax over classes of z S^-1 m_c - m_c S^-1 m_c / 2
    """

    Config = PatchLDAConfig
    config: PatchLDAConfig
    needs_images = "patch-lda compares images with patches"
    ready: Tensor

    def setup(self) -> None:
        config = self.config
        shape, parts = self.problem.shape, (config.pool, config.reach)
        self.patches = Patches(shape, config.filters, config.size, *parts, config.threshold, config.pairs)
        mirror = config.mirror
        self.mirror = self.problem.augment == "colour" if mirror is None else mirror
        super().setup()
        self.register_buffer("ready", torch.tensor(False))
        self.warm_up = self.foundation = config.first
        self.kept = Memory(config.first, self.problem.shape, torch.uint8, seed=0)

    @property
    def width(self) -> int:
        return self.patches.width

    def estimated_shrinkage(self, correlations: Tensor, n: float) -> float:
        times = TIMES_OAS_OF_PAIRS if self.config.pairs else TIMES_OAS
        return min(MOST, times * oas(correlations, n))

    @torch.no_grad()
    def absorb(self, batch: Batch) -> Tensor:
        if self.ready:
            return super().absorb(batch)
        room = self.kept.capacity - len(self.kept)
        rows = torch.arange(len(batch), device=batch.y.device)
        now = batch[rows[:room]]
        self.kept.write(torch.arange(len(self.kept), len(self.kept) + len(now)), now)
        self._solved = None
        if len(batch) >= room:
            self.make_filters()
            if len(batch) > room:
                self.add(batch[rows[room:]])
        return torch.zeros((), device=self.device)

    def make_filters(self) -> None:
        """From the images kept so far, which are then counted and let go."""
        kept = self.kept.read(torch.arange(len(self.kept)))
        self.patches.fit(decode(kept.x), self.rng, self.mirror)
        self.ready.fill_(True)
        self.kept.filled = 0
        for part in torch.arange(len(kept)).split(self.chunk):
            self.add(kept[part])

    def add(self, batch: Batch, times: int = 1) -> None:
        if not self.ready:
            raise UsageError("Expected samples that were counted, but none are yet: remove them from `kept`.")
        super().add(batch, times)

    def features(self, x: Tensor) -> Tensor:
        z: Tensor = self.patches(x)
        if self.mirror:  # the same for both: what tells them apart is of no use to any class
            z = (z + self.patches(x.flip(3))) / 2
        if not self.config.root:
            return z
        averages, products = z.tensor_split([self.patches.averages], dim=1)
        return torch.cat([averages.sqrt(), products], dim=1)

    def scorer(self) -> Callable[[Tensor], Tensor]:
        if not self.ready and len(self.kept):
            early = copy.deepcopy(self)
            early.make_filters()
            return early.scorer()
        return super().scorer()
