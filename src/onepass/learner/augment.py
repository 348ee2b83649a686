"""Images as bytes and as floats, and the random augmentations of a batch that learners train on.

An augmentation takes a float batch, images (N, C, H, W) in [0, 1] or vectors (N, D), and a CPU generator and returns a
new batch like it. Each sample gets its own draw, made on the CPU so that a CPU run and a GPU run see the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from onepass.config import unknown
from onepass.errors import UsageError
from onepass.names import import_path

Augment = Callable[[Tensor, torch.Generator], Tensor]

NOISE = 0.1  # of a standard deviation
ATTEMPTS = 10  # boxes tried per image before the centre crop, as in torchvision
MAX_ASPECT = 4 / 3  # and 3/4 on the other side
JITTER = np.array([[0.4], [0.4], [0.4], [0.1]], dtype=np.float32)  # brightness, contrast, saturation, hue


def encode(x: Tensor) -> Tensor:
    """Floats in [0, 1] as the nearest of 256 bytes; bytes pass through."""
    return x if x.dtype == torch.uint8 else x.mul(255).round_().clamp_(0, 255).to(torch.uint8)


def decode(x: Tensor) -> Tensor:
    """Bytes as float32 in [0, 1], undone exactly by ``encode``; floats pass through."""
    return x if x.is_floating_point() else x.to(torch.float32).div_(255)


def colour(x: Tensor, generator: torch.Generator) -> Tensor:
    """The paper's augmentation: crop, flip, colour jitter, grayscale; with one channel, crop and flip only."""
    if x.shape[1] not in (1, 3):
        raise ValueError(
            f"augmentation colour: expected 3 channels (or 1: crop and flip only), got {x.shape[1]}; try digits or none"
        )
    box = draw_boxes(len(x), x.shape[2], x.shape[3], (0.2, 1.0), generator)
    flip = torch.rand(len(x), generator=generator) < 0.5
    view = crop(x, box, flip)
    return _layout_of(x, view.clamp_(0, 1) if x.shape[1] == 1 else _recolour(view, generator))


def digits(x: Tensor, generator: torch.Generator, scale: tuple[float, float] = (0.6, 1.0)) -> Tensor:
    """A crop and nothing else: a mirrored digit is another sign, and a small one needs most of its pixels."""
    box = draw_boxes(len(x), x.shape[2], x.shape[3], scale, generator)
    return _layout_of(x, crop(x, box, torch.zeros(len(x), dtype=torch.bool)).clamp_(0, 1))


def noise(x: Tensor, generator: torch.Generator) -> Tensor:
    """Gaussian noise, a tenth of each value's standard deviation in the batch; images stay in [0, 1]."""
    drawn = torch.randn(x.shape, generator=generator).to(x)
    noisy = x + NOISE * x.std(dim=0, correction=0) * drawn
    return noisy.clamp_(0, 1) if x.dim() == 4 else noisy


AUGMENTATIONS: dict[str, Augment | None] = {"colour": colour, "digits": digits, "noise": noise, "none": None}
FOR_VECTORS = ("noise", "none")


def check_augmentation(name: str, images: bool) -> None:
    """Refuse names that there are not; a path, MODULE:FUNCTION, is not imported here."""
    if not isinstance(name, str):
        raise UsageError(f"augment={name!r}: expected a name or MODULE:FUNCTION")
    if ":" not in name and name not in AUGMENTATIONS:
        raise unknown("augmentation", name, AUGMENTATIONS, "one of your own is MODULE:FUNCTION; ours")
    if not images and ":" not in name and name not in FOR_VECTORS:
        raise UsageError(f"augmentation {name!r} is of images: vectors have {' or '.join(FOR_VECTORS)}")


def augmentation(name: str) -> Augment | None:
    """The augmentation of this name, or the function at MODULE:FUNCTION."""
    if ":" not in name:
        return AUGMENTATIONS[name]
    found = import_path(name, "MODULE:FUNCTION")
    if not callable(found):
        raise UsageError(f"augmentation {name!r}: expected a function of a batch and a torch.Generator, got {found!r}")
    return found  # type: ignore[no-any-return]  # callable: that is all that can be known


