"""MiniImageNet in every form it goes round in: the three cache pickles, CSV files with images, class folders.

Its 64, 16 and 20 classes are for another purpose: here all 100 are one data set, and a sixth of every class (100 of
600 images) is for testing, by a fixed shuffle.
"""

from __future__ import annotations

import csv
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from onepass.data import BadImages, LocatedFiles, Source, Split, archive, folder, images, safe_pickle
from onepass.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from onepass.data import Blocks

N_CLASSES = 100
SIZE = 84
TEST_SHARE = 1 / 6
PARTS = ("train", "val", "test")
NOTE = f"1/6 of each class held out for testing, the classes of all three parts together (seed {images.SEED})"


@dataclass(frozen=True)
class Member:
    """A class's images in one of the pickles."""

    pixels: NDArray[np.uint8]  # (n, h, w, 3), in the mapped file
    rows: NDArray[np.int64]


def find(place: Path, image_size: int = 0, bad_images: BadImages = "skip") -> LocatedFiles | None:
    """The first complete form in the folder or in a folder inside it; those with the data set's name come first."""
    if not place.is_dir():
        return None
    inside = sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))
    incomplete = ""
    for candidate in (place, *sorted(inside, key=lambda path: not _is_named(path))):
        for look in (_find_pickles, _find_csv, _find_folders):
            found = look(candidate, image_size)
            if isinstance(found, LocatedFiles):
                return found
            incomplete = incomplete or found
    if incomplete:
        raise UsageError(incomplete)
    return None


def _is_named(path: Path) -> bool:
    return path.name.lower().replace("_", "").replace("-", "").replace(" ", "").startswith("miniimagenet")


def _missing(paths: Sequence[Path]) -> str:
    """What to say if some of the files are there and some are not; "" if all or none are."""
    missing = [path.name for path in paths if not path.is_file()]
    there = [path.name for path in paths if path.is_file()]
    if not missing or not there:
        return ""
    return f"{paths[0].parent} has {', '.join(there)} but not {', '.join(missing)}: MiniImageNet needs all of them"


def _find_pickles(place: Path, image_size: int) -> LocatedFiles | str:
    files = tuple(place / f"mini-imagenet-cache-{part}.pkl" for part in PARTS)
    if all(path.is_file() for path in files):
        return LocatedFiles("cache pickles", files, partial(_read_pickles, files, image_size))
    return _missing(files)


def _find_csv(place: Path, image_size: int) -> LocatedFiles | str:
    files, folder_of_images = tuple(place / f"{part}.csv" for part in PARTS), place / "images"
    if not folder_of_images.is_dir():
        return ""
    if all(path.is_file() for path in files):
        return LocatedFiles(
            "CSV files and images", (*files, folder_of_images), partial(_read_csv, place, files, image_size)
        )
    return _missing(files) if _is_named(place) else ""


def _find_folders(place: Path, image_size: int) -> LocatedFiles | str:
    """Only where the name says so: any folder of class folders looks like this."""
    if not _is_named(place):
        return ""
    root = place.resolve()
    top = folder.subfolders(root)
    parts = [top[part] for part in PARTS if part in top]
    places = [path for part in parts or [root] for path in folder.subfolders(part).values()]
    if len(places) < 2:
        return ""
    return LocatedFiles("class folders", tuple(places), partial(_read_folders, root, places, image_size))


def _read_folders(root: Path, places: Sequence[Path], image_size: int) -> Source:
    classes = _checked(root, {path.name for path in places})
    index = {name: label for label, name in enumerate(classes)}
    found = [(image, index[path.name]) for path in places for image in folder.list_images(path, root)]
    return _from_files(root, classes, found, image_size)


def _from_files(root: Path, classes: tuple[str, ...], found: Sequence[folder.Labelled], image_size: int) -> Source:
    train, test = folder.hold_out(root, found, classes, TEST_SHARE, "mini-imagenet")
    return folder.assemble(root, classes, train, test, image_size or SIZE, "skip", [NOTE])


def _checked(place: Path, names: set[str]) -> tuple[str, ...]:
    if len(names) != N_CLASSES:
        raise UsageError(
            f"{place} has {len(names)} classes and MiniImageNet has {N_CLASSES}: a part is missing, or it is another "
            "data set (any folder of class folders is a stream by its path)"
        )
    return tuple(sorted(names))


def _read_csv(place: Path, files: Sequence[Path], image_size: int) -> Source:
    rows = [(name, label) for path in files for name, label in _rows(path)]
    classes = _checked(place, {label for _, label in rows})
    root = place.resolve()
    there = {path.name: path for path in folder.list_images(root / "images", root)}
    if missing := [name for name, _ in rows if name not in there]:
        raise UsageError(f"{len(missing)} of {len(rows)} images are not in {place / 'images'}, such as {missing[0]!r}")
    if len({name for name, _ in rows}) != len(rows):
        raise UsageError(f"{place}: the CSV files name an image twice; get them again")
    index = {name: label for label, name in enumerate(classes)}
    return _from_files(root, classes, [(there[name], index[label]) for name, label in rows], image_size)


