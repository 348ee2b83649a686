"""A folder by its path: of a data set whose layout is known, or of a person's own images."""

from __future__ import annotations

from pathlib import Path

from onepass.data import BadImages, LocatedFiles, core50, cub, folder, tiny_imagenet


def find(path: Path, image_size: int = 0, bad_images: BadImages = "skip") -> LocatedFiles | None:
    known = (tiny_imagenet.at, cub.at, core50.at)
    found = (at(path, image_size, bad_images) for at in known)
    return next((layout for layout in found if layout is not None), None) or folder.find(path, image_size, bad_images)
