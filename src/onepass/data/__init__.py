"""Sources of images and vectors: readers give blocks, `cache` makes arrays of them, `catalog` knows them by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    Blocks = Iterator[tuple[NDArray[np.uint8] | NDArray[np.float32], NDArray[np.int64]]]

SUFFIXES = (".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".pbm", ".pnm", ".tif", ".tiff")
BadImages = Literal["skip", "error"]  # what to do about images that do not decode
HIDDEN = (".", "__MACOSX")  # how names begin that are not looked at


@dataclass(frozen=True)
class Dataset:
    """Samples with labels 0..len(classes)-1, for training and for testing.

    Images are (n, c, h, w) uint8. Anything else is float32 of any shape (n, ...), finite: vectors are (n, d).
    """

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
    digest: str = ""  # of all samples and labels
    domain: Tensor | None = None  # of each training sample, as its place in `domains`; None: the data has no domains
    domain_test: Tensor | None = None
    domains: tuple[str, ...] = ()

    def release(self) -> None:
        """Give back the memory of rows that were read; where they are mapped from a file they can be read again."""


@dataclass(frozen=True)
class Split:
    """n samples of one shape and kind that `blocks` reads some at a time."""

    n: int
    shape: tuple[int, ...]
    blocks: Callable[[], Blocks]
    exact: bool = True  # else there may be fewer than n: only decoding tells
    dtype: Literal["uint8", "float32"] = "uint8"  # bytes of images, or finite numbers


@dataclass(frozen=True)
class Source:
    """A data set as its reader gives it: classes, two splits, and notes that a person should see."""

    classes: tuple[str, ...]
    train: Split
    test: Split
    notes: tuple[str, ...] = ()  # a split that was made here, a size that was chosen
    finish: Callable[[], tuple[str, ...]] = tuple  # after all blocks: notes known only then, or a UsageError
    domains: tuple[str, ...] = ()  # if there are any, a label is domain * len(classes) + class


@dataclass(frozen=True)
class LocatedFiles:
    """Files of a known form, found by looking, not opened yet. `files` tell whether anything has changed since."""

    form: str  # for people: "CIFAR-10, python version, archive"
    files: tuple[Path, ...]
    read: Callable[[], Source]
