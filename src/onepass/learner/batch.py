"""What travels between stream, memory and learner."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from onepass.errors import UsageError
from onepass.limits import LARGEST_VALUE


@dataclass(frozen=True)
class Task:
    """A stretch of the stream: its place (from 0) and the classes it brings."""

    index: int
    classes: tuple[int, ...]


@dataclass
class Batch:
    """Samples and their labels (n,) int64: images (n, channels, height, width), uint8 or float32 in [0, 1], or vectors
    (n, length), float32.

    Replayed batches know the memory slots they came from; `extra` holds the memory's further fields.
    """

    x: Tensor
    y: Tensor
    slots: Tensor | None = None
    extra: dict[str, Tensor] = field(default_factory=dict)
    _classes: tuple[int, ...] | None = field(default=None, repr=False)

    @property
    def classes(self) -> tuple[int, ...]:
        """The classes of the labels, sorted; of a batch that was moved to a device known without asking it."""
        return _distinct(self.y) if self._classes is None else self._classes

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, rows: Tensor) -> Batch:
        slots = None if self.slots is None else self.slots[rows]
        return Batch(self.x[rows], self.y[rows], slots, {name: value[rows] for name, value in self.extra.items()})

    def to(self, device: torch.device) -> Batch:
        """The same rows on a device, in a new Batch: what `keep` adds never reaches the caller's."""
        return Batch(self.x.to(device), self.y.to(device), self.slots, dict(self.extra), _distinct(self.y))

    def keep(self, **rows: Tensor) -> None:
        """Rows that `remember` will store in the memory's fields of the same names."""
        for name, value in rows.items():
            if len(value) != len(self):
                raise ValueError(f"keep({name}=...): {len(value)} rows for a batch of {len(self)}")
            self.extra[name] = value.detach()


def _distinct(y: Tensor) -> tuple[int, ...]:
    return tuple(sorted(set(y.tolist())))


def check_samples(x: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse what are no samples of this shape: images where it has three sides, else vectors."""
    images = len(shape) == 3
    what = "images" if images else "vectors"
    if not isinstance(x, Tensor):
        raise UsageError(f"expected {what} as a torch.Tensor, got {type(x).__name__}; torch.from_numpy makes one")
    if tuple(x.shape[1:]) != shape or x.dim() != len(shape) + 1:
        sides = ", ".join(map(str, shape))
        raise UsageError(f"expected {what} of shape (n, {sides}), got {tuple(x.shape)}")
    if images and x.dtype == torch.uint8:
        return
    if x.dtype != torch.float32:
        allowed = "torch.uint8 and torch.float32 in [0, 1]" if images else "torch.float32; .float() converts"
        raise UsageError(f"{what} of dtype {x.dtype}: allowed are {allowed}")
    if not x.numel():
        return
    low, high = (float(bound) for bound in x.aminmax())
    if images and not (low >= 0 and high <= 1):  # also true of NaN
        raise UsageError(f"float images from {low:g} to {high:g}: pixels must lie in [0, 1] and be no NaN")
    if not (low >= -LARGEST_VALUE and high <= LARGEST_VALUE):
        limits = f"{-LARGEST_VALUE:g} to {LARGEST_VALUE:g}"
        raise UsageError(
            f"vectors from {low:g} to {high:g}: values must lie within {limits} and be no NaN; replace missing ones "
            "first, and scale what is larger"
        )
