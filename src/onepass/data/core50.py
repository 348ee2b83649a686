"""CORe50 as it is unpacked: sN/oM holds the frames of object M in session N. Sessions are domains, objects classes."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from onepass.data import BadImages, LocatedFiles, Source, folder
from onepass.data.listing import named_folders
from onepass.errors import UsageError

TESTED = ("s3", "s7", "s10")  # sessions that its authors test on
SIDE = 128


def find(place: Path, image_size: int = 0, bad_images: BadImages = "skip") -> LocatedFiles | None:
    for root in named_folders(place, ("core50",)):
        if (found := at(root, image_size, bad_images)) is not None:
            return found
    return None


def at(root: Path, image_size: int = 0, bad_images: BadImages = "skip") -> LocatedFiles | None:
    """The data set in this very folder: all its folders are sessions, those of the test among them."""
    if not root.is_dir():
        return None
    root = root.resolve()
    sessions = _numbered(folder.subfolders(root), "s")
    if not sessions or not {*TESTED, "s1"} <= sessions.keys():
        return None
    return LocatedFiles(
        "CORe50's sessions", tuple(sessions.values()), partial(_read, root, sessions, image_size, bad_images)
    )


def _numbered(folders: dict[str, Path], letter: str) -> dict[str, Path]:
    """The folders in the order of their numbers if all are named by this letter and a number; else none."""
    if not all(re.fullmatch(rf"{letter}[1-9]\d{{0,8}}", name) for name in folders):
        return {}
    return {name: folders[name] for name in sorted(folders, key=lambda name: int(name[1:]))}


def _read(root: Path, sessions: dict[str, Path], image_size: int, bad_images: BadImages) -> Source:
    inside = {session: _numbered(folder.subfolders(path), "o") for session, path in sessions.items()}
    if odd := [session for session, objects in inside.items() if len(objects) < 2]:
        raise UsageError(f"{root / odd[0]}: expected the folders o1, o2 and so on, and no others; unpack CORe50 again")
    classes = tuple(_numbered({name: path for objects in inside.values() for name, path in objects.items()}, "o"))
    train: list[folder.Labelled] = []
    test: list[folder.Labelled] = []
    for domain, (session, objects) in enumerate(inside.items()):
        part = test if session in TESTED else train
        for label, name in enumerate(classes):
            if name in objects:
                found = folder.list_images(objects[name], root)
                part += [(path, domain * len(classes) + label) for path in found]
    source = folder.assemble(root, classes, train, test, image_size or SIDE, bad_images, [])
    return replace(source, domains=tuple(sessions))
