"""A person's own arrays in an .npz: x and y, perhaps x_test and y_test. Read some rows at a time.

x of two dimensions are vectors, of any numbers. Of three or four they are images: bytes, or floats from 0 to 1.
"""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from onepass.data import BadImages, LocatedFiles, Source, Split, archive, images
from onepass.data.vectors import MAX_LABEL, floats
from onepass.errors import UNREADABLE, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from onepass.data import Blocks

TEST_SHARE = 0.2
LIMIT = 64 << 30  # bytes that the arrays may unpack to
MAX_RATIO = 1040  # what deflate can reach at most, and a little
MAX_LABEL_BYTES = 1 << 28
MAX_FORTRAN = 1 << 28  # bytes of an array in this order, which must be read whole
MAX_SAMPLE = 1 << 26  # bytes of an image or a vector
_BLOCK_BYTES = 4 << 20
_ALIASES = {
    "x": ("x", "x_train", "train_images"),
    "y": ("y", "y_train", "train_labels"),
    "x_test": ("x_test", "test_images"),
    "y_test": ("y_test", "test_labels"),
}
_BROKEN = (OSError, EOFError, ValueError, RuntimeError, OverflowError, SystemError)
_BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, struct.error)
_BROKEN_HEADER = (SyntaxError, tokenize.TokenError, TypeError, LookupError)  # numpy reads it as Python source


