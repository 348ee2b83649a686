"""Tiny ImageNet, CUB-200-2011 and CORe50 as they are unpacked: which image is of which class, and for what."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from torch import Tensor

from data_helpers import noise, save, some_classes
from onepass.bench.stream import StreamConfig, make_tasks
from onepass.data import Dataset, cub, tiny_imagenet
from onepass.data.catalog import Datasets, canonical
from onepass.data.listing import LARGEST
from onepass.errors import UsageError

KNOWN = {noise(n).transpose(2, 0, 1).tobytes(): n for n in range(5000)}


def numbers(x: Tensor, y: Tensor) -> Counter[tuple[int, int]]:
    """Each image's number as noise() made it, and its label."""
    return Counter((KNOWN[image.numpy().tobytes()], label) for image, label in zip(x, y.tolist(), strict=True))


def load(place: Path, stream: str, image_size: int = 0) -> Dataset:
    return Datasets(place / "data").load(stream, image_size)


def refused(place: Path, stream: str) -> str:
    with pytest.raises(UsageError) as caught:
        load(place, stream)
    return str(caught.value)


# Tiny ImageNet


def tiny(root: Path, n_classes: int = 3) -> Path:
    """Class c has the training images 10 c and 10 c + 1; of validation image v the class is v % n_classes."""
    for c in range(n_classes):
        for i in range(2):
            save(root / "train" / f"n{c:04}" / "images" / f"n{c:04}_{i}.png", noise(10 * c + i))
        (root / "train" / f"n{c:04}" / f"n{c:04}_boxes.txt").write_text("n_0.JPEG\t0\t0\t62\t62\n")
    for v in range(2 * n_classes):
        save(root / "val" / "images" / f"val_{v}.png", noise(3000 + v))
    save(root / "test" / "images" / "test_0.png", noise(4000))
    annotate(root, [f"val_{v}.png\tn{v % n_classes:04}\t0\t32\t44\t62" for v in reversed(range(2 * n_classes))])
    return root


def annotate(root: Path, lines: list[str]) -> None:
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")


def test_tiny_imagenets_validation_images_are_of_the_classes_that_its_list_says(tmp_path: Path) -> None:
    root = tiny(tmp_path / "photos")
    data = load(tmp_path, str(root))
    assert data.classes == ("n0000", "n0001", "n0002")
    assert numbers(data.x, data.y) == Counter((10 * c + i, c) for c in range(3) for i in range(2))
    assert numbers(data.x_test, data.y_test) == Counter((3000 + v, v % 3) for v in range(6))
    assert data.y_test.tolist() == [0, 0, 1, 1, 2, 2]


def test_tiny_imagenet_by_name_has_200_classes(tmp_path: Path) -> None:
    root = tiny(tmp_path / "data" / "tiny-imagenet-200", 199)
    assert "has 199 class folders and Tiny ImageNet has 200" in refused(tmp_path, "tiny-imagenet")
    for i in range(2):
        save(root / "train" / "n0199" / "images" / f"{i}.png", noise(1990 + i))
    save(root / "val" / "images" / "last.png", noise(3999))
    with (root / "val" / "val_annotations.txt").open("a") as file:
        file.write("last.png\tn0199\t0\t0\t1\t1\n")
    data = load(tmp_path, canonical("seq-tinyimg"))
    assert (len(data.classes), len(data.y), len(data.y_test)) == (200, 400, 399)
    assert (3999, 199) in numbers(data.x_test, data.y_test)


def test_validation_images_sorted_into_classes_do_as_well(tmp_path: Path) -> None:
    root = some_classes(tmp_path / "data" / "tiny-imagenet-200" / "train").parent
    some_classes(root / "val", n=2)
    assert len(load(tmp_path, "tiny-imagenet").y_test) == 4


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["val_0.png\tn0009"], "lists the class 'n0009', which is not in train"),
        (["val_9.png\tn0001"], "lists the image 'val_9.png', which is not in val"),
        (["../images/val_0.png\tn0001"], "lists the image '../images/val_0.png', which is not in val"),
        (["val_0.png\tn0000"], "lists 1 images, 1 of them different, and 6 are there"),
        (["val_0.png\tn0000"] * 6, "lists 6 images, 1 of them different, and 6 are there"),
        (["val_0.png"], "expected 2 words a line, got 1 in line 1"),
    ],
)
def test_a_list_that_does_not_fit_the_images_is_refused(tmp_path: Path, lines: list[str], said: str) -> None:
    root = tiny(tmp_path / "photos")
    annotate(root, lines)
    message = refused(tmp_path, str(root))
    assert said in message
    assert "val_annotations.txt" in message


def test_a_list_that_is_no_text_or_endless_is_refused(tmp_path: Path) -> None:
    root = tiny(tmp_path / "photos")
    path = root / "val" / "val_annotations.txt"
    path.write_bytes(b"\x1f\x8b\x08\xff")
    assert "expected lines of text, got a gzip file" in refused(tmp_path, str(root))
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole of a terabyte
    assert "expected a list of at most 16 MiB" in refused(tmp_path, str(root))
    assert LARGEST == 16 << 20


