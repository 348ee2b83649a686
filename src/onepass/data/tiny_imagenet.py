"""Tiny ImageNet as it is unpacked: train/CLASS/images, and val/images with a list of their classes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from onepass.data import BadImages, LocatedFiles, Source, folder
from onepass.data.listing import named_folders, rows
from onepass.errors import UsageError

N_CLASSES = 200
LIST = "val_annotations.txt"


def find(place: Path, image_size: int = 0, bad_images: BadImages = "skip") -> LocatedFiles | None:
    """A folder of its name; its test images, which have no labels, are not used. Validation images may lie in class
    folders too."""
    for root in named_folders(place, ("tinyimagenet",)):
        found = at(root, image_size, bad_images, N_CLASSES) or folder.find(root, image_size, bad_images)
        if found is not None:
            return found
    return None


def at(root: Path, image_size: int = 0, bad_images: BadImages = "skip", n_classes: int = 0) -> LocatedFiles | None:
    """The data set in this very folder; with any number of classes unless one is given."""
    root = root.resolve()
    train, val = root / "train", root / "val"
    if not train.is_dir() or not (val / "images").is_dir() or not (val / LIST).is_file():
        return None
    files = (train, val / "images", val / LIST)
    return LocatedFiles("Tiny ImageNet's folders", files, partial(_read, root, image_size, bad_images, n_classes))


def _read(root: Path, image_size: int, bad_images: BadImages, n_classes: int) -> Source:
    folders = folder.subfolders(root / "train")
    classes = tuple(folders)
    if n_classes and len(classes) != n_classes:
        raise UsageError(
            f"{root / 'train'} has {len(classes)} class folders and Tiny ImageNet has {n_classes}: unpack it again, or "
            f"give {root} as a path if it is a part on purpose"
        )
    index = {name: label for label, name in enumerate(classes)}
    train = [(path, index[name]) for name in classes for path in folder.list_images(folders[name], root)]
    there = {path.name: path for path in folder.list_images(root / "val" / "images", root)}
    place = root / "val" / LIST
    listed = rows(place, 2)
    for name, label in listed:
        if label not in index:
            raise UsageError(f"{place} lists the class {label!r}, which is not in train; unpack it again")
        if name not in there:
            raise UsageError(f"{place} lists the image {name!r}, which is not in val; unpack it again")
    if len(listed) != len(there) or len(dict(listed)) != len(listed):
        many = f"{len(listed)} images, {len(dict(listed))} of them different, and {len(there)} are there"
        raise UsageError(f"{place} lists {many}; unpack it again")
    test = [(there[name], index[label]) for name, label in listed]
    test.sort(key=lambda item: item[1])  # stable: in the order of the list within each class
    return folder.assemble(root, classes, train, test, image_size, bad_images, [])
