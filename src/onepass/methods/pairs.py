"""Which responses come together: products of the main components of an image's local responses."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NEAR = 3  # places of each side that responses are averaged over, so that what is beside each other counts as together
STEP = 2
FLAT = 1e-3  # added to a component's variance: what hardly varies is not blown up


class Pairs(nn.Module):
    """Components of the responses around each place, and the products of any two of them, averaged over cells.

    u = sqrt of responses averaged over 3x3 places;  v = (u - mean u) projected on the axes of largest variance
    features: v_a v_b for all a <= b, averaged over cells of the image
    """

    axes: Tensor  # (responses of a place, components)
    middle: Tensor
    cells: Tensor  # (cells, places)
    upper: Tensor  # places of a <= b in a flat square

    def __init__(self, responses: int, n: int, cells: Tensor) -> None:
        super().__init__()
        self.n = n
        self.register_buffer("axes", torch.zeros(responses, n))
        self.register_buffer("middle", torch.zeros(responses))
        self.register_buffer("cells", cells, persistent=False)
        a, b = torch.triu_indices(n, n)
        self.register_buffer("upper", a * n + b, persistent=False)

    @property
    def width(self) -> int:
        return len(self.cells) * len(self.upper)

    @torch.no_grad()
    def fit(self, maps: Iterable[Tensor]) -> None:
        """Find the components from the responses to some images."""
        n, total, squares = 0, torch.zeros_like(self.middle), self.middle.new_zeros(len(self.axes), len(self.axes))
        for u in map(_local, maps):
            rows = u.flatten(0, 1)
            n, total = n + len(rows), total + rows.sum(dim=0)
            squares.addmm_(rows.T, rows)
        self.middle.copy_(total / n)
        values, vectors = torch.linalg.eigh(squares / n - torch.outer(self.middle, self.middle))
        largest = slice(len(values) - self.n, None)
        self.axes.copy_((vectors[:, largest] / (values[largest].clamp(min=0) + FLAT).sqrt()).flip(1))

    def forward(self, maps: Tensor) -> Tensor:
        """Maps of responses that are none below 0, (images, responses, height, width), to (images, features)."""
        v = ((_local(maps) - self.middle) @ self.axes)[:, None]
        products = (v * self.cells[:, :, None]).transpose(2, 3) @ v
        return products.flatten(2).index_select(2, self.upper).flatten(1)


def local_side(side: int) -> int:
    """Of maps of this side, after averaging."""
    return (side - min(NEAR, side)) // STEP + 1


def _local(maps: Tensor) -> Tensor:
    """(images, places, responses)"""
    near = [min(NEAR, side) for side in maps.shape[2:]]
    return F.avg_pool2d(maps, near, STEP).clamp(min=0).sqrt().flatten(2).transpose(1, 2)