def test_another_list_makes_the_cache_stale(tmp_path: Path) -> None:
    root = tiny(tmp_path / "photos")
    first = load(tmp_path, str(root))
    annotate(root, [f"val_{v}.png\tn{(v + 1) % 3:04}\t0\t32\t44\t62" for v in range(6)])
    second = load(tmp_path, str(root))
    assert numbers(second.x_test, second.y_test) == Counter((3000 + v, (v + 1) % 3) for v in range(6))
    assert first.digest != second.digest
    assert tiny_imagenet.at(tmp_path) is None


# CUB-200-2011


def birds(root: Path) -> Path:
    """Three classes of four images; the odd ones are for testing. Lists are in another order than the folders."""
    for c in range(3):
        for i in range(4):
            save(root / "images" / f"{c + 1:03}.Bird_{c}" / f"Bird_{i}.png", noise(10 * c + i))
    words = [f"{c + 1:03}.Bird_{c}/Bird_{i}.png" for i in range(4) for c in (2, 0, 1)]
    (root / "images.txt").write_text("".join(f"{n} {word}\n" for n, word in enumerate(words, 1)))
    odd = [int(word[-5]) % 2 for word in words]
    (root / "train_test_split.txt").write_text("".join(f"{n} {1 - o}\n" for n, o in enumerate(odd, 1)))
    for folder in ("attributes", "parts"):
        (root / folder).mkdir()
    return root


@pytest.mark.parametrize("by_name", [False, True])
def test_cubs_split_is_its_authors(tmp_path: Path, by_name: bool) -> None:
    root = birds(tmp_path / "data" / "CUB_200_2011")
    data = load(tmp_path, canonical("cub-200") if by_name else str(root))
    assert data.classes == ("001.Bird_0", "002.Bird_1", "003.Bird_2")
    assert numbers(data.x, data.y) == Counter((10 * c + i, c) for c in range(3) for i in (0, 2))
    assert numbers(data.x_test, data.y_test) == Counter((10 * c + i, c) for c in range(3) for i in (1, 3))


def test_cubs_lists_must_fit_its_images(tmp_path: Path) -> None:
    root = birds(tmp_path / "birds")
    extra = save(root / "images" / "001.Bird_0" / "extra.png", noise(99))
    assert "extra.png is not in" in refused(tmp_path, str(root))
    extra.unlink()
    gone = root / "images" / "003.Bird_2" / "Bird_3.png"
    gone.unlink()
    assert "1 of 12 images are not there, such as '003.Bird_2/Bird_3.png'" in refused(tmp_path, str(root))
    save(gone, noise(23))
    split = root / "train_test_split.txt"
    for text in (split.read_text().replace("1 1\n", "1 2\n", 1), "1 0\n"):
        split.write_text(text)
        assert "do not list the same images, with 1 or 0 each" in refused(tmp_path, str(root))
    assert cub.at(root / "images") is None


# CORe50


def objects(root: Path, n_objects: int = 11) -> Path:
    """Session s has of object o the frame 100 s + o."""
    for s in range(1, 12):
        for o in range(1, n_objects + 1):
            save(root / f"s{s}" / f"o{o}" / f"C_{s:02}_{o:02}_000.png", noise(100 * s + o))
    return root


@pytest.mark.parametrize("by_name", [False, True])
def test_core50s_sessions_are_domains_and_three_of_them_are_tested_on(tmp_path: Path, by_name: bool) -> None:
    root = objects(tmp_path / "data" / "core50_128x128")
    data = load(tmp_path, "core50" if by_name else str(root), image_size=8)
    assert data.classes == tuple(f"o{o}" for o in range(1, 12))
    assert data.domains == tuple(f"s{s}" for s in range(1, 12))
    assert data.domain is not None
    assert data.domain_test is not None
    for x, y, domain, sessions in (
        (data.x, data.y, data.domain, (1, 2, 4, 5, 6, 8, 9, 11)),
        (data.x_test, data.y_test, data.domain_test, (3, 7, 10)),
    ):
        assert numbers(x, y * 100 + domain) == Counter(
            (100 * s + o, 100 * (o - 1) + s - 1) for s in sessions for o in range(1, 12)
        )
    _, tasks = make_tasks(data, StreamConfig("domain-incremental", 8, "fixed"), seed=0)
    assert [[data.domains[d] for d in task.domains] for task in tasks] == [[f"s{s}"] for s in (1, 2, 4, 5, 6, 8, 9, 11)]
    assert {len(task.test) for task in tasks} == {33}, "each is measured on all test sessions"


def test_core50_keeps_its_size_and_what_is_not_core50_is_a_folder_of_domains(tmp_path: Path) -> None:
    root = objects(tmp_path / "photos", 2)
    assert load(tmp_path, str(root)).x.shape[1:] == (3, 128, 128)
    (root / "s2" / "o2").rename(root / "s2" / "cup")
    assert "expected the folders o1, o2 and so on, and no others" in refused(tmp_path / "odd", str(root))
    (root / "s2" / "cup").rename(root / "s2" / "o2")
    (root / "s3").rename(root / "third")
    for path in list(root.glob("*/*")):
        save(path / "another.png", noise(1))
    other = load(tmp_path / "other", str(root), image_size=8)
    assert (other.classes, len(other.domains)) == (("o1", "o2"), 11)
