"""The contrast of sixteen transforms that OCM and OnPro have, interpreted again: rows are taken one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.learner.batch import Batch

NEAR: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


def dimmed(x: Tensor) -> Tensor:
    """A view of each image that needs no draw."""
    return (x.flip(3) * 0.7) ** 2


def operators(x: Tensor) -> list[Tensor]:
    """Halves turned by 180 degrees (none, left, both, right), then the whole by 0, 90, 180 and 270."""
    left, right = x.chunk(2, dim=3)
    turned_left, turned_right = (half.flip(2).flip(3) for half in (left, right))
    pairs = ((left, right), (turned_left, right), (turned_left, turned_right), (left, turned_right))
    return [torch.rot90(torch.cat(pair, dim=3), k, (2, 3)) for pair in pairs for k in range(4)]


def tags(y: Tensor) -> list[tuple[int, int]]:
    """The label and the operator of every turned image."""
    return [(label, g) for g in range(16) for label in y.tolist()]


def likeness(u: Tensor, f: Tensor, r: int, scale: float) -> Tensor:
    u, f = F.normalize(u), F.normalize(f)
    return scale * (u @ f[:, r : r + u.shape[1]].T) + scale * (u @ u.T)


def costs(row: Tensor, temperature: float, without: int | None = None) -> Tensor:
    e = torch.exp((row - row.max()) / temperature)
    if without is not None:
        e = torch.where(torch.arange(len(row)) == without, 0.0, e)
    return -torch.log(e / (e.sum() + 1e-8) + 1e-8)


def same(labels: Sequence[tuple[Any, int]], i: int) -> list[int]:
    return [j for j, label in enumerate(labels) if label == labels[i]]


def new_term(s: Tensor, labels: Sequence[tuple[Any, int]], temperature: float) -> Tensor:
    n, total = len(s), s.new_zeros(())
    for i, row in enumerate(s):
        cost = costs(row, temperature, without=i)
        total = total + cost[(i + n // 2) % n] + 2 * cost[same(labels, i)].mean()
    return total / n


def kept_term(s: Tensor, labels: Sequence[tuple[Any, int]], temperature: float) -> Tensor:
    return torch.stack([costs(row, temperature)[same(labels, i)].mean() for i, row in enumerate(s)]).mean()


def turned_pair(batch: Batch) -> Tensor:
    """All transforms of all images, which are bytes or floats, and then an augmentation of each."""
    turned = torch.cat(operators(batch.x if batch.x.is_floating_point() else batch.x / 255))
    return torch.cat([turned, dimmed(turned)])


def nearest(loss: Tensor, candidates: Sequence[Tensor]) -> int:
    """Which of the candidates the loss is."""
    gaps = [abs(loss.item() - candidate.item()) for candidate in candidates]
    best = min(range(len(gaps)), key=gaps.__getitem__)
    torch.testing.assert_close(loss.detach(), candidates[best].detach(), **NEAR)
    return best
