"""CUB-200-2011, the birds, as it is unpacked: images/NNN.Name, and lists that split them into training and test."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from onepass.data import BadImages, LocatedFiles, Source, folder
from onepass.data.listing import named_folders, rows
from onepass.errors import UsageError

LISTS = ("images.txt", "train_test_split.txt")


def find(place: Path, image_size: int = 0, bad_images: BadImages = "skip") -> LocatedFiles | None:
    for root in named_folders(place, ("cub200",)):
        if (found := at(root, image_size, bad_images)) is not None:
            return found
    return None


def at(root: Path, image_size: int = 0, bad_images: BadImages = "skip") -> LocatedFiles | None:
    """The data set in this very folder."""
    root = root.resolve()
    lists = tuple(root / name for name in LISTS)
    if not (root / "images").is_dir() or not all(path.is_file() for path in lists):
        return None
    return LocatedFiles(
        "CUB-200-2011's folders", (root / "images", *lists), partial(_read, root, image_size, bad_images)
    )


def _read(root: Path, image_size: int, bad_images: BadImages) -> Source:
    folders = folder.subfolders(root / "images")
    classes = tuple(folders)  # 001.Black_footed_Albatross and so on
    named, split = (dict(rows(root / name, 2)) for name in LISTS)
    if named.keys() != split.keys() or not set(split.values()) <= {"0", "1"}:
        raise UsageError(
            f"{root}: {' and '.join(LISTS)} do not list the same images, with 1 or 0 each; unpack it again"
        )
    learned = {word: split[number] == "1" for number, word in named.items()}
    parts: dict[bool, list[folder.Labelled]] = {True: [], False: []}
    missing = set(learned)
    for label, name in enumerate(classes):
        for path in folder.list_images(folders[name], root):
            word = path.relative_to(root / "images").as_posix()
            if word not in learned:
                raise UsageError(f"{path} is not in {root / LISTS[0]}: remove it, or unpack all again")
            parts[learned[word]].append((path, label))
            missing.discard(word)
    if missing:
        raise UsageError(
            f"{len(missing)} of {len(learned)} images are not there, such as {min(missing)!r}; unpack it again"
        )
    return folder.assemble(root, classes, parts[True], parts[False], image_size, bad_images, [])
