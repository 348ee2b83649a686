"""Arrays in an .npz: every layout ends as the same bytes, and what cannot be images is refused by name."""

from __future__ import annotations

import contextlib
import io
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from onepass.data import Source, Split, npz
from onepass.errors import UsageError

Any = npt.NDArray[np.generic]
X = np.random.default_rng(0).integers(0, 256, (10, 3, 6, 5), dtype=np.uint8)  # (n, c, h, w)
Y = np.array([7, 20, 3, 3, 7, 20, 7, 3, 20, 7])


def save(path: Path, **arrays: Any) -> Path:
    np.savez_compressed(path / "mine.npz", **arrays)  # type: ignore[arg-type]  # none is called allow_pickle
    return path / "mine.npz"


def read(path: Path) -> Source:
    found = npz.find(path)
    assert found is not None
    assert found.files == (path,)
    return found.read()


def whole(split: Split) -> tuple[npt.NDArray[np.uint8], list[int]]:
    blocks = list(split.blocks())
    return np.concatenate([x for x, _ in blocks]), np.concatenate([y for _, y in blocks]).tolist()


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        whole(read(path).train)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "x",
    [
        X,
        X.transpose(0, 2, 3, 1),
        np.ascontiguousarray(X.transpose(0, 2, 3, 1)),
        np.asfortranarray(X),
        (X / 255).astype(np.float32),
        (X / 255).astype(">f8").transpose(0, 2, 3, 1),
        (X / 255).astype(np.float16),
    ],
    ids=["nchw", "nhwc-view", "nhwc", "fortran", "float32", "big-endian", "float16"],
)
def test_every_layout_ends_as_the_same_bytes(tmp_path: Path, x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "_BLOCK_BYTES", 3 * x[0].nbytes)  # four blocks
    source = read(save(tmp_path, x=x, y=Y, x_test=x[3:8], y_test=Y[3:8]))
    assert source.classes == ("3", "7", "20")
    pixels, labels = whole(source.train)
    assert source.train.shape == (3, 6, 5)
    assert (source.train.n, source.test.n) == (10, 5)
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, X)
    assert labels == [1, 2, 0, 0, 1, 2, 1, 0, 2, 1]
    pixels, labels = whole(source.test)
    assert np.array_equal(pixels, X[3:8])
    assert labels == [0, 1, 2, 1, 0]
    assert source.notes == ()


@pytest.mark.parametrize("x", [X[:, 0], X[:, :1], X[:, 0, :, :, None]])
def test_grey_images_keep_one_channel(tmp_path: Path, x: Any) -> None:
    source = read(save(tmp_path, x=x, y=Y, x_test=x, y_test=Y))
    assert source.train.shape == (1, 6, 5)
    assert np.array_equal(whole(source.train)[0], X[:, :1])


def test_without_test_arrays_a_fixed_fifth_of_each_class_is_held_out(tmp_path: Path) -> None:
    x, y = np.arange(60, dtype=np.uint8).reshape(60, 1, 1).repeat(4, 1).repeat(4, 2), np.arange(60) % 3
    source = read(save(tmp_path, x=x, y=y))
    (train, y_train), (test, y_test) = whole(source.train), whole(source.test)
    assert (np.bincount(y_train).tolist(), np.bincount(y_test).tolist()) == ([16] * 3, [4] * 3)
    assert sorted([*train[:, 0, 0, 0], *test[:, 0, 0, 0]]) == list(range(60))
    assert (train[:, 0, 0, 0] % 3).tolist() == y_train
    assert np.array_equal(whole(read(tmp_path / "mine.npz").test)[0], test)
    assert "20% of each class were held out for testing (seed 0)" in source.notes[0]


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (np.array(["dog", "cat"] * 5), ("cat", "dog")),
        (np.array([b"dog", "caf\xe9".encode()] * 5), ("caf\xe9", "dog")),
        (np.array(["10", "9"] * 5), ("9", "10")),
        (np.array([[1], [0]] * 5, dtype=np.uint8), ("0", "1")),
        (np.array([-1, 5] * 5), ("-1", "5")),
    ],
)
def test_labels_of_any_kind_become_sorted_names(tmp_path: Path, y: Any, classes: tuple[str, ...]) -> None:
    source = read(save(tmp_path, x=X, y=y))
    assert source.classes == classes
    both = whole(source.train)[1] + whole(source.test)[1]
    assert sorted(both) == [0] * 5 + [1] * 5


def test_labels_to_train_and_to_test_on_may_be_of_different_kinds(tmp_path: Path) -> None:
    y, y_test = np.array([-5, -1, 3, -5, 3] * 2), np.array(["3", "-1", "-5", "-1", "3"] * 2)
    source = read(save(tmp_path, x=X, y=y, x_test=X, y_test=y_test))
    assert source.classes == ("-5", "-1", "3")
    assert (whole(source.train)[1], whole(source.test)[1]) == ([0, 1, 2, 0, 2] * 2, [2, 1, 0, 1, 2] * 2)


@pytest.mark.parametrize(
    "names",
    [("x_train", "y_train", "x_test", "y_test"), ("train_images", "train_labels", "test_images", "test_labels")],
)
def test_the_names_that_others_use(tmp_path: Path, names: tuple[str, ...]) -> None:
    source = read(save(tmp_path, **dict(zip(names, (X, Y, X[:5], Y[:5]), strict=True))))
    assert (source.train.n, source.test.n) == (10, 5)


