"""The digits are scikit-learn's, and their split into training and test images never changes."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from onepass.data import Dataset
from onepass.data.digits import load


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load()


def rows(x: torch.Tensor, y: torch.Tensor) -> Counter[tuple[bytes, int]]:
    """Images with labels, each as often as it occurs."""
    return Counter((image.numpy().tobytes(), int(label)) for image, label in zip(x, y, strict=True))


def test_pixels_and_labels_are_scikit_learns_scaled_from_16_to_255(digits: Dataset) -> None:
    theirs = load_digits()
    pixels = torch.from_numpy(np.floor(theirs.images * 255 / 16 + 0.5).astype(np.uint8))[:, None]
    every = rows(pixels.contiguous(), torch.from_numpy(theirs.target))
    assert rows(digits.x, digits.y) + rows(digits.x_test, digits.y_test) == every  # so no row is in both parts
    assert len(digits.x) + len(digits.x_test) == 1797


def test_images_and_labels_have_the_shapes_and_types_of_a_dataset(digits: Dataset) -> None:
    for x, y in ((digits.x, digits.y), (digits.x_test, digits.y_test)):
        assert tuple(x.shape) == (len(y), 1, 8, 8)
        assert (x.dtype, y.dtype) == (torch.uint8, torch.int64)
        assert (int(x.min()), int(x.max())) == (0, 255)
        assert sorted(set(y.tolist())) == list(range(10))
    assert digits.classes == ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")


def test_a_fifth_of_every_class_is_for_testing(digits: Dataset) -> None:
    every = np.bincount(load_digits().target)
    test = digits.y_test.bincount().tolist()
    assert test == [round(n / 5) for n in every]
    assert (digits.y.bincount() + digits.y_test.bincount()).tolist() == every.tolist()


def test_the_split_is_random_within_a_class_but_always_the_same(digits: Dataset) -> None:
    again = load()
    for name in ("x", "y", "x_test", "y_test"):
        assert torch.equal(getattr(digits, name), getattr(again, name))
    content = digits.x_test.numpy().tobytes() + digits.y_test.numpy().tobytes()
    # Numbers in the store and the documents were measured on these test images.
    assert hashlib.sha256(content).hexdigest()[:16] == "ac1f11ab985b55ef"


def test_loading_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    load()
    assert torch.equal(torch.get_rng_state(), before)
