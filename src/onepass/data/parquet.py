"""Images in parquet files, as hubs distribute CIFAR-10 and CIFAR-100; needs pyarrow."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onepass.data import LocatedFiles, Source, Split, archive, images
from onepass.errors import UNREADABLE, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from onepass.data import Blocks

IMAGE_COLUMNS = ("img", "image")
ROWS = 256  # decoded at a time
_BROKEN = (OSError, ValueError, LookupError, NotImplementedError, TypeError, ArithmeticError)


def find(folder: Path, label: str, n_classes: int = 0, side: int = 0) -> LocatedFiles | None:
    """*train*.parquet and *test*.parquet, with images and a column `label`, in a folder or at most two inside it.

    Files with another number of classes or another side of images are passed over. Without pyarrow, `read` asks for it.
    """
    if not folder.is_dir():
        return None
    inside = _folders(folder)
    unknown = None  # what cannot be read to tell: better explained than passed over, if there is nothing else
    for place in (folder, *inside, *(deeper for path in inside for deeper in _folders(path))):
        train, test = (tuple(sorted(place.glob(f"*{part}*.parquet"))) for part in ("train", "test"))
        if train and test:
            found = LocatedFiles("parquet", (*train, *test), partial(_read, train, test, label, n_classes))
            fits = _fits(train[0], label, n_classes, side)
            if fits:
                return found
            unknown = found if fits is None and unknown is None else unknown
    return unknown


def _folders(path: Path) -> list[Path]:
    with os.scandir(path) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _fits(path: Path, label: str, n_classes: int, side: int) -> bool | None:
    """None if there is no telling."""
    try:
        names, image = _columns(path, label)
        same_side = not side or _size(path, image) == side
    except OtherData:
        return False
    except UsageError:
        return None
    return same_side and (not (names and n_classes) or len(names) == n_classes)


class OtherData(UsageError):
    """A good file of something else."""


def arrow(part: str = "pyarrow.parquet") -> Any:
    """pyarrow, which is an extra."""
    try:
        return import_module(part)
    except ImportError as error:
        raise UsageError("parquet files are read by pyarrow; run: pip install pyarrow") from error


def _read(train: Sequence[Path], test: Sequence[Path], label: str, n_classes: int) -> Source:
    columns = {path: _columns(path, label) for path in (*train, *test)}
    names = columns[train[0]][0]
    labels = [np.concatenate([_labels(path, label) for path in files]) for files in (train, test)]
    if not all(map(len, labels)):
        raise UsageError(f"{train[0].parent}: no rows to {'test' if len(labels[0]) else 'train'} on; get it again")
    n = len(names) or n_classes or int(labels[0].max()) + 1
    for files, values in zip((train, test), labels, strict=True):
        if not 0 <= values.min() <= values.max() < n:
            raise UsageError(f"{files[0]}: labels from {values.min()} to {values.max()} for {n} classes; get it again")
    size = _size(train[0], columns[train[0]][1])
    splits = []
    for files, values in zip((train, test), labels, strict=True):
        pairs = [(path, columns[path][1]) for path in files]
        splits.append(Split(len(values), (3, size, size), partial(_blocks, pairs, values, size)))
    return Source(names or tuple(map(str, range(n))), splits[0], splits[1])


def _columns(path: Path, label: str) -> tuple[tuple[str, ...], str]:
    """The classes' names as far as the file tells them, and its column of images."""
    with explained(path):
        schema = arrow().read_schema(path)
        image = next((name for name in IMAGE_COLUMNS if name in schema.names), None)
        if image is None or label not in schema.names:
            raise OtherData(f"{path} has the columns {', '.join(schema.names)} and not {label} with img or image")
        return class_names(schema.metadata or {}, label), image


def class_names(metadata: dict[bytes, bytes], label: str) -> tuple[str, ...]:
    """As Hugging Face's datasets notes them."""
    try:
        names = json.loads(metadata[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _labels(path: Path, label: str) -> NDArray[np.int64]:
    with explained(path):
        column = arrow().read_table(path, columns=[label]).column(0)
        if column.null_count or not arrow("pyarrow").types.is_integer(column.type):
            raise UsageError(f"{path}: its {label} are not all integers ({column.type}); get it again")
        return np.asarray(column.to_numpy(), dtype=np.int64)


def _size(path: Path, column: str) -> int:
    first = next(_contents(path, column), [])
    try:
        return min(images.measure(first[0]))
    except (images.BadImage, IndexError) as error:
        raise UsageError(f"{path}: its first image does not decode: {error}; get it again") from error


def _contents(path: Path, column: str) -> Iterator[list[bytes]]:
    """The encoded images of some rows at a time."""
    with explained(path), arrow().ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=ROWS, columns=[column]):
            values = batch.column(0)
            if arrow("pyarrow").types.is_struct(values.type):
                values = values.field("bytes")
            contents = values.to_pylist()
            if not all(isinstance(content, bytes) for content in contents):
                raise UsageError(f"{path}: its {column} holds something other than encoded images; get it again")
            yield contents


def _blocks(files: Sequence[tuple[Path, str]], labels: NDArray[np.int64], size: int) -> Blocks:
    batches = ((path, contents) for path, column in files for contents in _contents(path, column))
    start = 0
    for x in images.in_threads(partial(_decoded, size), batches):
        yield x, labels[start : start + len(x)]
        start += len(x)


def _decoded(size: int, batch: tuple[Path, list[bytes]]) -> NDArray[np.uint8]:
    path, contents = batch
    x = np.empty((len(contents), 3, size, size), dtype=np.uint8)
    for row, content in zip(x, contents, strict=True):
        try:
            row[:] = images.decode(content, size)
        except images.BadImage as error:
            raise UsageError(f"{path}: an image in it does not decode: {error}; get it again") from error
    return x


def _arrow_errors() -> tuple[type[Exception], ...]:
    """Some of pyarrow's are none of Python's."""
    return (sys.modules["pyarrow"].ArrowException,) if "pyarrow" in sys.modules else ()


@contextmanager
def explained(path: Path) -> Iterator[None]:
    try:
        yield
    except UsageError:
        raise
    except MemoryError as error:
        raise UsageError(f"{path}: {UNREADABLE}") from error
    except Exception as error:
        if not isinstance(error, (*_BROKEN, *_arrow_errors())):
            raise
        reason = archive.shown(str(error))
        if path.is_file():
            with path.open("rb") as file:
                reason = archive.sniff(file.read(1024)) or reason
        raise UsageError(f"{path}: no parquet file, or a damaged one: {reason}; get it again") from error
