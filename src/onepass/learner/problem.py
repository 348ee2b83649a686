"""What is to be learned."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from onepass.errors import UsageError
from onepass.learner.augment import check_augmentation

MOST_CLASSES = 10_000_000  # rows of a head; a number beyond is a mistake, and would take all memory


def _count(value: Any) -> int:
    number = operator.index(value)
    if number < 1:
        raise ValueError(number)
    return number


@dataclass(frozen=True)
class Problem:
    """What is to be learned: the number of classes (more may come: `grow`), the shape of a sample, its augmentation.

    A sample of shape (channels, height, width) is an image, bytes or floats in [0, 1]. One of any other shape, such as
    (512,), is a vector of floats.
    """

    n_classes: int
    shape: tuple[int, ...]
    augment: str = "none"
    n_tasks: int | None = None

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "shape", tuple(_count(side) for side in self.shape))
        except (TypeError, ValueError):
            raise UsageError(
                f"shape={self.shape!r}: expected (channels, height, width) for images, (length,) for vectors"
            ) from None
        if not 1 <= len(self.shape) <= 3:
            raise UsageError(f"shape={self.shape!r}: expected one to three sides, got {len(self.shape)}")
        check_augmentation(self.augment, self.images)
        if isinstance(self.n_classes, int) and self.n_classes > MOST_CLASSES:
            raise UsageError(f"n_classes={self.n_classes}: at most {MOST_CLASSES:,} are possible")
        for name in ("n_classes", "n_tasks"):
            value = getattr(self, name)
            if name == "n_tasks" and value is None:
                continue
            try:
                object.__setattr__(self, name, _count(value))
            except (TypeError, ValueError):
                raise UsageError(f"{name}={value!r}: must be a whole number of at least 1") from None

    @property
    def images(self) -> bool:
        """Whether samples are images; otherwise they are vectors."""
        return len(self.shape) == 3