def _rows(path: Path) -> Iterator[tuple[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            if kind := archive.sniff(file.read(1024).encode()):
                raise UsageError(f"{path}: this is {kind}, not a CSV file; get it again")
            file.seek(0)
            reader = csv.reader(file)
            if next(reader, [])[:2] != ["filename", "label"]:
                raise UsageError(f"{path}: its first line is not 'filename,label'; get it again")
            for row in reader:
                if len(row) < 2:
                    raise UsageError(f"{path}: line {reader.line_num} is no 'filename,label'; get it again")
                yield row[0], row[1]
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a CSV file: {error}; get it again") from error


def _read_pickles(files: Sequence[Path], image_size: int) -> Source:
    members: dict[str, list[Member]] = {}
    for path in files:
        for name, member in _members(path):
            members.setdefault(name, []).append(member)
    classes = _checked(files[0].parent, set(members))
    sides = {member.pixels.shape[1] for name in classes for member in members[name]}
    if len(sides) > 1 and not image_size:
        raise UsageError(f"{files[0].parent}: images of {len(sides)} sizes in the pickles; --image-size makes them one")
    size = image_size or min(sides)
    totals = [sum(len(member.rows) for member in members[name]) for name in classes]
    labels = np.repeat(np.arange(len(classes)), totals)
    is_test = images.held_out(labels, classes, TEST_SHARE, "mini-imagenet", files[0].parent)
    masks = np.split(is_test, np.cumsum(totals)[:-1])
    train = [_chosen(members[name], ~mask) for name, mask in zip(classes, masks, strict=True)]
    test = [_chosen(members[name], mask) for name, mask in zip(classes, masks, strict=True)]
    return Source(classes, _split(train, size), _split(test, size), (NOTE,))


def _split(groups: Sequence[Sequence[Member]], size: int) -> Split:
    n = sum(len(member.rows) for group in groups for member in group)
    return Split(n, (3, size, size), partial(_blocks, groups, size))


def _members(path: Path) -> Iterator[tuple[str, Member]]:
    """The classes of a pickle, with images that stay in the file."""
    value = safe_pickle.load(path)
    if not isinstance(value, dict) or not {"image_data", "class_dict"} <= value.keys():
        what = f"a dict with {', '.join(map(str, value))}" if isinstance(value, dict) else f"a {type(value).__name__}"
        raise UsageError(f"{path}: {what} where one with image_data and class_dict is expected; get it again")
    pixels, groups = value["image_data"], value["class_dict"]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or not _is_square(pixels.shape):
        raise UsageError(f"{path}: its image_data is no uint8 array of (n, {SIZE}, {SIZE}, 3); get it again")
    if not isinstance(groups, dict):
        raise UsageError(f"{path}: its class_dict is a {type(groups).__name__}; get it again")
    seen = np.zeros(len(pixels), dtype=np.bool_)
    for name, indices in groups.items():
        rows = _indices(indices)
        if rows is None or (len(rows) and not 0 <= rows.min() <= rows.max() < len(pixels)):
            raise UsageError(f"{path}: class {name!r} does not list rows of the {len(pixels)} images; get it again")
        if seen[rows].any() or len(np.unique(rows)) != len(rows):
            raise UsageError(f"{path}: class {name!r} has an image twice, or one of another class; get it again")
        seen[rows] = True
        yield str(name), Member(pixels, rows)


def _is_square(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4 and shape[1] == shape[2] > 0 and shape[3] == 3


def _indices(value: object) -> NDArray[np.int64] | None:
    if not isinstance(value, (list, tuple, np.ndarray)):
        return None
    try:
        rows = np.asarray(value)
    except ValueError:
        return None
    return rows.astype(np.int64) if rows.ndim == 1 and rows.dtype.kind in "iu" else None


def _chosen(group: Sequence[Member], chosen: NDArray[np.bool_]) -> list[Member]:
    ends = np.cumsum([len(member.rows) for member in group])[:-1]
    return [
        Member(member.pixels, member.rows[mask]) for member, mask in zip(group, np.split(chosen, ends), strict=True)
    ]


def _blocks(groups: Sequence[Sequence[Member]], size: int) -> Blocks:
    for label, group in enumerate(groups):
        for member in group:
            x = member.pixels[member.rows]
            _release(member.pixels)
            if x.shape[1] != size:
                yield np.stack([images.square(Image.fromarray(image), size) for image in x]), _labels(label, len(x))
            elif len(x):
                yield x.transpose(0, 3, 1, 2), _labels(label, len(x))


def _labels(label: int, n: int) -> NDArray[np.int64]:
    return np.full(n, label, dtype=np.int64)


def _release(array: NDArray[np.uint8]) -> None:
    """Give back the pages of a mapped file that were read: it is larger than we want to hold."""
    mapped = _mapping(array)
    if isinstance(mapped, mmap.mmap) and hasattr(mapped, "madvise"):  # not on Windows
        mapped.madvise(mmap.MADV_DONTNEED)


def _mapping(array: NDArray[np.uint8]) -> object:
    """What holds an array's bytes."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base.obj if isinstance(base, memoryview) else base
