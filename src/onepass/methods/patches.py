"""Responses of images to whitened patches: features that are made once, from a few images, and never change."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.methods.pairs import Pairs, local_side

PATCHES = 60_000  # from which the whitening is estimated
FLAT = (10 / 255) ** 2  # variance of a patch in which there is nothing to see
SEEN = 0.01  # largest value of a patch of one grey: a single pixel that is one step of 255 off gives 0.1
FULL = 0.95  # share of patches with anything to see that photographs have: those of CIFAR have 0.997
RIDGE = 0.1  # added to the whitening's eigenvalues
RESPONSES = 1_000_000  # numbers held at once: more do not fit in a processor's caches, and take longer


class Patches(nn.Module):
    """A matrix of filters, and what becomes of an image that is compared with them.

    p = (patch - its mean) / sqrt(its variance + c);  W = (cov p + 0.1)^-1/2;  r = f W (p - mean p), f = W p' / |W p'|
    max(0, r - t) and max(0, -r - t), averaged over cells of the image: places count less, the farther from its middle

    After these come products of them, if `pairs` of their components are asked for.
    """

    filters: Tensor  # (values of a patch, number of filters), with the whitening in them
    offsets: Tensor
    cells: Tensor  # (cells, places): how much each place counts in each cell's average

    def __init__(
        self, shape: tuple[int, ...], n: int, size: int, pool: int, reach: float, threshold: float, pairs: int = 0
    ) -> None:
        super().__init__()
        self.shape, self.n, self.threshold = shape, n, threshold
        channels, height, width = shape
        self.size = size = min(size, height, width)
        self.register_buffer("filters", torch.zeros(channels * size**2, n))
        self.register_buffer("offsets", torch.zeros(n))
        self.sides = height - size + 1, width - size + 1
        self.register_buffer("cells", _cells(*self.sides, pool, reach), persistent=False)
        local = _cells(local_side(self.sides[0]), local_side(self.sides[1]), pool, reach)
        self.pairs = Pairs(2 * n, min(pairs, 2 * n), local) if pairs else None

    @property
    def averages(self) -> int:
        """Features that are averages of responses: the first of them."""
        return 2 * self.n * len(self.cells)

    @property
    def width(self) -> int:
        """Features of an image."""
        return self.averages + (self.pairs.width if self.pairs else 0)

    def rows(self, images: Tensor) -> Tensor:
        """Every patch of every image, without contrast: (images x places, values)."""
        size = self.size
        patches = images.unfold(2, size, 1).unfold(3, size, 1).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(0, 2)
        patches = patches - patches.mean(dim=1, keepdim=True)
        return patches.div_((patches.pow(2).mean(dim=1, keepdim=True) + FLAT).sqrt_())

    def drawn(self, images: Tensor, rng: torch.Generator, seen_alone: bool = False) -> Tensor:
        """Patches drawn from these images, as many from each: of all, or of those in which there is anything to see."""
        each = -(-PATCHES // len(images))
        some = []
        for image in images.split(1):
            rows = self.rows(image)
            if seen_alone:
                rows = rows[_seen(rows)]
            if len(rows):
                some.append(rows[torch.randint(len(rows), (min(each, len(rows)),), generator=rng).to(rows.device)])
        return torch.cat(some)

    def fit(self, images: Tensor, rng: torch.Generator, mirrored: bool) -> None:
        """Make the filters of patches drawn from these images, and of their mirror images too where those count.

        Patches of one grey all make the same filter. Where they are many (drawings on white), none is taken. Where
        there is nothing else, filters are made from noise, which has something of all that may come.
        """
        patches = self.drawn(images, rng)
        seen = _seen(patches)
        if not seen.any():
            patches = self.drawn(torch.rand(images.shape, generator=rng).to(images), rng)
        elif seen.float().mean() < FULL:
            patches = self.drawn(images, rng, seen_alone=True)
        if mirrored:
            turned = patches.view(-1, self.shape[0], self.size, self.size).flip(3).flatten(1)
            patches = torch.cat([patches, turned])
        middle = patches.mean(dim=0)
        away = patches - middle
        values, vectors = torch.linalg.eigh(away.T @ away / len(away))
        whitening = vectors / (values.clamp(min=0) + RIDGE).sqrt() @ vectors.T
        chosen = torch.randint(len(away), (self.n,), generator=rng).to(away.device)
        filters = F.normalize(away[chosen] @ whitening) @ whitening
        self.filters.copy_(filters.T)
        self.offsets.copy_(-(filters @ middle))
        if self.pairs:
            self.pairs.fit(self._maps(*self._halves(self._responses(part))) for part in self._parts(images))

    def forward(self, images: Tensor) -> Tensor:
        """(images, features): for each cell the filters' positive parts, then for each cell their negative parts."""
        if torch.compiler.is_compiling():  # to be exported: for any number of images, by operators that all know
            return self._described(self._convolved(images))
        return torch.cat([self._described(self._responses(part)) for part in self._parts(images)])

    def _parts(self, images: Tensor) -> Sequence[Tensor]:
        parts: Sequence[Tensor] = images.split(max(1, RESPONSES // (len(self.cells.T) * self.n)))
        return parts

    def _responses(self, images: Tensor) -> Tensor:
        """(images, places, filters)"""
        return torch.addmm(self.offsets, self.rows(images), self.filters).view(len(images), -1, self.n)

    def _convolved(self, images: Tensor) -> Tensor:
        """The same by a convolution: slower, as contrast is taken out of many responses instead of few patches."""
        kernels = (self.filters - self.filters.mean(dim=0)).T.reshape(self.n, -1, self.size, self.size)
        mean = F.avg_pool2d(images, self.size, stride=1).mean(dim=1, keepdim=True)
        variance = F.avg_pool2d(images * images, self.size, stride=1).mean(dim=1, keepdim=True) - mean**2
        r = F.conv2d(images, kernels) / (variance.clamp(min=0) + FLAT).sqrt()
        return r.flatten(2).transpose(1, 2) + self.offsets

    def _described(self, r: Tensor) -> Tensor:
        halves = self._halves(r)
        averages = torch.cat([(self.cells @ half - self.threshold).flatten(1) for half in halves], dim=1).clamp(min=0)
        return torch.cat([averages, self.pairs(self._maps(*halves))], dim=1) if self.pairs else averages

    def _halves(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """max(0, r - t) + t and max(0, -r - t) + t: t is taken off after averaging, from fewer numbers."""
        return r.clamp(min=self.threshold), -r.clamp(max=-self.threshold)

    def _maps(self, above: Tensor, below: Tensor) -> Tensor:
        maps: Tensor = torch.cat([above, below], dim=2).transpose(1, 2).unflatten(2, self.sides)
        return maps - self.threshold


def _seen(patches: Tensor) -> Tensor:
    """Which of these, without contrast, have anything to see."""
    return patches.abs().amax(dim=1) > SEEN


def _cells(height: int, width: int, pool: int, reach: float) -> Tensor:
    """Averages over parts of a height x width map, as a matrix.

    With a reach, parts overlap, and the weight of a place falls in a straight line from a part's middle. So an object
    that moves a little changes the averages a little. Without, they are those of adaptive pooling.
    """
    if torch.empty(0).is_meta:  # only sizes are asked for; torch would import a compiler to find them out
        return torch.empty(pool * pool, height * width)
    if not reach:
        one_hot = torch.eye(height * width).view(-1, 1, height, width)
        return F.adaptive_avg_pool2d(one_hot, pool).flatten(1).T.contiguous()
    weights = torch.einsum("ay,bx->abyx", _weights(height, pool, reach), _weights(width, pool, reach))
    return weights.reshape(pool * pool, -1)


def _weights(side: int, pool: int, reach: float) -> Tensor:
    """(parts, places) of one side; a part without a place in its reach takes the nearest."""
    middles, places = (torch.arange(pool) + 0.5) / pool, (torch.arange(side) + 0.5) / side
    weights = (1 - (places - middles[:, None]).abs() / max(reach, 1 / side)).clamp(min=0)
    return weights / weights.sum(dim=1, keepdim=True)