def draw_boxes(
    n: int, height: int, width: int, scale: tuple[float, float], generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, left, height and width (int64, each (n,)) of crops drawn as torchvision's RandomResizedCrop draws them.

    Area is uniform in ``scale`` times the image, aspect log-uniform in 3/4..4/3, and a box that does not fit is drawn
    again: on a square image few boxes are nearly as large as the image.
    """
    # in numpy: on arrays this small the cost is the calls, and torch's are dearer
    u = torch.rand(n, 2 * ATTEMPTS + 2, generator=generator, dtype=torch.float64).numpy()
    area, aspect, corner = u[:, :ATTEMPTS], u[:, ATTEMPTS:-2], u[:, -2:].T
    side = np.sqrt(height * width * (scale[0] + (scale[1] - scale[0]) * area))
    stretch = np.exp((aspect - 0.5) * math.log(MAX_ASPECT))  # the root of the aspect
    sides = np.rint([side / stretch, side * stretch])
    image = np.array([[height], [width]])
    fits = np.all((sides > 0) & (sides <= image[:, :, None]), axis=0)
    found = fits.any(1)
    centre = [[min(height, round(width * MAX_ASPECT))], [min(width, round(height * MAX_ASPECT))]]
    size = np.where(found, sides[:, np.arange(n), fits.argmax(1)], centre)
    room = image - size
    start = np.floor(np.where(found, corner * (room + 1), room / 2))
    top, left, h, w = torch.from_numpy(np.concatenate([start, size]).astype(np.int64))
    return top, left, h, w


def crop(x: Tensor, box: tuple[Tensor, Tensor, Tensor, Tensor], flip: Tensor) -> Tensor:
    """Each image's box resized to the whole image, mirrored where ``flip``; bilinear, in one sampling.

    Rounding may leave [0, 1] by an ulp: callers clamp when they are done.
    """
    if not x.is_floating_point():
        raise ValueError(f"expected a float batch in [0, 1], got {x.dtype}; decode(x) makes one")
    n, _, height, width = x.shape
    top, left, h, w = box
    across = _positions(left, w, width)
    across = np.where(flip.numpy()[:, None], across[:, ::-1], across)
    xs = torch.from_numpy(across).to(x)[:, None, :].expand(n, height, width)
    ys = torch.from_numpy(_positions(top, h, height)).to(x)[:, :, None].expand(n, height, width)
    grid = torch.stack([xs, ys], 1).movedim(1, -1)  # (N, H, W, 2), left as planes: interleaving takes twice as long
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _positions(start: Tensor, length: Tensor, size: int) -> NDArray[np.float32]:
    """Where along one axis each of ``size`` output pixels looks, (N, size), in grid_sample's -1..1."""
    first, extent = start.numpy()[:, None], length.numpy()[:, None]
    centres = np.arange(0.5, size) / size
    # a crop knows nothing of its surroundings: its outermost pixels extend to its edge
    inside = np.minimum(np.maximum(extent * centres, 0.5), extent - 0.5)
    return ((first + inside) * (2 / size) - 1).astype(np.float32)


def _recolour(x: Tensor, generator: torch.Generator) -> Tensor:
    """Jitter with probability 0.8, then grayscale with 0.2, in place; images not chosen get neutral parameters."""
    u = torch.rand(6, len(x), generator=generator).numpy()
    change = JITTER * (2 * u[:4] - 1) * (u[4] < 0.8)
    drawn = np.concatenate([1 + change[:3], change[3:], u[5:] >= 0.2], dtype=np.float32)
    *parameters, keep = torch.from_numpy(drawn).to(x)[:, :, None, None, None].unbind()
    steps = (brightness_, contrast_, saturation_, hue_)
    for step in torch.randperm(4, generator=generator).tolist():
        steps[step](x, parameters[step])
    return saturation_(x, keep)


def brightness_(x: Tensor, factor: Tensor) -> Tensor:
    """Each image times its factor (N, 1, 1, 1), in place."""
    return x.mul_(factor).clamp_(max=1)


def contrast_(x: Tensor, factor: Tensor) -> Tensor:
    """Each image blended with its mean grey by its factor (N, 1, 1, 1), in place; 0 is flat, 1 the image."""
    mean = grey(x.mean((2, 3), keepdim=True))
    return x.mul_(factor).add_(mean * (1 - factor)).clamp_(0, 1)


def saturation_(x: Tensor, factor: Tensor) -> Tensor:
    """Each image blended with its grey version by its factor (N, 1, 1, 1), in place; 0 is grayscale, 1 the image."""
    return x.lerp_(grey(x), 1 - factor).clamp_(0, 1)


def grey(x: Tensor) -> Tensor:
    """The luma (N, 1, H, W) of RGB images, by weights that sum to one."""
    red, green, blue = x.chunk(3, 1)
    return (red * 0.299).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def hue_(x: Tensor, shift: Tensor) -> Tensor:
    """Each image's HSV hue turned by its shift (N, 1, 1, 1), a part of a full turn from -1/6 to 1/6, in place.

    With red at 0 on a circle of six sectors, a pixel is 1 + (g + b - r - low) / chroma sectors away from red, on the
    side that the sign of g - b tells. On the way back a channel is full up to one sector away from its own hue (red 0,
    green 2, blue -2), gone from two, and linear between. So neither way needs a branch per sector.
    """
    red, green, blue = x.chunk(3, 1)
    low = x.amin(1, keepdim=True)
    chroma = x.amax(1, keepdim=True).sub_(low)
    circle = (green - red).add_(blue - low).div_(chroma.clamp(min=torch.finfo(x.dtype).tiny)).add_(1)
    circle.copysign_(green - blue)
    torch.add(circle, 6 * shift - x.new_tensor([0, 2, -2]).view(3, 1, 1), out=x)
    x.abs_().sub_(3).abs_().clamp_(1, 2)  # six sectors away is back again; 1 is gone, 2 is full
    return torch.addcmul(low.sub_(chroma), x, chroma, out=x)


def _layout_of(x: Tensor, view: Tensor) -> Tensor:
    """``view`` in the memory format of ``x``."""
    channels_last = x.is_contiguous(memory_format=torch.channels_last)
    return view.contiguous(memory_format=torch.channels_last) if channels_last else view
