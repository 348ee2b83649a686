"""Sources of images: readers give blocks of bytes, `cache` makes arrays of them once, `catalog` knows them by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    Blocks = Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]

SUFFIXES = (".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".pbm", ".pnm", ".tif", ".tiff")
BadImages = Literal["skip", "error"]  # what to do about images that do not decode
HIDDEN = (".", "__MACOSX")  # how names begin that are not looked at


@dataclass(frozen=True)
class Dataset:
    """Images (n, c, h, w) uint8 with labels 0..len(classes)-1, for training and for testing."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
    digest: str = ""  # of all images and labels

    def release(self) -> None:
        """Give back the memory of rows that were read; where images are mapped from a file they can be read again."""


@dataclass(frozen=True)
class Split:
    """n images of one shape (c, h, w) that `blocks` reads some at a time."""

    n: int
    shape: tuple[int, int, int]
    blocks: Callable[[], Blocks]
    exact: bool = True  # else there may be fewer than n: only decoding tells


@dataclass(frozen=True)
class Source:
    """A data set as its reader gives it: classes, two splits, and notes that a person should see."""

    classes: tuple[str, ...]
    train: Split
    test: Split
    notes: tuple[str, ...] = ()  # a split that was made here, a size that was chosen
    finish: Callable[[], tuple[str, ...]] = tuple  # after all blocks: notes known only then, or a UsageError


@dataclass(frozen=True)
class LocatedFiles:
    """Files of a known form, found by looking, not opened yet. `files` tell whether anything has changed since."""

    form: str  # for people: "CIFAR-10, python version, archive"
    files: tuple[Path, ...]
    read: Callable[[], Source]
