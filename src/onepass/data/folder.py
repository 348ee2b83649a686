"""A person's own images: a folder for each class, perhaps in one for each domain, perhaps under `train` and `test`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, compress
from pathlib import Path

import numpy as np

from onepass.data import HIDDEN, SUFFIXES, BadImages, LocatedFiles, Source, images
from onepass.errors import UsageError

TEST_SHARE = 0.2
TEST_NAMES = ("test", "val", "validation", "valid")
OWN_SIZE_LIMIT = 96  # pixels a side up to which images keep their size
DEFAULT_SIZE = 64
WHERE = ": put them there as class/image.jpg, or as train/class and test/class"
NAMED = 10  # bad images that a note names

Labelled = tuple[Path, int]


@dataclass(frozen=True)
class Layout:
    """Where a folder keeps its classes: each class's folder by its name, or by domain/class."""

    root: Path
    train: dict[str, Path]
    test: dict[str, Path] | None  # None: held out of train
    unused: tuple[str, ...] = ()  # folders beside train and test
    domains: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        return (*self.train.values(), *(self.test or {}).values())


def find(path: Path, image_size: int = 0, bad_images: BadImages = "skip") -> LocatedFiles | None:
    """A folder with folders of images; only the folders' names are looked at."""
    layout = detect_layout(path)
    if layout is None:
        return None
    each = "domain and class" if layout.domains else "class"
    form = "image folder, train and test" if layout.test else f"image folder, one folder for each {each}"
    return LocatedFiles(form, layout.files, partial(_read, layout, image_size, bad_images))


def detect_layout(path: Path) -> Layout | None:
    """Train and test if there are folders of that name with class folders in them, else every folder is a class; or
    a domain, if all have the same class folders and nothing else in them."""
    layout = _layout(path.resolve()) if path.is_dir() else None
    if layout is None:
        return None
    train, test = _by_domain(layout.train), None if layout.test is None else _by_domain(layout.test)
    if not train or test == {}:
        return layout
    return replace(layout, train=train, test=test, domains=tuple(layout.train))


def _by_domain(folders: dict[str, Path]) -> dict[str, Path]:
    """The class folders by domain/class if these are domains: two or more that hold no images but the same classes."""
    inside: dict[str, dict[str, Path]] = {}
    for name, path in folders.items():
        if any(Path(entry.name).suffix.lower() in SUFFIXES for entry in _entries(path)):
            return {}
        inside[name] = subfolders(path)
        names = inside[name].keys()
        if len(names) < 2 or names != next(iter(inside.values())).keys() or "train" in names:
            return {}
    if len(inside) < 2:
        return {}
    return {f"{domain}/{name}": path for domain, classes in inside.items() for name, path in classes.items()}


def _layout(root: Path) -> Layout | None:
    top = subfolders(root)
    by_role = {name.lower(): name for name in top}
    train = subfolders(top[by_role["train"]]) if "train" in by_role else {}
    tests = [by_role[name] for name in TEST_NAMES if name in by_role]
    if not train or (len(top) > 1 and not tests):  # one of the classes may well be trains
        return Layout(root, top, None) if top else None
    inside = {name: subfolders(top[name]) for name in tests}
    chosen = next((name for name in tests if inside[name].keys() & train.keys()), None)
    if chosen is None and any(inside.values()):
        raise UsageError(
            f"{root}: {' and '.join(tests)} has the folders {_some([*chain(*inside.values())])}, none of which is in "
            f"train ({_some(list(train))}): images to test on need the same class folders"
        )
    unused = tuple(name for name in top if name not in (by_role["train"], chosen))
    return Layout(root, train, None if chosen is None else inside[chosen], unused)


def _entries(path: Path) -> list[os.DirEntry[str]]:
    """What is in a folder and not hidden."""
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if not entry.name.startswith(HIDDEN)]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _is(kind: Callable[[], bool]) -> bool:
    """Whether an entry is of a kind; a link to itself is of none."""
    try:
        return kind()
    except OSError:
        return False


def subfolders(path: Path) -> dict[str, Path]:
    """The folders in a folder by name, in the order of classes."""
    found = {}
    for entry in _entries(path):
        if not _is(entry.is_dir):
            continue
        if entry.is_symlink():
            raise UsageError(f"{entry.path} is a link to a folder, which is not followed: put the folder itself there")
        found[entry.name] = Path(entry.path)
    return {name: found[name] for name in sorted(found, key=images.by_numbers)}


def list_images(folder: Path, root: Path) -> list[Path]:
    """All images in a folder and in the folders inside it, sorted; a link must not lead out of root."""
    found, folders = [], [folder]
    for inside in folders:  # which grows
        folders.extend(subfolders(inside).values())
        for entry in _entries(inside):
            path = Path(entry.path)
            if path.suffix.lower() not in SUFFIXES or not _is(entry.is_file):
                continue
            if entry.is_symlink() and not path.resolve().is_relative_to(root):
                raise UsageError(f"{path} is a link that leads out of {root}, which is refused: copy the image there")
            found.append(path)
    return sorted(found)