@dataclass(frozen=True)
class Array:
    """An array of which the header was read: a member of an archive, or a file by itself."""

    path: Path
    member: str  # "" for a file by itself
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    fortran: bool

    @property
    def key(self) -> str:
        return self.member.removesuffix(".npy") or self.path.name

    @property
    def where(self) -> str:
        return f"{self.path}: {self.key}" if self.member else str(self.path)

    @property
    def vectors(self) -> bool:
        return len(self.shape) == 2

    def blocks(self) -> Iterator[NDArray[np.generic]]:
        """Some rows at a time."""
        with explained(self.path, self.member), _opened(self.path, self.member) as file:
            read_header(file)
            row = math.prod(self.shape[1:]) * self.dtype.itemsize
            step = self.shape[0] if self.fortran else max(1, _BLOCK_BYTES // max(1, row))
            for start in range(0, self.shape[0], step or 1):
                n = min(step, self.shape[0] - start)
                content = file.read(n * row)
                if len(content) != n * row:
                    raise EOFError("it ends too early")
                block = np.frombuffer(content, dtype=self.dtype)
                yield block.reshape((n, *self.shape[1:]), order="F" if self.fortran else "C")
            file.read(1)  # the checksum is compared at the end


@contextmanager
def _opened(path: Path, member: str) -> Iterator[IO[bytes]]:
    if not member:
        with path.open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(path) as zipped, zipped.open(member) as inside:
        yield inside


@dataclass(frozen=True)
class Part:
    """Samples with the indices of their classes, of which a mask may choose some."""

    x: Array
    labels: NDArray[np.int64]
    chosen: NDArray[np.bool_] | None = None

    def split(self) -> Split:
        n = len(self.labels) if self.chosen is None else int(self.chosen.sum())
        return Split(n, _shape(self.x), self.blocks, dtype="float32" if self.x.vectors else "uint8")

    def blocks(self) -> Blocks:
        start = 0
        for block in self.x.blocks():
            rows = np.arange(len(block))
            if self.chosen is not None:
                rows = np.flatnonzero(self.chosen[start : start + len(block)])
            if len(rows):
                yield self._samples(block[rows], start + rows), self.labels[start + rows]
            start += len(block)

    def _samples(self, block: NDArray[np.generic], rows: NDArray[np.int64]) -> NDArray[np.uint8] | NDArray[np.float32]:
        if not self.x.vectors:
            return _bytes(self.x, block)
        return floats(block, lambda row, column: f"{self.x.where}[{rows[row]}, {column}]")


def find(path: Path, image_size: int = 0, bad_images: BadImages = "skip") -> LocatedFiles | None:
    """The file as it is: its arrays have their size, and all of them are samples."""
    return LocatedFiles("npz", (path,), partial(_read, path)) if path.is_file() else None


def holds_vectors(path: Path) -> bool:
    """Whether its samples are vectors, by the header; what is damaged or gone is explained when it is read."""
    if not path.is_file():  # a pipe would be waited for
        return False
    try:
        x = _arrays(path).get("x")
    except UsageError:
        return False
    return x is not None and x.vectors


def _read(path: Path) -> Source:
    arrays = _arrays(path)
    train = _pair(path, arrays, "x", "y")
    test = None
    if "x_test" in arrays or "y_test" in arrays:
        test = _pair(path, arrays, "x_test", "y_test")
    return source(train, test, "no x_test")


def source(train: tuple[Array, Array], test: tuple[Array, Array] | None, untested: str) -> Source:
    """Pairs of samples and labels as a source; without a test pair, a fifth of each class is held out."""
    x, y = train
    classes, labels = _classes(y)
    if len(classes) < 2:
        raise UsageError(f"{y.where} has only one class; a stream needs at least two")
    notes = []
    if test is not None:
        x_test, y_test = test
        if _shape(x) != _shape(x_test):
            what = "vectors" if x.vectors else "images"
            raise UsageError(f"{x.path}: {what} of {x.shape[1:]} in {x.key} and of {x_test.shape[1:]} in {x_test.key}")
        parts = Part(x, labels), Part(x_test, _known(classes, y, y_test))
    else:
        is_test = images.held_out(labels, classes, TEST_SHARE, "npz", x.path, "vector" if x.vectors else "image")
        parts = Part(x, labels, ~is_test), Part(x, labels, is_test)
        notes = [f"{untested}: {TEST_SHARE:.0%} of each class were held out for testing (seed {images.SEED})"]
    return Source(classes, parts[0].split(), parts[1].split(), tuple(notes))


def _classes(y: Array) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The names of the classes in order, and each row's class."""
    with explained(y.path, y.member):  # letters that do not exist
        names, inverse = np.unique(_names(y), return_inverse=True)
        [str(name) for name in names]
    is_text = names.dtype.kind == "U"
    order = sorted(range(len(names)), key=lambda i: images.by_numbers(str(names[i])) if is_text else names[i])
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    return tuple(str(names[i]) for i in order), rank[inverse]


def _known(classes: tuple[str, ...], y: Array, y_test: Array) -> NDArray[np.int64]:
    names, own = _classes(y_test)
    index = {name: label for label, name in enumerate(classes)}
    if new := [name for name in names if name not in index]:
        raise UsageError(f"{y.path}: {y_test.key} has the class {new[0]!r}, which {y.key} lacks")
    if untested := sorted(index.keys() - set(names), key=images.by_numbers):
        raise UsageError(f"{y.path}: {y_test.key} lacks the class {untested[0]!r} of {y.key}: every class needs tests")
    return np.array([index[name] for name in names], dtype=np.int64)[own]


def _names(y: Array) -> NDArray[np.generic]:
    values = np.concatenate(list(y.blocks())).reshape(-1)
    if values.dtype.kind == "S":
        try:
            return np.char.decode(values, "utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"{y.where} has names that are not UTF-8: {error}") from error
    return values


def _pair(path: Path, arrays: dict[str, Array], x_name: str, y_name: str) -> tuple[Array, Array]:
    for name in (x_name, y_name):
        if name not in arrays:
            with zipfile.ZipFile(path) as zipped:
                there = ", ".join(member.removesuffix(".npy") for member in zipped.namelist()[:10]) or "nothing"
            raise UsageError(f"{path} has no array {name} ({there} found): it needs x and y, or also x_test and y_test")
    return checked(arrays[x_name], arrays[y_name])


def checked(x: Array, y: Array) -> tuple[Array, Array]:
    """Samples and their labels, if that is what they are."""
    if y.dtype.kind not in "iuUS" or not (len(y.shape) == 1 or (len(y.shape) == 2 and y.shape[1] == 1)):
        raise UsageError(f"{y.where} is {y.dtype} {y.shape}; labels are (n,) integers or strings")
    if x.vectors and x.dtype.kind not in "uif":
        raise UsageError(f"{x.where} is {x.dtype}; vectors are numbers")
    if not x.vectors and x.dtype != np.uint8 and x.dtype.kind != "f":
        raise UsageError(f"{x.where} is {x.dtype}; images are uint8, or float from 0 to 1")
    _shape(x)
    if x.shape[0] != y.shape[0] or not x.shape[0]:
        what = "vectors" if x.vectors else "images"
        raise UsageError(f"{x.path}: {x.shape[0]} {what} in {x.key} and {y.shape[0]} labels in {y.key}")
    if (size := math.prod(x.shape[1:]) * x.dtype.itemsize) > MAX_SAMPLE:
        raise UsageError(f"{x.where} has samples of {size:,} bytes; at most {MAX_SAMPLE >> 20} MiB are allowed")
    if y.dtype.kind in "US" and y.dtype.itemsize > 4 * MAX_LABEL:
        raise UsageError(f"{y.where} has names of up to {y.dtype.itemsize:,} bytes; {MAX_LABEL} letters are allowed")
    for array in (x, y):
        if array.fortran and math.prod(array.shape) * array.dtype.itemsize > MAX_FORTRAN:
            how = "save numpy.ascontiguousarray of it"
            raise UsageError(f"{array.where} is in Fortran order, and too large to be read whole: {how}")
    if math.prod(y.shape) * y.dtype.itemsize > MAX_LABEL_BYTES:
        raise UsageError(f"{y.where} has more than the {MAX_LABEL_BYTES:,} bytes that are read as labels")
    return x, y


def _shape(x: Array) -> tuple[int, ...]:
    """The shape of one sample; of an image, channels first."""
    match x.shape[1:]:
        case (int(d),) if d:
            return (d,)
        case (int(h), int(w)) if h and w:
            return 1, h, w
        case (1 | 3 as c, int(h), int(w)) if h and w and w not in (1, 3):
            return c, h, w
        case (int(h), int(w), 1 | 3 as c) if h and w and h not in (1, 3):
            return c, h, w
    shapes = "images are (n, h, w), (n, h, w, c) or (n, c, h, w), c 1 or 3; vectors are (n, d)"
    raise UsageError(f"{x.where} is {x.shape}; {shapes}")


def _bytes(x: Array, block: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Rows as (n, c, h, w) bytes."""
    shape = _shape(x)
    if block.ndim == 4 and block.shape[1:] != shape:
        block = block.transpose(0, 3, 1, 2)
    block = block.reshape(len(block), *shape)
    if block.dtype == np.uint8:
        return block.view(np.uint8)
    values = block.astype(np.float64)
    if not ((values >= 0) & (values <= 1)).all():  # a NaN is neither
        flat = "; if they are no images, save them as vectors: x.reshape(len(x), -1)" if len(x.shape) == 3 else ""
        raise UsageError(
            f"{x.where} has values from {values.min()} to {values.max()}; {x.dtype} images must lie in 0..1 "
            f"(divide by 255, or save them as uint8){flat}"
        )
    return np.rint(values * 255).astype(np.uint8)


def _arrays(path: Path) -> dict[str, Array]:
    """The arrays we know by name; only their headers are read."""
    with explained(path), path.open("rb") as file:
        kind = archive.sniff(file.read(1024))
    if kind != "a zip archive":
        raise UsageError(
            f"{path}: this is {kind or 'no .npz file'}; np.savez_compressed(path, x=x, y=labels) makes one"
        )
    found: dict[str, Array] = {}
    with explained(path), zipfile.ZipFile(path) as zipped:
        members = {entry.filename: entry for entry in zipped.infolist()}
        for name, aliases in _ALIASES.items():
            member = next((members[f"{alias}.npy"] for alias in aliases if f"{alias}.npy" in members), None)
            if member is not None:
                found[name] = _array(path, zipped, member)
        if sum(member.file_size for member in members.values()) > LIMIT:
            raise UsageError(
                f"{path}: unpacks to more than the {LIMIT >> 30} GiB allowed; an image folder has no limit"
            )
    return found


def _array(path: Path, zipped: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or member.flag_bits & 1:
        raise UsageError(f"{path}: {member.filename} is encrypted or packed in an unusual way; save it with np.savez")
    with zipped.open(member) as file:
        shape, fortran, dtype = read_header(file)
        size = file.tell() + math.prod(shape) * dtype.itemsize
    array = Array(path, member.filename, shape, dtype, fortran)
    check_kind(array)
    if size != member.file_size or size > MAX_RATIO * member.compress_size + 1000:
        raise UsageError(f"{path}: {member.filename} declares {shape} {dtype}, which it does not hold; get it again")
    return array


def check_kind(array: Array) -> None:
    if array.dtype.kind not in "uifUS":
        what = "Python objects, which are never loaded" if array.dtype.hasobject else str(array.dtype)
        where = f"{array.path}: {array.member}" if array.member else str(array.path)
        raise UsageError(f"{where} is an array of {what}; save numbers (or strings as labels)")


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    match np.lib.format.read_magic(file):
        case (1, 0):
            return np.lib.format.read_array_header_1_0(file)
        case (2, 0):
            return np.lib.format.read_array_header_2_0(file)
        case version:
            raise ValueError(f"array format {version}")


@contextmanager
def explained(path: Path, member: str = "") -> Iterator[None]:
    where = f"{path}: {member}" if member else str(path)
    try:
        yield
    except UsageError:
        raise
    except MemoryError as error:
        raise UsageError(f"{where}: {UNREADABLE}") from error
    except (*_BROKEN, *_BROKEN_ZIP, *_BROKEN_HEADER) as error:
        reason = archive.shown(str(error)) or type(error).__name__
        raise UsageError(
            f"{where}: damaged, or no {path.suffix} file: {reason}; get it again, or save it again"
        ) from error
