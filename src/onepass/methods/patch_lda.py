"""Patch-LDA: a linear discriminant on whitened random patches (Coates et al., 2011; Hayes and Kanan, 2020)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.config import option
from onepass.errors import UsageError
from onepass.learner.augment import decode
from onepass.learner.batch import Batch
from onepass.learner.memory import Memory
from onepass.methods.slda import SLDA, SLDAConfig

PATCHES = 60_000  # from which the whitening is estimated
FLAT = (10 / 255) ** 2  # variance of a patch in which there is nothing to see
AT_ONCE = 8  # images whose responses are held at once: more megabytes take longer to get than to fill
RIDGE = 0.1  # added to the whitening's eigenvalues


@dataclass(frozen=True)
class PatchLDAConfig(SLDAConfig):
    filters: int = option(400, "patches that images are compared with", low=1)
    size: int = option(6, "side of a patch, in pixels", low=1)
    pool: int = option(2, "parts of each side that responses are averaged over", low=1)
    threshold: float = option(0.25, "response below which there is none", low=0)
    first: int = option(1000, "images that filters are made from; until then they are kept", low=2)
    flip: bool = option(False, "count each image and its mirror image, and predict by both: twice the work")


class PatchLDA(SLDA):
    """Filters are patches of the first images, whitened. Responses to them, pooled, never change again, and a linear
    discriminant is estimated on them.

    p = (patch - its mean) / sqrt(its variance + c);  W = (cov p + 0.1)^-1/2;  r = f W (p - mean p), f = W p' / |W p'|
    z = max(0, r - t) and max(0, -r - t), averaged over the image's quarters
    prediction: argmax over classes of z S^-1 m_c - m_c S^-1 m_c / 2
    """

    Config = PatchLDAConfig
    config: PatchLDAConfig
    needs_images = "patch-lda compares images with patches"
    kernels: Tensor
    offsets: Tensor
    scale: Tensor
    ready: Tensor

    def setup(self) -> None:
        channels, height, width = self.problem.shape
        size = min(self.config.size, height, width)
        super().setup()
        self.register_buffer("kernels", torch.zeros(self.config.filters, channels, size, size))
        self.register_buffer("offsets", torch.zeros(self.config.filters))
        self.register_buffer("scale", torch.ones(self.width))
        self.register_buffer("ready", torch.tensor(False))
        self.warm_up = self.foundation = self.config.first
        self.kept = Memory(self.config.first, self.problem.shape, torch.uint8, seed=0)

    @property
    def width(self) -> int:
        return 2 * self.config.filters * self.config.pool**2

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
        images = decode(kept.x)
        patches = self._patches(images)
        middle = patches.mean(dim=0)
        away = patches - middle
        values, vectors = torch.linalg.eigh(away.T @ away / len(away))
        whitening = vectors / (values.clamp(min=0) + RIDGE).sqrt() @ vectors.T
        chosen = torch.randint(len(away), (len(self.kernels),), generator=self.rng).to(away.device)
        directions = F.normalize(away[chosen] @ whitening) @ whitening
        self.offsets.copy_(directions @ middle)
        self.kernels.copy_((directions - directions.mean(dim=1, keepdim=True)).view_as(self.kernels))
        features = torch.cat([self.features(part) for part in images.split(self.chunk)])
        self.scale.copy_(features.std(dim=0, correction=0).clamp(min=1e-6))
        self.ready.fill_(True)
        self.kept.filled = 0
        for part in torch.arange(len(images)).split(self.chunk):
            self.add(Batch(kept.x[part], kept.y[part]))

    def _patches(self, images: Tensor) -> Tensor:
        """Some of their patches, without contrast, as rows."""
        _, channels, size, _ = self.kernels.shape
        n, _, height, width = images.shape
        places = n * (height - size + 1) * (width - size + 1)
        drawn = torch.randint(places, (min(PATCHES, places),), generator=self.rng)
        image, place = drawn // (places // n), drawn % (places // n)
        top, left = place // (width - size + 1), place % (width - size + 1)
        steps = torch.arange(size)
        rows = (top[:, None] + steps)[:, None, :, None]
        columns = (left[:, None] + steps)[:, None, None, :]
        index = image[:, None, None, None], torch.arange(channels)[:, None, None], rows, columns
        patches = images[tuple(part.to(images.device) for part in index)].flatten(1)
        patches = patches - patches.mean(dim=1, keepdim=True)
        return patches / (patches.pow(2).mean(dim=1, keepdim=True) + FLAT).sqrt()

    def add(self, batch: Batch, times: int = 1) -> None:
        if not self.ready:
            raise UsageError("Expected samples that were counted, but none are yet: remove them from `kept`.")
        if self.config.flip:
            x = decode(batch.x)
            batch = Batch(torch.cat([x, x.flip(3)]), batch.y.repeat(2))
        super().add(batch, times)

    def features(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():  # to be exported: for any number of images
            return self._responses(x) / self.scale
        return torch.cat([self._responses(part) for part in x.split(AT_ONCE)]) / self.scale

    def _responses(self, x: Tensor) -> Tensor:
        size = self.kernels.shape[-1]
        mean = F.avg_pool2d(x, size, stride=1).mean(dim=1, keepdim=True)
        variance = F.avg_pool2d(x * x, size, stride=1).mean(dim=1, keepdim=True) - mean**2
        r = F.conv2d(x, self.kernels).div_((variance.clamp(min=0) + FLAT).sqrt()).sub_(self.offsets[:, None, None])
        pool, t = self.config.pool, self.config.threshold
        above = F.adaptive_avg_pool2d(r.sub(t).relu_(), pool)
        below = F.adaptive_avg_pool2d(r.neg_().sub_(t).relu_(), pool)
        return torch.cat([above, below], dim=1).flatten(1)

    def scorer(self) -> Callable[[Tensor], Tensor]:
        if not self.ready and len(self.kept):
            early = copy.deepcopy(self)
            early.make_filters()
            return early.scorer()
        score = super().scorer()
        return (lambda x: score(x) + score(x.flip(3))) if self.config.flip else score
