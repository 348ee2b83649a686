"""Whatever people have as samples, as one tensor: images as bytes (n, channels, side, side), vectors as float32 (n, d).

Images of any size become squares as the readers of data make them: upright, on white where they are transparent, the
shorter side scaled, the longer side cut off evenly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from onepass.data.images import BadImage, decode, rgb, square, upright
from onepass.errors import UsageError
from onepass.limits import LARGEST_VALUE

CHANNELS = (1, 3, 4)  # grey, colours, colours and transparency
LARGEST_SIDE = 1024  # of what is learned


class BadSample(UsageError):
    """One sample of several cannot be read: its place among them, and why."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(f"sample {place}: {reason}")
        self.place, self.reason = place, reason


def is_loader(x: Any) -> bool:
    """Whether these are batches to go through."""
    return isinstance(x, torch.utils.data.DataLoader)


def holds_images(x: Any) -> bool:
    """Whether samples are images: arrays of three or four sides, pictures, paths; otherwise they are vectors."""
    if isinstance(x, (Tensor, np.ndarray)) and x.dtype != object and not _words(x):
        return x.ndim in (3, 4)
    if hasattr(x, "columns") or hasattr(x, "tocsr"):  # a table, a sparse matrix
        return False
    first = next(iter(x), None) if isinstance(x, Sequence | np.ndarray) else None
    return isinstance(first, str | Path | Image.Image) or (
        isinstance(first, (Tensor, np.ndarray)) and first.ndim in (2, 3)
    )


