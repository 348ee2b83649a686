"""What travels between stream, memory and learner."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from onepass.errors import UsageError


@dataclass(frozen=True)
class Task:
    """A stretch of the stream: its place (from 0) and the classes it brings."""

    index: int
    classes: tuple[int, ...]


@dataclass
class Batch:
    """Images (n, channels, height, width), uint8 or float32 in [0, 1], and labels (n,) int64.

    Replayed batches know the memory slots they came from; `extra` holds the memory's further fields.
    """

    x: Tensor
    y: Tensor
    slots: Tensor | None = None
    extra: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, rows: Tensor) -> Batch:
        slots = None if self.slots is None else self.slots[rows]
        return Batch(self.x[rows], self.y[rows], slots, {name: value[rows] for name, value in self.extra.items()})

    def to(self, device: torch.device) -> Batch:
        """The same rows on a device, in a new Batch: what `keep` adds never reaches the caller's."""
        return Batch(self.x.to(device), self.y.to(device), self.slots, dict(self.extra))

    def keep(self, **rows: Tensor) -> None:
        """Rows that `remember` will store in the memory's fields of the same names."""
        for name, value in rows.items():
            if len(value) != len(self):
                raise ValueError(f"keep({name}=...): {len(value)} rows for a batch of {len(self)}")
            self.extra[name] = value.detach()


def check_images(x: Tensor, shape: tuple[int, int, int]) -> None:
    """Refuse what are no images of this shape."""
    if not isinstance(x, Tensor):
        raise UsageError(f"expected images as a torch.Tensor, got {type(x).__name__}; torch.from_numpy makes one")
    if x.dim() != 4 or tuple(x.shape[1:]) != shape:
        sides = ", ".join(map(str, shape))
        raise UsageError(f"expected images of shape (n, {sides}), got {tuple(x.shape)}")
    if x.dtype == torch.uint8:
        return
    if x.dtype != torch.float32:
        raise UsageError(f"images of dtype {x.dtype}: allowed are torch.uint8 and torch.float32 in [0, 1]")
    if x.numel():
        low, high = (float(bound) for bound in x.aminmax())
        if not (low >= 0 and high <= 1):  # also true of NaN
            raise UsageError(f"float images from {low:g} to {high:g}: pixels must lie in [0, 1] and be no NaN")
