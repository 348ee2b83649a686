"""MNIST and Fashion-MNIST in the four files they come in, packed by gzip or not: a header of sizes, then bytes.

Both data sets have files of the same names, so a folder's name tells which it holds.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import numpy as np

from onepass.data import BadImages, LocatedFiles, Source, Split
from onepass.data.archive import shown, sniff
from onepass.data.listing import named_folders
from onepass.errors import UNREADABLE, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from onepass.data import Blocks

SIDE = 28
MOST = 100_000  # images in a file; there are 60,000 and 10,000
BLOCK = 1000  # images read at a time
DEBIAN = Path("/usr/share/datasets")  # where packages of Debian and its relatives put data sets
FILES = {"train": ("train-images", "train-labels"), "test": ("t10k-images", "t10k-labels")}
KINDS = ("idx3-ubyte", "idx1-ubyte")  # of images and of labels
DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def find_mnist(place: Path, image_size: int = 0, bad_images: BadImages = "skip") -> LocatedFiles | None:
    return _find(place, ("mnist",), DIGITS)


def find_fashion(place: Path, image_size: int = 0, bad_images: BadImages = "skip") -> LocatedFiles | None:
    return _find(place, ("fashionmnist", "datasetfashionmnist"), CLOTHES)


def _find(place: Path, names: tuple[str, ...], classes: tuple[str, ...]) -> LocatedFiles | None:
    """The four files in a folder of such a name, or in `raw` or `data` inside it; then where Debian puts them."""
    for named in (*named_folders(place, names), *named_folders(DEBIAN, names)):
        for folder in (named, named / "raw", named / "data"):
            files = _files(folder)
            if missing := [name for name, path in files.items() if path is None]:
                if len(missing) < len(files):
                    there = ", ".join(path.name for path in files.values() if path)
                    raise UsageError(f"{folder} has {there} but not {', '.join(missing)}: all four are needed")
                continue
            whole = {name: path for name, path in files.items() if path}
            return LocatedFiles("idx files", tuple(whole.values()), partial(_read, whole, classes))
    if any(_files(place).values()):
        raise UsageError(
            f"{place} has files of the names that both MNIST and Fashion-MNIST have: put them into the folder mnist or "
            "fashion-mnist there"
        )
    return None


def _files(folder: Path) -> dict[str, Path | None]:
    """Each of the four files by its name's beginning; None where it is not there."""
    found: dict[str, Path | None] = {}
    for pair in FILES.values():
        for name, kind in zip(pair, KINDS, strict=True):
            spellings = (folder / f"{name}{mark}{kind}{end}" for mark in "-." for end in ("", ".gz"))
            found[name] = next((path for path in spellings if path.is_file()), None)
    return found


def _read(files: dict[str, Path], classes: tuple[str, ...]) -> Source:
    splits: list[Split] = []
    for images, labels in FILES.values():
        n = _size(files[images], (SIDE, SIDE))
        if _size(files[labels], ()) != n:
            many = _size(files[labels], ())
            raise UsageError(f"{files[images]} has {n} images and {files[labels].name} {many} labels; get them again")
        y = np.concatenate(list(_rows(files[labels], ()))).astype(np.int64)
        if y.max() >= len(classes):
            raise UsageError(f"{files[labels]}: labels up to {y.max()} for {len(classes)} classes; get it again")
        splits.append(Split(n, (1, SIDE, SIDE), partial(_blocks, files[images], y)))
    train, test = splits
    return Source(classes, train, test)


def _blocks(path: Path, y: NDArray[np.int64]) -> Blocks:
    start = 0
    for block in _rows(path, (SIDE, SIDE)):
        yield block.reshape(-1, 1, SIDE, SIDE), y[start : start + len(block)]
        start += len(block)


def _size(path: Path, shape: tuple[int, ...]) -> int:
    """How many rows of this shape a file says it holds, if it says what it should."""
    with _opened(path) as file:
        return _header(file, path, shape)


def _header(file: IO[bytes], path: Path, shape: tuple[int, ...]) -> int:
    words = 2 + len(shape)
    head = file.read(4 * words)
    if len(head) < 4 * words or head[:4] != bytes([0, 0, 8, 1 + len(shape)]):  # 8: of bytes
        what = sniff(head) or "something else"
        raise UsageError(f"{path}: expected an idx file of {1 + len(shape)} dimensions, got {what}; get it again")
    _, n, *sides = struct.unpack(f">{words}I", head)
    if tuple(sides) != shape or not 0 < n <= MOST:
        wanted = " x ".join(map(str, ("n", *shape)))
        found = " x ".join(map(str, (n, *sides)))
        raise UsageError(f"{path}: expected {wanted} with n from 1 to {MOST:,}, got {found}; get it again")
    return int(n)


def _rows(path: Path, shape: tuple[int, ...]) -> Iterator[NDArray[np.uint8]]:
    """The rows some at a time: no more than the header says, whatever the file unpacks to."""
    row = int(np.prod(shape, dtype=np.int64))
    with _opened(path) as file:
        n = _header(file, path, shape)
        for start in range(0, n, BLOCK):
            wanted = min(BLOCK, n - start) * row
            content = file.read(wanted)
            if len(content) != wanted:
                raise EOFError("it breaks off")
            yield np.frombuffer(content, dtype=np.uint8).reshape(-1, *shape)
        if file.read(1):  # at the end of a gzip file its checksum is compared
            raise EOFError("it holds more than it says")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with cast(IO[bytes], gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")) as file:
            yield file
    except MemoryError as error:
        raise UsageError(f"{path}: {UNREADABLE}") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{path}: cannot be read: {shown(reason)}; get it again") from error
