"""The 1,797 handwritten digits of 8x8 pixels that scikit-learn ships (UCI, Alpaydin and Kaynak, 1998; CC BY 4.0)."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch

from onepass.data import BadImages, Dataset
from onepass.seeds import generator

TEST_SHARE = 0.2


def find(place: Path, image_size: int = 0, bad_images: BadImages = "skip") -> Dataset:
    """They are part of the package."""
    return load()


def load() -> Dataset:
    """The split into training and test images is part of the data set: the same for every seed."""
    with files("onepass.data").joinpath("digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"]).long()
    rng = generator(0, "digits", "test")
    test = torch.zeros(len(y), dtype=torch.bool)
    for label in range(10):
        members = torch.nonzero(y == label).flatten()
        test[members[torch.randperm(len(members), generator=rng)[: round(TEST_SHARE * len(members))]]] = True
    digest = hashlib.sha256(x.numpy().data)
    digest.update(y.numpy().data)
    return Dataset(x[~test], y[~test], x[test], y[test], tuple("0123456789"), digest.hexdigest())
