"""Streams by name or by path: who finds their data, and what suits them. A new form of data is a file and a line."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onepass.config import unknown
from onepass.data import BadImages, Dataset, LocatedFiles
from onepass.errors import BadData, UsageError


@dataclass(frozen=True)
class Stream:
    """A data set as a stream: who finds its files, its tasks, and what suits its images.

    `find` is MODULE:FUNCTION below onepass.data, imported when it is needed. It is called with the data folder (with
    the path, for data of one's own), the size of images that was asked for and what to do about images that do not
    decode. It gives a data set, or where its files are, or None where there are none.

    `vectors` tells of a path in the same way whether it holds vectors, where images are the rule.
    """

    find: str
    n_tasks: int
    net: str
    augment: str
    about: str
    aliases: tuple[str, ...] = ()
    n_classes: int = 0  # 0: as there are
    shape: tuple[int, int, int] = (0, 0, 0)
    scales: bool = False  # whether another size of images may be asked for
    scenario: str = "class-incremental"  # what methods run on unless told otherwise
    vectors: str = ""


STREAMS: dict[str, Stream] = {
    "digits": Stream(
        "digits:find", 5, "small-cnn", "digits", "8x8 digits, 10 classes; part of onepass", (), 10, (1, 8, 8)
    ),
    "rotated-digits": Stream(
        "digit_domains:find_rotated",
        6,
        "small-cnn",
        "digits",
        "domains: the digits turned by 0, 15, 30, 45, 60 and 75 degrees; part of onepass",
        (),
        10,
        (1, 8, 8),
        scenario="domain-incremental",
    ),
    "inverted-digits": Stream(
        "digit_domains:find_inverted",
        2,
        "small-cnn",
        "digits",
        "domains: the digits white on black and black on white; part of onepass",
        (),
        10,
        (1, 8, 8),
        scenario="domain-incremental",
    ),
    "permuted-digits": Stream(
        "digit_domains:find_permuted",
        5,
        "small-cnn",
        "none",
        "domains: the digits, and their pixels in four other orders; part of onepass",
        (),
        10,
        (1, 8, 8),
        scenario="domain-incremental",
    ),
    "cifar10": Stream(
        "cifar:find_cifar10",
        5,
        "resnet18",
        "colour",
        "Split CIFAR-10: 32x32 photographs, 10 classes; onepass data get cifar10",
        ("split-cifar10", "seq-cifar10", "splitcifar10", "cifar-10", "split-cifar-10"),
        10,
        (3, 32, 32),
    ),
    "cifar100": Stream(
        "cifar:find_cifar100",
        10,
        "resnet18",
        "colour",
        "Split CIFAR-100: 32x32 photographs, 100 classes; onepass data get cifar100",
        ("split-cifar100", "seq-cifar100", "splitcifar100", "cifar-100", "split-cifar-100"),
        100,
        (3, 32, 32),
    ),
    "mini-imagenet": Stream(
        "mini_imagenet:find",
        10,
        "resnet18",
        "colour",
        "Split MiniImageNet: 84x84 photographs, 100 classes; onepass data get mini-imagenet",
        ("split-miniimagenet", "split-mini-imagenet", "seq-miniimg", "splitminiimagenet", "miniimagenet"),
        100,
        (3, 84, 84),
        scales=True,
    ),
    "mnist": Stream(
        "idx:find_mnist",
        5,
        "small-cnn",
        "digits",
        "Split MNIST: 28x28 handwritten digits, 10 classes; onepass data get mnist",
        ("split-mnist", "seq-mnist", "splitmnist"),
        10,
        (1, 28, 28),
    ),
    "fashion-mnist": Stream(
        "idx:find_fashion",
        5,
        "small-cnn",
        "colour",
        "Split Fashion-MNIST: 28x28 clothes, 10 classes; onepass data get fashion-mnist",
        ("split-fashion-mnist", "seq-fashion-mnist", "fashionmnist", "splitfashionmnist"),
        10,
        (1, 28, 28),
    ),
    "tiny-imagenet": Stream(
        "tiny_imagenet:find",
        10,
        "resnet18",
        "colour",
        "Split Tiny ImageNet: 64x64 photographs, 200 classes; onepass data get tiny-imagenet",
        ("split-tiny-imagenet", "split-tinyimagenet", "seq-tinyimg", "tinyimagenet", "tiny-imagenet-200"),
        200,
        (3, 64, 64),
        scales=True,
    ),
    "cub200": Stream(
        "cub:find",
        10,
        "slim-resnet18",
        "colour",
        "Split CUB-200-2011: photographs of birds, scaled to 64x64, 200 classes; onepass data get cub200",
        ("split-cub200", "seq-cub200", "cub-200", "cub-200-2011"),
        200,
        (3, 64, 64),
        scales=True,
    ),
    "core50": Stream(
        "core50:find",
        8,
        "slim-resnet18",
        "colour",
        "CORe50: 128x128 photographs of 50 objects, domains are its sessions; onepass data get core50",
        ("core-50",),
        50,
        (3, 128, 128),
        scales=True,
        scenario="domain-incremental",
    ),
}
OWN: dict[str, Stream] = {  # data of one's own, by the suffix of its path
    "": Stream("own_folder:find", 5, "slim-resnet18", "colour", "a folder of images", scales=True),
    ".npz": Stream("npz:find", 5, "slim-resnet18", "colour", "an .npz", vectors="npz:holds_vectors"),
    ".npy": Stream("npy:find", 5, "slim-resnet18", "colour", "an .npy", vectors="npy:holds_vectors"),
    ".csv": Stream("csv_table:find", 5, "mlp", "none", "a .csv"),
    ".tsv": Stream("csv_table:find", 5, "mlp", "none", "a .tsv"),
    ".parquet": Stream("parquet_table:find", 5, "mlp", "none", "a .parquet"),
}
_abouts = [stream.about for stream in OWN.values()]
PATHS = f"{', '.join(_abouts[:-1])} or {_abouts[-1]}"  # for help texts


def is_path(name: str) -> bool:
    return os.sep in name or name.startswith((".", "~")) or bool(_suffix(name))


def _suffix(name: str) -> str:
    suffix = Path(name).suffix.lower()
    return suffix if suffix in OWN else ""


def canonical(name: str) -> str:
    """The one spelling of a stream: its name here for any alias, an absolute path for a path."""
    if is_path(name) or (name not in STREAMS and Path(name).is_dir()):
        return str(_at_home(name).resolve())
    spelling = name.lower().replace("_", "-")
    for known, stream in STREAMS.items():
        if spelling in (known, *stream.aliases):
            return known
    raise unknown("stream", name, STREAMS, f"onepass streams lists all; a path to {PATHS} works too")


def find_stream(name: str) -> Stream:
    """What is known about a stream given by its canonical name."""
    return OWN[_suffix(name)] if is_path(name) else STREAMS[name]


def suited(name: str) -> Stream:
    """The same after a look at the file, if its form may hold images or vectors: other networks suit vectors."""
    stream = find_stream(name)
    holds_vectors = stream.vectors and _called(stream.vectors, Path(name))
    return replace(stream, net="mlp", augment="none") if holds_vectors else stream


def _called(function: str, *values: Any) -> Any:
    """What MODULE:FUNCTION below onepass.data gives."""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(f"onepass.data.{module}"), name)(*values)


def data_dir(given: Path | str | None = None) -> Path:
    """--data-dir, else ONEPASS_DATA, else the user's cache folder."""
    if given or os.environ.get("ONEPASS_DATA"):
        return _at_home(given or os.environ["ONEPASS_DATA"])
    return _at_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "onepass"


def _at_home(path: Path | str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # nobody is logged in, or nobody has that name
        raise UsageError(
            f"{path}: there is no such home folder; --data-dir or ONEPASS_DATA name one for data"
        ) from None


class Datasets:
    """The data sets that a command needs: each is found, compared with its files and opened once.

    `rescan=False` is for workers of a command that has just compared them: what is there is opened as it is.
    """

    def __init__(
        self,
        root: Path | str | None = None,
        *,
        bad_images: BadImages = "skip",
        rescan: bool = True,
        progress: Callable[[int, int], None] = lambda done, total: None,
        tell: Callable[[list[str]], None] = lambda notes: None,
    ) -> None:
        self.place, self.bad_images, self.rescan = data_dir(root), bad_images, rescan
        self.progress, self.tell = progress, tell
        self.opened: dict[tuple[str, int], Dataset] = {}

    def load(self, name: str, image_size: int = 0) -> Dataset:
        """The data set of a stream; its arrays are made on the first call ever, which tells what was noted."""
        if (name, image_size) not in self.opened:
            self.opened[name, image_size] = self._open(name, image_size)
        return self.opened[name, image_size]

    def _open(self, name: str, image_size: int) -> Dataset:
        from onepass.data import cache

        if image_size and not find_stream(name).scales:
            scalable = [known for known, stream in STREAMS.items() if stream.scales]
            can = ", ".join([*scalable, *(stream.about for stream in OWN.values() if stream.scales)])
            raise UsageError(f"--image-size {image_size}: {name} keeps its size; these can be scaled: {can}")
        folder = cache_folder(name, self.place, image_size)
        if not self.rescan and (ready := cache.open_cache(folder)) is not None:
            return ready
        located = find(name, self.place, image_size, self.bad_images)
        if isinstance(located, Dataset):
            return located
        if located is None:
            ready = cache.open_cache(folder)  # the files it was made from may be gone
            if ready is None and (folder / "meta.json").exists():
                raise BadData(
                    f"the array cache {folder} is damaged or of another version: delete it, and bring {name} again"
                )
            if ready is None:
                raise UsageError(_missing(name, self.place))
            return ready
        ready = cache.open_cache(folder, located.files)
        if ready is None:
            if folder.exists():
                self.tell(
                    [f"the array cache {folder} is damaged, or of other files than are there now: it was made again"]
                )
            ready = cache.write_cache(folder, located, self.progress)
            self.tell(cache.notes(folder))
        skipped = [note for note in cache.notes(folder) if "do not decode" in note]
        if skipped and self.bad_images == "error":
            raise UsageError(f"{name}: {'; '.join(skipped)}; remove or mend them, or leave --bad-images at skip")
        return ready


def load(name: str, *, root: Path | str | None = None, image_size: int = 0) -> Dataset:
    """The data set of a stream; where several are needed, or one several times, `Datasets` opens each once."""
    return Datasets(root).load(name, image_size)


def find(name: str, place: Path, image_size: int = 0, bad_images: BadImages = "skip") -> Dataset | LocatedFiles | None:
    """The files of a stream, in whatever form they are there."""
    where = Path(name) if is_path(name) else place
    located: Dataset | LocatedFiles | None = _called(find_stream(name).find, where, image_size, bad_images)
    return located


def cache_folder(name: str, place: Path, image_size: int) -> Path:
    label = f"{Path(name).stem}-{hashlib.sha256(name.encode()).hexdigest()[:8]}" if is_path(name) else name
    return place / "arrays" / (f"{label}-{image_size}" if image_size else label)


def _missing(name: str, place: Path) -> str:
    if is_path(name):
        path = Path(name)
        what = "has no class folders" if path.is_dir() else "is a single file" if path.exists() else "does not exist"
        files = ", ".join(suffix for suffix in OWN if suffix)
        return f"{name} {what}: expected a folder of class/image.jpg, of train/class and test/class, or {files}"
    here = f"; the folder of that name here is the stream .{os.sep}{name}" if Path(name).is_dir() else ""
    return (
        f"no {name} in {place}; run: onepass data get {name}   (--data-dir or ONEPASS_DATA name another folder){here}"
    )
