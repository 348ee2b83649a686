"""A person's own array in an .npy, with the labels in a second one beside it. What may be in it is as in an .npz."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

from onepass.data import BadImages, LocatedFiles, Source, archive
from onepass.data.npz import Array, check_kind, checked, explained, read_header, source
from onepass.errors import UsageError

_MAGIC = b"\x93NUMPY"


def find(path: Path, image_size: int = 0, bad_images: BadImages = "skip") -> LocatedFiles | None:
    """NAME.npy, its labels, and a test pair if there is one: found by their names, not opened."""
    if not path.is_file():
        return None
    train = path, _labels(path)
    tested = _tested(path)
    test = (tested, _labels(tested)) if tested.is_file() else None
    return LocatedFiles("npy", (*train, *(test or ())), partial(_read, train, test, tested))


def holds_vectors(path: Path) -> bool:
    """Whether its samples are vectors, by the header; what is damaged or gone is explained when it is read."""
    if not path.is_file():  # a pipe would be waited for
        return False
    try:
        return _array(path).vectors
    except UsageError:
        return False


def _labels(path: Path) -> Path:
    """Of NAME.npy: NAME_labels.npy or NAME_y.npy; of x.npy and x_train.npy also y.npy and y_train.npy."""
    stems = [f"{path.stem}_labels", f"{path.stem}_y"]
    if path.stem[:1] in ("x", "X"):
        stems += [f"y{path.stem[1:]}", f"Y{path.stem[1:]}"]
    places = [path.with_name(f"{stem}{path.suffix}") for stem in stems]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        names = " or ".join(place.name for place in places[:3])
        raise UsageError(f"{path} has no labels beside it: expected {names} in {path.parent}, a label for each row")
    return found


def _tested(path: Path) -> Path:
    """Where the test rows of NAME.npy would be: NAME_test.npy; of x_train.npy, x_test.npy."""
    stem = path.stem.replace("train", "test") if "train" in path.stem else f"{path.stem}_test"
    return path.with_name(f"{stem}{path.suffix}")


def _read(train: tuple[Path, Path], test: tuple[Path, Path] | None, tested: Path) -> Source:
    pairs = [checked(_array(x), _array(y)) for x, y in (train, *([test] if test else []))]
    return source(pairs[0], pairs[1] if test else None, f"no {tested.name}")


def _array(path: Path) -> Array:
    with explained(path), path.open("rb") as file:
        head = file.read(1024)
        if not head.startswith(_MAGIC):
            raise UsageError(f"{path}: this is {archive.sniff(head) or 'no .npy file'}; np.save(path, x) makes one")
        file.seek(0)
        shape, fortran, dtype = read_header(file)
        declared, size = file.tell() + math.prod(shape) * dtype.itemsize, path.stat().st_size
    array = Array(path, "", shape, dtype, fortran)
    check_kind(array)
    if declared != size:
        raise UsageError(f"{path} declares {shape} {dtype}, which it does not hold; get it again")
    return array
