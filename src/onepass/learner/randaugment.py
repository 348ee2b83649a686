"""RandAugment (Cubuk et al., 2020): random operations one after the other, all of one strength, on float images."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.learner.augment import decode, encode, grey

STRONGEST = 30  # magnitudes are whole numbers from 0 to this


def randaugment(x: Tensor, rng: torch.Generator, *, operations: int, magnitude: int) -> Tensor:
    """So many of the 14 operations, each drawn for the whole batch, as torchvision's RandAugment does with a batch."""
    drawn = torch.randint(len(OPERATIONS), (operations,), generator=rng).tolist()
    signs = (2 * torch.randint(2, (operations,), generator=rng) - 1).tolist()
    for index, sign in zip(drawn, signs, strict=True):
        x = OPERATIONS[index](x, sign * magnitude / STRONGEST)
    return x


# Each takes images and a level from -1 to 1, and returns new images.


def identity(x: Tensor, level: float) -> Tensor:
    return x


def shear(x: Tensor, level: float, axis: int) -> Tensor:
    """Rows (axis 0) move by up to 0.3 of their place, counted from the top; columns (axis 1) likewise from the left."""
    shift = 0.3 * level * x.shape[2 + axis] / x.shape[3 - axis]
    if axis == 0:
        return _affine(x, (1.0, shift, shift), (0.0, 1.0, 0.0))
    return _affine(x, (1.0, 0.0, 0.0), (shift, 1.0, shift))


def translate(x: Tensor, level: float, axis: int) -> Tensor:
    """By up to 150/331 of the width (axis 0) or the height (axis 1), in whole pixels."""
    side = x.shape[3 - axis]
    shift = 2 * int(150 / 331 * side * level) / side
    return _affine(x, (1.0, 0.0, shift if axis == 0 else 0.0), (0.0, 1.0, shift if axis == 1 else 0.0))


def rotate(x: Tensor, level: float) -> Tensor:
    """By up to 30 degrees around the centre."""
    cos, sin, ratio = math.cos(math.pi / 6 * level), math.sin(math.pi / 6 * level), x.shape[2] / x.shape[3]
    return _affine(x, (cos, -sin * ratio, 0.0), (sin / ratio, cos, 0.0))


def _affine(x: Tensor, across: tuple[float, ...], down: tuple[float, ...]) -> Tensor:
    """The nearest pixel at the place that each output pixel looks at; black beyond the edges."""
    grid = F.affine_grid(torch.tensor([[across, down]]), [1, 1, *x.shape[2:]], align_corners=False).to(x)
    return F.grid_sample(x, grid.expand(len(x), -1, -1, -1), mode="nearest", align_corners=False)


def brightness(x: Tensor, level: float) -> Tensor:
    return _blend(torch.zeros_like(x), x, level)


def colour(x: Tensor, level: float) -> Tensor:
    return _blend(grey(x).expand_as(x), x, level) if x.shape[1] == 3 else x


def contrast(x: Tensor, level: float) -> Tensor:
    mean = (grey(x) if x.shape[1] == 3 else x).mean(dim=(1, 2, 3), keepdim=True)
    return _blend(mean.expand_as(x), x, level)


def sharpness(x: Tensor, level: float) -> Tensor:
    """Against the mean of each pixel, five times, and its eight neighbours; pixels at the edges stay."""
    if min(x.shape[2:]) < 3:
        return x
    smooth = x.clone()
    around = 9 * F.avg_pool2d(x, 3, stride=1)
    smooth[:, :, 1:-1, 1:-1] = (around + 4 * x[:, :, 1:-1, 1:-1]) / 13
    return _blend(smooth, x, level)


def _blend(poor: Tensor, x: Tensor, level: float) -> Tensor:
    """Away from the poor version, or towards it, by up to 0.9 of the difference."""
    return torch.lerp(poor, x, 1 + 0.9 * level).clamp_(0, 1)


def posterize(x: Tensor, level: float) -> Tensor:
    """The last up to four of a byte's eight bits are dropped."""
    return decode(encode(x) & (256 - 2 ** round(4 * abs(level))))


def solarize(x: Tensor, level: float) -> Tensor:
    """Pixels above a threshold, which the level lowers, are inverted."""
    return torch.where(x >= 1 - abs(level), 1 - x, x)


def autocontrast(x: Tensor, level: float) -> Tensor:
    """Each channel's darkest pixel becomes 0, its brightest 1."""
    low, high = x.amin(dim=(2, 3), keepdim=True), x.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low), x)


def equalize(x: Tensor, level: float) -> Tensor:
    """Each channel's histogram of bytes is flattened, by whole steps, as PIL does it; few pixels leave no step."""
    values = encode(x).flatten(2).long()
    counts = values.new_zeros(*values.shape[:2], 256).scatter_add_(2, values, torch.ones_like(values))
    last = counts.gather(2, values.amax(dim=2, keepdim=True))
    step = (values.shape[2] - last) // 255
    table = (counts.cumsum(dim=2) - counts + step // 2) // step.clamp(min=1)
    flat = torch.where(step > 0, table.clamp(max=255).gather(2, values), values)
    return decode(flat.to(torch.uint8)).view_as(x)


OPERATIONS: tuple[Callable[[Tensor, float], Tensor], ...] = (
    identity,
    partial(shear, axis=0),
    partial(shear, axis=1),
    partial(translate, axis=0),
    partial(translate, axis=1),
    rotate,
    brightness,
    colour,
    contrast,
    sharpness,
    posterize,
    solarize,
    autocontrast,
    equalize,
)
