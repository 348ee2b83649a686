"""CIFAR-10 and CIFAR-100 in every form their author gives them: python and binary version, archive or unpacked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onepass.data import BadImages, LocatedFiles, Source, Split, archive, parquet, safe_pickle
from onepass.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Block = tuple[NDArray[np.uint8], NDArray[np.int64]]

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
LIMIT = 1 << 30  # no CIFAR archive unpacks to more


@dataclass(frozen=True)
class Layout:
    """The names inside one form of one of the two data sets."""

    folder: str
    archive: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    label: str  # key in the pickles; in binary files the label is the last byte before the pixels
    binary: bool
    label_bytes: int = 1


CIFAR10 = (
    Layout(
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
        tuple(f"data_batch_{i}" for i in range(1, 6)),
        ("test_batch",),
        "batches.meta",
        "labels",
        binary=False,
    ),
    Layout(
        "cifar-10-batches-bin",
        "cifar-10-binary.tar.gz",
        tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        ("test_batch.bin",),
        "batches.meta.txt",
        "labels",
        binary=True,
    ),
)
CIFAR100 = (
    Layout("cifar-100-python", "cifar-100-python.tar.gz", ("train",), ("test",), "meta", "fine_labels", binary=False),
    Layout(
        "cifar-100-binary",
        "cifar-100-binary.tar.gz",
        ("train.bin",),
        ("test.bin",),
        "fine_label_names.txt",
        "fine_labels",
        binary=True,
        label_bytes=2,
    ),
)


def find_cifar10(place: Path, image_size: int = 0, bad_images: BadImages = "skip") -> LocatedFiles | None:
    return find(place, CIFAR10) or parquet.find(place, "label", 10, side=32)


def find_cifar100(place: Path, image_size: int = 0, bad_images: BadImages = "skip") -> LocatedFiles | None:
    return find(place, CIFAR100) or parquet.find(place, "fine_label", 100, side=32)


def find(root: Path, layouts: tuple[Layout, ...]) -> LocatedFiles | None:
    """The first complete form in the folder, or in a folder inside it."""
    if not root.is_dir():
        return None
    for place in (root, *sorted(path for path in root.iterdir() if path.is_dir())):
        for layout in layouts:
            version = "binary" if layout.binary else "python"
            needed = [place / name for name in (*layout.train, *layout.test)]
            if all(path.is_file() for path in needed):
                return LocatedFiles(f"{version} version, unpacked", tuple(needed), partial(_unpacked, place, layout))
            path = place / layout.archive
            if path.is_file():
                return LocatedFiles(f"{version} version, archive", (path,), partial(_packed, path, layout))
    return None


def _unpacked(folder: Path, layout: Layout) -> Source:
    return _source(layout, {path.name: path for path in folder.iterdir() if path.is_file()})


def _packed(path: Path, layout: Layout) -> Source:
    """Members are read from the archive, which is never unpacked."""
    wanted = {*layout.train, *layout.test, layout.names}
    content: dict[str, Path | bytes] = {}
    for name, pieces in archive.members(path, limit_bytes=LIMIT, limit_files=1000):
        if pieces is not None and name.name in wanted:
            content[name.name] = b"".join(pieces)
    missing = sorted({*layout.train, *layout.test} - set(content))
    if missing:
        raise UsageError(f"{path} holds no {', '.join(missing)}: it is not the archive it is named after; get it again")
    return _source(layout, content)


def _source(layout: Layout, content: Mapping[str, Path | bytes]) -> Source:
    classes = _names(layout, content.get(layout.names))
    read = _records if layout.binary else _pickled
    splits = []
    for names in (layout.train, layout.test):
        blocks = [_checked(name, len(classes), *read(layout, content[name], name)) for name in names]
        splits.append(Split(sum(len(y) for _, y in blocks), SHAPE, partial(iter, blocks)))
    train, test = splits
    return Source(classes, train, test)


def _checked(name: str, n_classes: int, x: NDArray[np.uint8], y: NDArray[np.int64]) -> Block:
    if len(x) != len(y):
        raise UsageError(f"{name}: {len(x)} images and {len(y)} labels; get it again")
    if len(y) and not 0 <= y.min() <= y.max() < n_classes:
        raise UsageError(f"{name}: labels from {y.min()} to {y.max()} for {n_classes} classes; get it again")
    return x.reshape(-1, *SHAPE), y


def _records(layout: Layout, content: Path | bytes, name: str) -> Block:
    """A binary file: records of one or two labels and the pixels."""
    size = layout.label_bytes + PIXELS
    length = content.stat().st_size if isinstance(content, Path) else len(content)
    if not length or length % size:
        raise UsageError(f"{name}: {length} bytes are no whole number of records of {size}; get it again")
    if isinstance(content, Path):
        table: NDArray[np.uint8] = np.memmap(content, dtype=np.uint8, mode="r")
    else:
        table = np.frombuffer(content, dtype=np.uint8)
    table = table.reshape(-1, size)
    return table[:, layout.label_bytes :], table[:, layout.label_bytes - 1].astype(np.int64)


def _pickled(layout: Layout, content: Path | bytes, name: str) -> Block:
    batch = _dict(content, name)
    if layout.label not in batch:
        raise UsageError(f"{name} has {', '.join(batch)} and no {layout.label}: it is not a file of this data set")
    pixels = batch.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        raise UsageError(f"{name}: its data is no uint8 array of {PIXELS} columns; get it again")
    labels = batch[layout.label]
    if not isinstance(labels, (list, tuple)) or not all(isinstance(n, int) and abs(n) < 2**31 for n in labels):
        raise UsageError(f"{name}: its {layout.label} are no list of whole numbers; get it again")
    return pixels, np.asarray(labels, dtype=np.int64)


def _dict(content: Path | bytes, name: str) -> dict[str, Any]:
    value = safe_pickle.load(content)
    if not isinstance(value, dict):
        raise UsageError(f"{name}: a pickled {type(value).__name__} where a dict is expected; get it again")
    return {key.decode("latin-1") if isinstance(key, bytes) else str(key): item for key, item in value.items()}


def _names(layout: Layout, content: Path | bytes | None) -> tuple[str, ...]:
    """The classes' names; numbers if the file with them is missing."""
    count = 10 if layout in CIFAR10 else 100
    names: tuple[str, ...] = ()
    if content is not None and layout.binary:
        text = content.read_bytes() if isinstance(content, Path) else content
        names = tuple(text.decode("utf-8", "replace").split())
    elif content is not None:
        meta = _dict(content, layout.names)
        given = meta.get("label_names", meta.get("fine_label_names", ()))
        names = tuple(map(str, given)) if isinstance(given, (list, tuple)) else ()
    return names if len(names) == count else tuple(map(str, range(count)))
