"""Sources of images: each file loads one, as uint8 tensors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Dataset:
    """Images (n, c, h, w) uint8 with labels 0..len(classes)-1, for training and for testing."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