def _read(layout: Layout, image_size: int, bad_images: BadImages) -> Source:
    classes = tuple(layout.train)
    if len(classes) < 2:
        raise UsageError(_one_class(layout))
    if more := [name for name in layout.test or () if name not in layout.train]:
        raise UsageError(f"{layout.root} has {_some(more)} to test on, but nothing of that name to train on")
    notes = [f"not used: the folder {name}" for name in layout.unused]
    names = tuple(dict.fromkeys(name.rpartition("/")[2] for name in classes))
    if layout.domains:
        notes.append(f"{_some(layout.domains)} are domains: each has the classes {_some(names)}")
    train = _labelled(layout.root, classes, layout.train)
    if layout.test is not None:
        test = _labelled(layout.root, classes, layout.test)
    else:
        train, test = hold_out(layout.root, train, classes, TEST_SHARE, "folder")
        notes.append(f"no test folder: {TEST_SHARE:.0%} of each class were held out for testing (seed {images.SEED})")
    source = assemble(layout.root, classes, train, test, image_size, bad_images, notes)
    return replace(source, classes=names, domains=layout.domains)


def _labelled(root: Path, classes: tuple[str, ...], folders: dict[str, Path]) -> list[Labelled]:
    return [
        (path, label)
        for label, name in enumerate(classes)
        if name in folders
        for path in list_images(folders[name], root)
    ]


def hold_out(
    root: Path, found: Sequence[Labelled], classes: tuple[str, ...], share: float, purpose: str
) -> tuple[list[Labelled], list[Labelled]]:
    """The images to train on, and a share of every class to test on."""
    if not found:
        raise UsageError(f"{root} has no images{WHERE}")
    is_test = images.held_out(np.array([label for _, label in found]), classes, share, purpose, root)
    return list(compress(found, ~is_test)), list(compress(found, is_test))


def assemble(
    root: Path,
    classes: tuple[str, ...],
    train: Sequence[Labelled],
    test: Sequence[Labelled],
    image_size: int,
    bad_images: BadImages,
    notes: Sequence[str],
) -> Source:
    """A source of the images that decode. Only headers are read here: each image is decoded once, by its block.

    A label may be domain * len(classes) + class.
    """
    bad: dict[Path, str] = {}  # and why: known from the header of some, from the block of others
    check = partial(_all_there, root, classes, train, test, bad)
    check()
    paths = [path for path, _ in (*train, *test)]
    sizes = set()  # of images that will not decode too: to leave them out would mean decoding twice
    for path, size in zip(paths, images.measured(paths), strict=True):
        if isinstance(size, str):
            bad[path] = size
        else:
            sizes.add(size)
    check()
    side, reason = _size(sizes, image_size)
    splits = [images.decoded([item for item in found if item[0] not in bad], side, bad) for found in (train, test)]
    finish = partial(_finish, paths, bad, bad_images, check)
    return Source(classes, splits[0], splits[1], (*notes, *([reason] if reason else [])), finish)


def _finish(
    paths: Sequence[Path], bad: Mapping[Path, str], bad_images: BadImages, check: Callable[[], None]
) -> tuple[str, ...]:
    """What is known once every image was tried, in the order of the files."""
    named = [f"{path} ({bad[path]})" for path in paths if path in bad]
    if not named:
        return ()
    count = f"{len(named)} of {len(paths)} images do not decode"
    if bad_images == "error":
        raise UsageError(f"{_some(named)}: {count}; remove them or mend them")
    check()
    return (f"{count} and were skipped: {_some(named)}",)


def _all_there(
    root: Path, classes: tuple[str, ...], train: Sequence[Labelled], test: Sequence[Labelled], bad: Mapping[Path, str]
) -> None:
    """Every class needs good images on both sides."""
    for side, found in (("train", train), ("test", test)):
        missing = set(range(len(classes))) - {label % len(classes) for path, label in found if path not in bad}
        if not missing:
            continue
        lost = [f"{path} ({bad[path]})" for path, label in found if label % len(classes) in missing and path in bad]
        problem = f"has no images that decode (such as {lost[0]})" if lost else "has no images"
        if all(path in bad for path, _ in (*train, *test)):
            raise UsageError(f"{root} {problem}{WHERE}")
        names = _some([repr(classes[label]) for label in sorted(missing)])
        raise UsageError(f"{root}: class {names} {problem} to {side} on; add some, or remove the class")


def _size(own: set[tuple[int, int]], wanted: int) -> tuple[int, str]:
    """The side of all images, and why if it was chosen here."""
    if wanted:
        return wanted, ""
    if len(own) == 1 and min(side := min(own)) <= OWN_SIZE_LIMIT:
        return min(side), ""
    what = f"{max(own)[0]} x {max(own)[1]} pixels" if len(own) == 1 else f"{len(own)} different sizes"
    return (
        DEFAULT_SIZE,
        f"images of {what} were scaled to {DEFAULT_SIZE} x {DEFAULT_SIZE}; --image-size chooses another",
    )


def _one_class(layout: Layout) -> str:
    ((name, path),) = layout.train.items()
    inner = list(subfolders(path))
    hint = f"; do you mean {path}, which has the folders {_some(inner)}?" if inner else ": a stream needs at least two"
    return f"{layout.root} has only one class, {name!r}{hint}"


def _some(names: Sequence[str], n: int = NAMED) -> str:
    return ", ".join(names[:n]) + (f" and {len(names) - n} more" if len(names) > n else "")
