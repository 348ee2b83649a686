"""Domains: folders in which every domain has the same classes, their array cache, and those made of the digits."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from data_helpers import noise, save, some_classes
from helpers import some_images
from onepass.data import Dataset, cache, digit_domains, digits
from onepass.data.catalog import STREAMS, Datasets, load
from onepass.errors import UsageError

DOMAINS, CLASSES = ("art", "photo", "sketch"), ("cat", "dog")


def some_domains(root: Path, n: int = 5, first: int = 0) -> Path:
    """Images that are all different: number 100 * domain + 10 * class + i."""
    for d, domain in enumerate(DOMAINS):
        for c, name in enumerate(CLASSES):
            for i in range(n):
                save(root / domain / name / f"{i}.png", noise(first + 100 * d + 10 * c + i))
    return root


def numbers(x: Tensor, y: Tensor, domain: Tensor | None) -> Counter[tuple[int, int, int]]:
    """Each image's number as some_domains gave it, its class and its domain."""
    known = {noise(n).transpose(2, 0, 1).tobytes(): n for n in range(2000)}
    assert domain is not None
    rows = zip(x, y.tolist(), domain.tolist(), strict=True)
    return Counter((known[image.numpy().tobytes()], label, place) for image, label, place in rows)


def opened(root: Path, data: Path) -> Dataset:
    return Datasets(data).load(str(root))


def test_a_folder_of_domains_knows_the_class_and_the_domain_of_each_image(tmp_path: Path) -> None:
    notes: list[str] = []
    root = some_domains(tmp_path / "photos")
    data = Datasets(tmp_path / "data", tell=notes.extend).load(str(root))
    assert (data.domains, data.classes) == (DOMAINS, CLASSES)
    expected = Counter((100 * d + 10 * c + i, c, d) for d in range(3) for c in range(2) for i in range(5))
    train, test = numbers(data.x, data.y, data.domain), numbers(data.x_test, data.y_test, data.domain_test)
    assert train + test == expected
    cells = Counter((label, place) for _, label, place in test)
    assert cells == Counter({(c, d): 1 for c in range(2) for d in range(3)}), "a fifth of each class in each domain"
    assert any("art, photo, sketch are domains: each has the classes cat, dog" in note for note in notes)


def test_domains_under_train_and_test(tmp_path: Path) -> None:
    some_domains(tmp_path / "photos" / "train")
    some_domains(tmp_path / "photos" / "test", n=2, first=1000)
    data = opened(tmp_path / "photos", tmp_path / "data")
    assert numbers(data.x, data.y, data.domain) == Counter(
        (100 * d + 10 * c + i, c, d) for d in range(3) for c in range(2) for i in range(5)
    )
    assert numbers(data.x_test, data.y_test, data.domain_test) == Counter(
        (1000 + 100 * d + 10 * c + i, c, d) for d in range(3) for c in range(2) for i in range(2)
    )


def test_a_domain_that_is_not_tested_or_not_learned_is_named(tmp_path: Path) -> None:
    some_domains(tmp_path / "train")
    some_domains(tmp_path / "test", n=2)
    some_classes(tmp_path / "test" / "clay")
    with pytest.raises(UsageError, match="clay/cat, clay/dog to test on, but nothing of that name to train on"):
        opened(tmp_path, tmp_path / "data")
    some_classes(tmp_path / "train" / "clay")
    some_classes(tmp_path / "train" / "wood")
    with pytest.raises(UsageError, match="class 'wood/cat', 'wood/dog' has no images to test on"):
        opened(tmp_path, tmp_path / "data")


@pytest.mark.parametrize("change", ["an image beside", "another class", "one class", "one domain", "train and test"])
def test_what_is_not_plainly_domains_stays_classes(tmp_path: Path, change: str) -> None:
    root = some_domains(tmp_path / "photos")
    if change == "an image beside":
        save(root / "photo" / "cover.png", noise(7))
    if change == "another class":
        some_classes(root / "sketch", ("cow",))
    if change == "one class":
        for domain in DOMAINS:
            for path in (root / domain / "dog").iterdir():
                path.unlink()
            (root / domain / "dog").rmdir()
    if change == "one domain":
        root = root / "art"
    if change == "train and test":
        for domain in DOMAINS:
            (root / domain / "cat").rename(root / domain / "train")
            (root / domain / "dog").rename(root / domain / "test")
    data = opened(root, tmp_path / "data")
    assert (data.domain, data.domain_test, data.domains) == (None, None, ())
    assert data.classes == (CLASSES if change == "one domain" else DOMAINS)


def test_the_cache_of_domains_is_whole_or_none(tmp_path: Path) -> None:
    root = some_domains(tmp_path / "photos")
    data = opened(root, tmp_path / "data")
    [folder] = (tmp_path / "data" / "arrays").iterdir()
    again = cache.open_cache(folder)
    assert again is not None
    assert again.domain is not None
    assert data.domain is not None
    assert torch.equal(again.domain, data.domain)
    assert again.domains == DOMAINS
    assert cache.verify(folder)
    assert cache.digest_of(again) == again.digest
    path = folder / "domain_test.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-8] + (1).to_bytes(8, "little"))  # another domain
    assert cache.open_cache(folder) is None
    path.write_bytes(whole[:-8])
    assert cache.open_cache(folder) is None
    path.unlink()
    assert cache.open_cache(folder) is None
    assert opened(root, tmp_path / "data").domains == DOMAINS, "it is made again"