def _words(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind in "US"


def image_tensor(x: Any, shape: tuple[int, ...]) -> Tensor:
    """Images in any form as bytes of the shape (channels, height, width) that a learner takes."""
    if isinstance(x, (Tensor, np.ndarray)) and x.dtype != object and not _words(x):
        return _from_array(x, shape)
    if isinstance(x, str | Path | Image.Image | Mapping) or not isinstance(x, Iterable):
        raise UsageError(f"Expected several images, got one {type(x).__name__}. Put it in a list.")
    rows = []
    for place, item in enumerate(x):
        try:
            rows.append(one_image(item, shape))
        except (BadImage, UsageError) as error:
            raise BadSample(place, f"{item}: {error}" if isinstance(item, str | Path) else str(error)) from error
    if not rows:
        raise UsageError("Expected at least one image, got none.")
    return torch.from_numpy(np.stack(rows))


def one_image(item: Any, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """A path, a picture, the bytes of an image file, or an array of one image."""
    if isinstance(item, (Tensor, np.ndarray)):
        if item.ndim not in (2, 3):
            raise UsageError(f"Expected an image of 2 or 3 sides, got shape {tuple(item.shape)}.")
        found = _from_array(item[None], shape) if item.ndim == 3 else _from_array(item[None, None], shape)
        pixels: NDArray[np.uint8] = found[0].numpy()
        return pixels
    channels, side, width = shape
    if channels not in (1, 3) or side != width:
        raise UsageError(f"Expected arrays of shape {shape}, got a picture. This model learns no pictures.")
    if isinstance(item, Image.Image):
        if item.mode == "F" or 0 in item.size:
            raise UsageError(f"Expected a picture of 8 bits with pixels, got mode {item.mode} of {item.size}.")
        try:
            return _channels(square(upright(item), side), channels)
        except OSError as error:  # it was opened, and not read yet
            raise BadImage(str(error)) from error
    if isinstance(item, str | Path | bytes):
        return _channels(decode(Path(item) if isinstance(item, str) else item, side), channels)
    raise UsageError(f"Expected an image, got {type(item).__name__}. Give an array, a picture, or a path.")


def _channels(pixels: NDArray[np.uint8], wanted: int) -> NDArray[np.uint8]:
    if wanted == 3:
        return pixels
    grey = np.asarray(Image.fromarray(pixels.transpose(1, 2, 0)).convert("L"))
    return grey[None]


def _from_array(x: Tensor | NDArray[Any], shape: tuple[int, ...]) -> Tensor:
    if x.ndim not in (3, 4):
        raise UsageError(f"Expected images (n, height, width[, channels]), got shape {tuple(x.shape)}.")
    if 0 in x.shape:
        raise UsageError(f"Expected at least one image with pixels, got shape {tuple(x.shape)}.")
    if isinstance(x, Tensor) and x.layout != torch.strided:
        raise UsageError(f"Expected a dense tensor, got {x.layout}. Use x.to_dense().")
    bytes_ = _as_bytes(x)
    if tuple(bytes_.shape[1:]) == shape and (shape[2] not in CHANNELS or isinstance(x, Tensor)):
        return bytes_
    if bytes_.dim() == 3 and shape[0] == 1:
        bytes_ = bytes_[:, None]
    channels_first = _first(tuple(bytes_.shape), isinstance(x, Tensor))
    if bytes_.dim() == 3:
        bytes_ = bytes_[:, None]
    elif not channels_first:
        bytes_ = bytes_.permute(0, 3, 1, 2)
    if tuple(bytes_.shape[1:]) == shape:
        return bytes_.contiguous()
    if bytes_.shape[1] not in CHANNELS or shape[0] not in (1, 3) or shape[1] != shape[2]:
        raise UsageError(f"Expected images of shape (n, {', '.join(map(str, shape))}), got {tuple(bytes_.shape)}.")
    modes = {1: "L", 3: "RGB", 4: "RGBA"}
    rows = []
    for row in bytes_.permute(0, 2, 3, 1).contiguous().numpy():
        picture = Image.fromarray(row[:, :, 0] if row.shape[2] == 1 else row, modes[row.shape[2]])
        rows.append(_channels(square(rgb(picture), shape[1]), shape[0]))
    return torch.from_numpy(np.stack(rows)) if rows else bytes_.new_empty((0, *shape))


def _first(shape: tuple[int, ...], torchs: bool) -> bool:
    """Whether channels come before the sides; refused where nobody can tell."""
    if len(shape) == 3:
        if shape[2] in CHANNELS or (shape[0] in (3, 4) and not torchs):
            raise UsageError(
                f"Expected images (n, height, width) or (n, height, width, channels), got shape {shape}, which may be "
                "one image. Put one image in a list."
            )
        return True
    before, after = shape[1] in CHANNELS, shape[3] in CHANNELS
    if before and (torchs or not after):
        return True
    if before and after:
        raise UsageError(
            f"Expected images whose channels can be told from their sides, got shape {shape}. Give a torch tensor, "
            "which has channels first, or pictures."
        )
    if not after:
        raise UsageError(f"Expected images with 1, 3 or 4 channels, got shape {shape}.")
    return False


def _as_bytes(x: Tensor | NDArray[Any]) -> Tensor:
    """Bytes as they are; floats must lie in [0, 1]; whole numbers in 0 to 255."""
    try:
        values = x.detach().cpu() if isinstance(x, Tensor) else torch.from_numpy(_readable(np.ascontiguousarray(x)))
    except TypeError as error:
        raise UsageError(f"Expected pixels as numbers, got {error}.") from error
    if values.dtype == torch.uint8:
        return values
    if values.dtype == torch.bool:
        return values.to(torch.uint8) * 255
    if values.is_complex():
        raise UsageError("Complex data not supported: expected pixels as bytes, or as floats from 0 to 1.")
    low, high = float(values.min()), float(values.max())
    top = 1 if values.is_floating_point() else 255
    if not (math.isfinite(low) and math.isfinite(high) and low >= 0 and high <= top):
        what = "floats from 0 to 1" if values.is_floating_point() else "whole numbers from 0 to 255"
        raise UsageError(f"Expected pixels as bytes or {what}, got {low:g} to {high:g}.")
    return values.mul(255).round().to(torch.uint8) if values.is_floating_point() else values.to(torch.uint8)


def _readable(x: NDArray[Any]) -> NDArray[Any]:
    """Torch takes no unsigned numbers of more bits than 8, and shares memory that others may not write to."""
    if x.dtype.kind == "u" and x.dtype != np.uint8:
        x = x.astype(np.int64)
    return x if x.flags.writeable else x.copy()


def vector_tensor(x: Any, width: int | None = None) -> Tensor:
    """Rows of numbers as float32."""
    rows = np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x)
    if rows.ndim != 2 or (width is not None and rows.shape[1] != width):
        wanted = "n, values" if width is None else f"n, {width}"
        raise UsageError(f"Expected vectors of shape ({wanted}), got {rows.shape}.")
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, which is refused below
            found = torch.from_numpy(rows.astype(np.float32))
    except (TypeError, ValueError) as error:
        raise UsageError(f"Expected vectors of numbers, got {error}.") from error
    good = found.abs() <= LARGEST_VALUE  # which a NaN is not
    if not bool(good.all()):
        limits = f"{-LARGEST_VALUE:g} to {LARGEST_VALUE:g}"
        wrong = float(rows[~good.numpy()][0])
        raise UsageError(f"Expected numbers from {limits}, got {wrong:g}. Replace or scale it first.")
    return found


def from_features(rows: Iterable[Mapping[Any, float]], names: Sequence[Any]) -> NDArray[np.float64]:
    """River's dicts as rows, in the order of the names; a missing value is 0, one of another name is left out."""
    try:
        return np.array([[row.get(name, 0.0) for name in names] for row in rows], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"Expected features that are numbers: {error}.") from error
