"""A person's own images: a folder for each class, perhaps under `train` and `test`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Literal

from onepass.data import Found, Source, images
from onepass.errors import UsageError

TEST_SHARE = 0.2
TEST_NAMES = ("test", "val", "validation", "valid")
OWN_SIZE_LIMIT = 96  # pixels a side up to which images keep their size
DEFAULT_SIZE = 64
NAMED = 10  # bad images that a note names

OnBad = Literal["skip", "error"]
Labelled = tuple[Path, int]


@dataclass(frozen=True)
class Layout:
    """Where a folder keeps its classes: each class's folder by its name."""

    root: Path
    train: dict[str, Path]
    test: dict[str, Path] | None  # None: held out of train

    @property
    def files(self) -> tuple[Path, ...]:
        folders = (*self.train.values(), *(self.test or {}).values())
        return tuple(dict.fromkeys((self.root, *(path.parent for path in folders), *folders)))


def find(path: Path, image_size: int, *, on_bad: OnBad = "skip") -> Found | None:
    """A folder with folders of images; only the folders' names are looked at."""
    layout = look(path)
    if layout is None:
        return None
    form = "image folder, train and test" if layout.test else "image folder, one folder for each class"
    return Found(form, layout.files, partial(_read, layout, image_size, on_bad))


def look(path: Path) -> Layout | None:
    if not path.is_dir():
        return None
    root = path.resolve()
    top = subfolders(root)
    train = subfolders(top["train"]) if "train" in top else {}
    if not train:  # one of the classes may well be trains
        return Layout(root, top, None) if top else None
    candidates = {name: subfolders(top[name]) for name in TEST_NAMES if name in top}
    for test in candidates.values():
        if test.keys() & train.keys():
            return Layout(root, train, test)
    if candidates and any(candidates.values()):
        name, classes = next((name, classes) for name, classes in candidates.items() if classes)
        raise UsageError(
            f"{root / name} has the classes {_some(list(classes))}, none of which {root / 'train'} has "
            f"({_some(list(train))}): a test folder needs the same class folders"
        )
    others = [name for name in top if name != "train"]
    return Layout(root, train, None) if not others or candidates else Layout(root, top, None)


def subfolders(path: Path) -> dict[str, Path]:
    """The folders in a folder by name, in the order of classes."""
    found = {}
    for entry in os.scandir(path):
        if entry.name.startswith((".", "__")) or not entry.is_dir():
            continue
        if entry.is_symlink():
            raise UsageError(f"{entry.path} is a link to a folder, which is not followed: put the folder itself there")
        found[entry.name] = Path(entry.path)
    return {name: found[name] for name in sorted(found, key=images.natural)}


def list_images(folder: Path, root: Path) -> list[Path]:
    """All images in a folder and in the folders inside it, by their names, sorted; links must not lead out of root."""
    found = []
    for entry in os.scandir(folder):
        if entry.name.startswith("."):
            continue
        path = Path(entry.path)
        if path.suffix.lower() in images.SUFFIXES and entry.is_file():
            if entry.is_symlink() and not path.resolve().is_relative_to(root):
                raise UsageError(f"{path} is a link that leads out of {root}, which is refused: copy the image there")
            found.append(path)
    inner = (path for inside in subfolders(folder).values() for path in list_images(inside, root))
    return [*sorted(found), *inner]


def _read(layout: Layout, image_size: int, on_bad: OnBad) -> Source:
    classes = tuple(layout.train)
    if len(classes) < 2:
        raise UsageError(_one_class(layout))
    if more := [name for name in layout.test or () if name not in layout.train]:
        raise UsageError(f"{layout.root} has {_some(more)} to test on, but nothing of that name to train on")
    notes = []
    train = _labelled(layout.root, classes, layout.train)
    if layout.test is not None:
        test = _labelled(layout.root, classes, layout.test)
    else:
        train, test = hold_out(train, classes, TEST_SHARE, "folder")
        notes.append(f"no test folder: {TEST_SHARE:.0%} of each class were held out for testing (seed {images.SEED})")
    return assemble(layout.root, classes, train, test, image_size, on_bad, notes)


def _labelled(root: Path, classes: tuple[str, ...], folders: dict[str, Path]) -> list[Labelled]:
    return [
        (path, label)
        for label, name in enumerate(classes)
        if name in folders
        for path in list_images(folders[name], root)
    ]


def hold_out(
    found: Sequence[Labelled], classes: tuple[str, ...], share: float, purpose: str
) -> tuple[list[Labelled], list[Labelled]]:
    """A share of every class for testing, the same on every machine; it depends on the class's name and size alone."""
    by_label: list[list[Labelled]] = [[] for _ in classes]
    for item in found:
        by_label[item[1]].append(item)
    train: list[Labelled] = []
    test: list[Labelled] = []
    for name, items in zip(classes, by_label, strict=True):
        if len(items) == 1:
            raise UsageError(f"class {name!r} has one image, {items[0][0]}: at least one to train and one to test on")
        for item, is_test in zip(items, images.held_out(len(items), share, purpose, name), strict=True):
            (test if is_test else train).append(item)
    return train, test


def assemble(
    root: Path,
    classes: tuple[str, ...],
    train: Sequence[Labelled],
    test: Sequence[Labelled],
    image_size: int,
    on_bad: OnBad,
    notes: Sequence[str],
) -> Source:
    """A source of the images that decode."""
    _all_there(root, classes, train, test, "has no images")
    both = [*train, *test]
    sizes = list(images.measured([path for path, _ in both]))
    bad = [f"{path} ({size})" for (path, _), size in zip(both, sizes, strict=True) if isinstance(size, str)]
    if bad and on_bad == "error":
        raise UsageError(f"{_some(bad)}: {len(bad)} of {len(both)} images do not decode; remove them or mend them")
    good = [not isinstance(size, str) for size in sizes]
    train, test = list(compress(train, good)), list(compress(test, good[len(train) :]))
    _all_there(root, classes, train, test, f"has no images that decode (such as {_some(bad, 1)})")
    size, reason = _size({size for size in sizes if not isinstance(size, str)}, image_size)
    skipped = [f"{len(bad)} of {len(both)} images do not decode and were skipped: {_some(bad)}"] if bad else []
    every = (*notes, *([reason] if reason else []), *skipped)
    return Source(classes, images.decoded(train, size), images.decoded(test, size), every)


def _all_there(
    root: Path, classes: tuple[str, ...], train: Sequence[Labelled], test: Sequence[Labelled], problem: str
) -> None:
    """Every class needs images on both sides."""
    if not train and not test:
        raise UsageError(f"{root} {problem}: put them there as class/image.jpg, or as train/class and test/class")
    for side, found in (("train", train), ("test", test)):
        if missing := sorted(set(range(len(classes))) - {label for _, label in found}):
            names = _some([repr(classes[label]) for label in missing])
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
    if not layout.train:
        return f"{layout.root} has no folders of images: put them there as class/image.jpg"
    ((name, path),) = layout.train.items()
    inner = list(subfolders(path))
    hint = f"; do you mean {path}, which has the folders {_some(inner)}?" if inner else ": a stream needs at least two"
    return f"{layout.root} has only one class, {name!r}{hint}"


def _some(names: Sequence[str], n: int = NAMED) -> str:
    return ", ".join(names[:n]) + (f" and {len(names) - n} more" if len(names) > n else "")
