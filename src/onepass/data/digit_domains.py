"""Domains made of the digits that ship with onepass: each has all of them, changed in a way of its own.

Pixels are computed with whole numbers, so that they are the same bytes on every machine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from onepass.data import BadImages, Dataset, digits
from onepass.seeds import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEGREES = (0, 15, 30, 45, 60, 75)  # with 180 among them, 6 and 9 would be one sign
ORDERS = 5  # of pixels, the first as they are
ONE = 256  # parts of a pixel in which places are told

Change = Callable[[Tensor], Tensor]


def find_rotated(place: Path, image_size: int = 0, bad_images: BadImages = "skip") -> Dataset:
    return with_domains({f"{angle} degrees": partial(rotated, degrees=angle) for angle in DEGREES})


def find_inverted(place: Path, image_size: int = 0, bad_images: BadImages = "skip") -> Dataset:
    return with_domains({"white on black": lambda x: x, "black on white": lambda x: 255 - x})


def find_permuted(place: Path, image_size: int = 0, bad_images: BadImages = "skip") -> Dataset:
    return with_domains({f"order {number}": partial(permuted, number=number) for number in range(ORDERS)})


def with_domains(changes: Mapping[str, Change]) -> Dataset:
    """The digits once for each change, which is a domain; the same images are for testing in all of them."""
    data, digest = digits.load(), hashlib.sha256()
    x, x_test = (torch.cat([change(images) for change in changes.values()]) for images in (data.x, data.x_test))
    y, y_test = (labels.repeat(len(changes)) for labels in (data.y, data.y_test))
    domain, domain_test = (
        torch.arange(len(changes)).repeat_interleave(len(labels)) for labels in (data.y, data.y_test)
    )
    for tensor in (x, domain, y, x_test, domain_test, y_test):
        digest.update(tensor.numpy().data)
    return Dataset(x, y, x_test, y_test, data.classes, digest.hexdigest(), domain, domain_test, tuple(changes))


def rotated(x: Tensor, degrees: int) -> Tensor:
    """Square images turned counterclockwise about their middle, between pixels by bilinear weights; 0 from outside."""
    side = x.shape[-1]
    cos, sin = (round(function(math.radians(degrees)) * ONE) for function in (math.cos, math.sin))
    rows, columns = np.indices((side, side)) * 2 - (side - 1)  # in half pixels from the middle
    row, part_down = _place(cos * rows + sin * columns, side)
    column, part_right = _place(cos * columns - sin * rows, side)
    framed = np.pad(x.numpy().astype(np.int64), [(0, 0)] * (x.ndim - 2) + [(1, 2), (1, 2)])
    total = np.zeros(x.shape, dtype=np.int64)
    for down, by_row in ((0, ONE - part_down), (1, part_down)):
        for right, by_column in ((0, ONE - part_right), (1, part_right)):
            total += framed[..., row + down, column + right] * by_row * by_column
    return torch.from_numpy(((total + ONE * ONE // 2) // (ONE * ONE)).astype(np.uint8))


def _place(offset: NDArray[np.int64], side: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The pixel before a place and the parts of a pixel from there on, in an image with a frame of zeros."""
    place = offset // 2 + (side - 1) * ONE // 2 + ONE
    return np.divmod(place.clip(0, (side + 1) * ONE), ONE)


def permuted(x: Tensor, number: int) -> Tensor:
    """The same pixels in another order; number 0 is the order they have."""
    if number == 0:
        return x
    order = torch.randperm(x[0].numel(), generator=generator(0, "digits", "order", number))
    return x.flatten(1)[:, order].view(x.shape)