def test_uncompressed_too(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    assert read(tmp_path / "a.npz").train.n == 7


NAN = (X / 255).astype(np.float32)
NAN[4, 1, 2, 3] = np.nan


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": Y}, "has no array x (y found)"),
        ({"x": X}, "has no array y (x found)"),
        ({"a": X}, "has no array x (a found)"),
        ({"x": X, "y": Y, "x_test": X}, "has no array y_test"),
        ({"x": X, "y": Y, "y_test": Y}, "has no array x_test"),
        ({"x": X, "y": Y[:9]}, "10 images in x and 9 labels in y"),
        ({"x": X[:0], "y": Y[:0]}, "0 images in x"),
        ({"x": X, "y": Y * 0}, "y has only one class"),
        ({"x": X, "y": np.arange(10)}, "class '0' has one image"),
        ({"x": X, "y": Y / 2}, "y is float64 (10,); labels are (n,) integers or strings"),
        ({"x": X, "y": Y.reshape(5, 2)}, "y is int64 (5, 2)"),
        ({"x": X, "y": np.array([b"\xff", b"a"] * 5)}, "y has names that are not UTF-8"),
        ({"x": X, "y": Y, "x_test": X[..., :4], "y_test": Y}, "images of (3, 6, 5) in x and of (3, 6, 4) in x_test"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y + 1}, "y_test has the class '4', which y lacks"),
        ({"x": X, "y": Y, "x_test": X[:2], "y_test": Y[:2]}, "y_test lacks the class '3' of y"),
        ({"x": X[:, :2], "y": Y}, "x is (10, 2, 6, 5); images are (n, h, w)"),
        ({"x": X[:, :, :3, :3], "y": Y}, "x is (10, 3, 3, 3)"),  # which axis are the channels?
        ({"x": X[0, 0, 0], "y": Y[:5]}, "x is (5,)"),
        ({"x": X.astype(np.int64), "y": Y}, "x is int64; images are uint8, or float from 0 to 1"),
        ({"x": X > 9, "y": Y}, "x.npy is an array of bool"),
        ({"x": NAN, "y": Y}, "x has values from nan to nan; float32 images must lie in 0..1"),
        ({"x": X.astype(np.float32), "y": Y}, "to 254.0; float32 images must lie in 0..1 (divide by 255"),
        ({"x": X / 255 - 0.1, "y": Y}, "float64 images must lie in 0..1"),
        ({"x": X / 255 + 1j, "y": Y}, "x.npy is an array of complex128"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    assert message in refused(save(tmp_path, **arrays))


def test_python_objects_are_never_loaded(tmp_path: Path) -> None:
    path = save(tmp_path, x=X, y=np.array([1, "a"] * 5, dtype=object))
    assert "y.npy is an array of Python objects, which are never loaded" in refused(path)


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def zipped(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path / "made.npz", "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path / "made.npz"


def header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (header((10, 3, 6, 5)), "declares (10, 3, 6, 5) uint8, which it does not hold"),
        (header((10**9, 3, 1000, 1000)), "which it does not hold"),
        (header((-1, 3, 6, 5)), "x"),
        (npy(X) + b"more", "which it does not hold"),
        (b"", "damaged, or no .npz file"),
        (b"\x93NUMPY\x07\x00", "damaged, or no .npz file"),
        (b"\x93NUMPY\x01\x00\xff\xff{'descr': ", "damaged, or no .npz file"),
        (b"\x93NUMPY\x01\x00\x20\x00__import__('os').system('ls')   \n", "damaged, or no .npz file"),
    ],
)
def test_arrays_that_lie_are_refused(tmp_path: Path, x: bytes, message: str) -> None:
    assert message in refused(zipped(tmp_path, x=x, y=npy(Y)))


def test_any_damage_is_a_message(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "a.npz"
    for save_as in (np.savez, np.savez_compressed):
        save_as(path, x=X[:, :, :2, :2], y=Y.astype("U2"))
        content = path.read_bytes()
        for _ in range(120):
            damaged = bytearray(content)
            for at in rng.integers(0, len(content), rng.integers(1, 4)):
                damaged[at] = rng.integers(256)
            path.write_bytes(damaged)
            with contextlib.suppress(UsageError):
                whole(read(path).train)


def test_more_than_the_limit_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "LIMIT", 1 << 20)
    path = save(tmp_path, x=np.zeros((400, 60, 60), dtype=np.uint8), y=np.arange(400) % 2)
    assert path.stat().st_size < 10_000
    assert "unpacks to more than" in refused(path)


def test_damage_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y)  # not compressed: only the checksum can tell
    content = (tmp_path / "a.npz").read_bytes()
    at = content.index(X.tobytes()) + 500
    (tmp_path / "a.npz").write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    assert "damaged, or no .npz file: Bad CRC-32 for file 'x.npy'" in refused(tmp_path / "a.npz")
    for end in range(1, len(content), 97):
        (tmp_path / "a.npz").write_bytes(content[:end])
        refused(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>404</html>", "this is an HTML page; np.savez_compressed(path, x=x, y=labels) makes one"),
        (b"", "this is no .npz file"),
        (npy(X), "this is no .npz file"),
        (b"PK\x03\x04 and no more", "damaged, or no .npz file"),
    ],
)
def test_other_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    assert message in refused(tmp_path / "a.npz")


def test_no_file_is_not_found(tmp_path: Path) -> None:
    assert npz.find(tmp_path / "a.npz") is None
    assert npz.find(tmp_path) is None
