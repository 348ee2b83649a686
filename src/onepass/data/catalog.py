"""Streams by name or by path: where their images are looked for, and what suits them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from onepass.config import unknown
from onepass.errors import UsageError

if TYPE_CHECKING:
    from onepass.data import Dataset, Found


@dataclass(frozen=True)
class Stream:
    """A data set as a stream: its tasks, and what suits its images."""

    n_tasks: int
    net: str
    augment: str
    about: str
    aliases: tuple[str, ...] = ()
    n_classes: int = 0  # 0: as there are
    shape: tuple[int, int, int] = (0, 0, 0)


STREAMS: dict[str, Stream] = {
    "digits": Stream(5, "small-cnn", "digits", "8x8 digits, 10 classes; part of onepass", (), 10, (1, 8, 8)),
    "cifar10": Stream(
        5,
        "resnet18",
        "colour",
        "Split CIFAR-10: 32x32 photographs, 10 classes; onepass data get cifar10",
        ("split-cifar10", "seq-cifar10", "splitcifar10", "cifar-10", "split-cifar-10"),
        10,
        (3, 32, 32),
    ),
    "cifar100": Stream(
        10,
        "resnet18",
        "colour",
        "Split CIFAR-100: 32x32 photographs, 100 classes; onepass data get cifar100",
        ("split-cifar100", "seq-cifar100", "splitcifar100", "cifar-100", "split-cifar-100"),
        100,
        (3, 32, 32),
    ),
    "mini-imagenet": Stream(
        10,
        "resnet18",
        "colour",
        "Split MiniImageNet: 84x84 photographs, 100 classes; onepass data get mini-imagenet",
        ("split-miniimagenet", "split-mini-imagenet", "seq-miniimg", "splitminiimagenet", "miniimagenet"),
        100,
        (3, 84, 84),
    ),
}
BadImages = Literal["skip", "error"]
OWN = Stream(5, "slim-resnet18", "colour", "your own images: a folder or an .npz")


def is_path(name: str) -> bool:
    return os.sep in name or name.endswith(".npz") or name.startswith((".", "~"))


def canonical(name: str) -> str:
    """The one spelling of a stream: its name here for any alias, an absolute path for a path."""
    if is_path(name) or (name not in STREAMS and Path(name).is_dir()):
        return str(Path(name).expanduser().resolve())
    wanted = name.lower().replace("_", "-")
    for known, stream in STREAMS.items():
        if wanted in (known, *stream.aliases):
            return known
    raise unknown("stream", name, STREAMS, "onepass streams lists all; a path to a folder or .npz works too")


def find_stream(name: str) -> Stream:
    """What is known about a stream given by its canonical name."""
    return OWN if is_path(name) else STREAMS[name]


def data_dir(given: Path | str | None = None) -> Path:
    """--data-dir, else ONEPASS_DATA, else the user's cache folder."""
    if given or os.environ.get("ONEPASS_DATA"):
        return Path(given or os.environ["ONEPASS_DATA"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "onepass"


def load(
    name: str,
    *,
    root: Path | str | None = None,
    image_size: int = 0,
    bad_images: BadImages = "skip",
    progress: Callable[[int, int], None] = lambda done, total: None,
    tell: Callable[[list[str]], None] = lambda notes: None,
) -> Dataset:
    """The data set of a stream; its arrays are made on the first call, which tells what was noted, and opened on every
    other."""
    from onepass.data import cache

    place = data_dir(root)
    if image_size and name != "mini-imagenet" and (not is_path(name) or name.endswith(".npz")):
        raise UsageError(f"--image-size {image_size}: {name} keeps its size; folders and mini-imagenet can be scaled")
    if name == "digits":
        from onepass.data import digits

        return digits.load()
    folder = cache_folder(name, place, image_size)
    found = find(name, place, image_size, bad_images)
    if found is None:
        ready = cache.open_cache(folder)  # the files it was made from may be gone
        if ready is None:
            raise UsageError(_missing(name, place))
        return ready
    ready = cache.open_cache(folder, found.files)
    if ready is None:
        ready = cache.write_cache(folder, found, progress)
        tell(cache.notes(folder))
    skipped = [note for note in cache.notes(folder) if "do not decode" in note]
    if skipped and bad_images == "error":
        raise UsageError(f"{name}: {'; '.join(skipped)}; remove or mend them, or leave --bad-images at skip")
    return ready


def find(name: str, place: Path, image_size: int = 0, bad_images: BadImages = "skip") -> Found | None:
    """The files of a stream, in whatever form they are there."""
    if is_path(name):
        from onepass.data import folder, npz

        if name.endswith(".npz"):
            return npz.find(Path(name))
        return folder.find(Path(name), image_size, on_bad=bad_images)
    if name == "mini-imagenet":
        from onepass.data import mini_imagenet

        return mini_imagenet.find(place, image_size)
    from onepass.data import cifar, parquet

    layouts, label, n = (cifar.CIFAR10, "label", 10) if name == "cifar10" else (cifar.CIFAR100, "fine_label", 100)
    return cifar.find(place, layouts) or parquet.find(place, label, n, side=32)


def cache_folder(name: str, place: Path, image_size: int) -> Path:
    label = f"{Path(name).stem}-{hashlib.sha256(name.encode()).hexdigest()[:8]}" if is_path(name) else name
    return place / "arrays" / (f"{label}-{image_size}" if image_size else label)


def _missing(name: str, place: Path) -> str:
    if is_path(name):
        path = Path(name)
        what = "has no class folders" if path.is_dir() else "is a single file" if path.exists() else "does not exist"
        return f"{name} {what}: needed is a folder of class/image.jpg, or train/class and test/class, or an .npz"
    return f"no {name} in {place}; run: onepass data get {name}   (--data-dir or ONEPASS_DATA name another folder)"