@pytest.mark.parametrize("odd", [np.full(24, 3), np.full(24, -1), np.zeros(24), np.zeros(23, dtype=np.int64)])
def test_domains_that_are_none_are_no_cache(
    tmp_path: Path, odd: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
) -> None:
    opened(some_domains(tmp_path / "photos"), tmp_path / "data")
    [folder] = (tmp_path / "data" / "arrays").iterdir()
    np.save(folder / "domain.npy", odd)
    meta = json.loads((folder / "meta.json").read_text())
    meta["sizes"]["domain"] = (folder / "domain.npy").stat().st_size
    meta["stamps"] = cache._stamps(folder)  # so that the hash is not asked
    (folder / "meta.json").write_text(json.dumps(meta))
    assert cache.open_cache(folder) is None


def test_data_without_domains_have_the_digest_they_had(tmp_path: Path) -> None:
    """Stored runs know it; computed with the code of 0.1.0."""
    data = opened(some_classes(tmp_path / "photos"), tmp_path / "data")
    assert data.digest[:16] == "40f1bf3aa243f389"


def test_a_folder_that_was_read_as_classes_by_an_older_version_is_read_again(tmp_path: Path) -> None:
    root = some_domains(tmp_path / "photos")
    opened(root, tmp_path / "data")
    [folder] = (tmp_path / "data" / "arrays").iterdir()
    files = json.loads((folder / "meta.json").read_text())["files"]
    assert [Path(entry[0]).relative_to(root).parts for entry in files] == [(d, c) for d in DOMAINS for c in CLASSES]


# Made of the digits


def turned_by_torch(x: Tensor, degrees: float) -> Tensor:
    """Counterclockwise, bilinear, in floats."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    affine = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]]).expand(len(x), 2, 3)  # from output to input, x first
    grid = F.affine_grid(affine, list(x.shape), align_corners=False)
    return F.grid_sample(x.float(), grid, align_corners=False)


@pytest.mark.parametrize("degrees", [15, 30, 45, 60, 75, 111])
def test_turned_images_are_those_of_another_implementation(degrees: int) -> None:
    x = some_images(20, (1, 8, 8))
    ours, theirs = digit_domains.rotated(x, degrees), turned_by_torch(x, degrees)
    assert (ours.float() - theirs).abs().max() <= 6  # places are rounded to 1/256 of a pixel
    assert (ours.float() - theirs).abs().mean() < 1


def test_quarter_turns_are_exact() -> None:
    x = some_images(5, (1, 8, 8))
    for quarters in range(4):
        assert torch.equal(digit_domains.rotated(x, 90 * quarters), torch.rot90(x, quarters, (2, 3)))


def test_permuted_images_have_the_same_pixels_in_one_order_for_all() -> None:
    x = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8).expand(3, 1, 8, 8)
    orders = [digit_domains.permuted(x, number) for number in range(5)]
    assert torch.equal(orders[0], x)
    flat = [order.flatten(1) for order in orders]
    for order in flat:
        assert order[0].sort().values.tolist() == list(range(64))
        assert torch.equal(order[0], order[2])
    assert len({tuple(order[0].tolist()) for order in flat}) == 5


@pytest.mark.parametrize("name", ["rotated-digits", "inverted-digits", "permuted-digits"])
def test_every_domain_has_all_digits_and_the_first_as_they_are(name: str) -> None:
    plain, data = digits.load(), load(name)
    n = STREAMS[name].n_tasks
    assert len(data.domains) == n
    assert STREAMS[name].scenario == "domain-incremental"
    for x, y, domain, own in (
        (data.x, data.y, data.domain, plain.y),
        (data.x_test, data.y_test, data.domain_test, plain.y_test),
    ):
        assert domain is not None
        assert (x.dtype, y.dtype, domain.dtype) == (torch.uint8, torch.int64, torch.int64)
        assert len(x) == len(y) == n * len(own)
        for place in range(n):
            assert torch.equal(y[domain == place], own)
    assert data.domain is not None
    assert torch.equal(data.x[data.domain == 0], plain.x)
    assert not torch.equal(data.x[data.domain == 1], plain.x)
    assert cache.digest_of(data) == data.digest


def test_inverted_pixels_and_their_originals_sum_to_255() -> None:
    data = load("inverted-digits")
    half = len(data.x) // 2
    assert set((data.x[:half].int() + data.x[half:].int()).unique().tolist()) == {255}


def test_made_domains_never_change() -> None:
    """Stored runs know their digests."""
    found = {name: load(name).digest[:16] for name in STREAMS if name.endswith("-digits")}
    assert found == {
        "rotated-digits": "47a82f4a0cc331bf",
        "inverted-digits": "9a9bc703e54e0036",
        "permuted-digits": "b61901606d182cdf",
    }
