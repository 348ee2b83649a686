"""Vectors in .npz and .npy: numbers of any kind end as the same float32, labels lie beside them, NaNs are named."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from onepass.data import Dataset, Source, Split, npy, npz
from onepass.data.catalog import Datasets, canonical, find_stream, suited
from onepass.errors import UsageError

Any = npt.NDArray[np.generic]
X = np.random.default_rng(0).integers(-50, 50, (30, 4)).astype(np.float32)  # exact in every kind of number
Y = np.arange(30) % 3


def read(path: Path) -> Source:
    found = npz.find(path)
    assert found is not None
    return found.read()


def whole(split: Split) -> tuple[Any, list[int]]:
    blocks = list(split.blocks())
    return np.concatenate([x for x, _ in blocks]), np.concatenate([y for _, y in blocks]).tolist()


def loaded(path: Path) -> Dataset:
    return Datasets(path.parent / "data").load(str(path))


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        loaded(path)
    assert str(path.parent) in str(caught.value)
    return str(caught.value)


KINDS = ["int8", "int16", "int32", "int64", "float16", "float32", "float64", "longdouble", ">f8", ">i2"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_numbers_of_every_kind_become_the_same_float32(
    tmp_path: Path, kind: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.array(X, dtype=kind, order=order)  # type: ignore[call-overload]  # mypy wants the letters C and F
    monkeypatch.setattr(npz, "_BLOCK_BYTES", 7 * x[0].nbytes)  # five blocks
    np.savez_compressed(tmp_path / "a.npz", x=x, y=Y, x_test=x[10:20], y_test=Y[10:20])
    source = read(tmp_path / "a.npz")
    for split, rows in ((source.train, slice(0, 30)), (source.test, slice(10, 20))):
        values, labels = whole(split)
        assert (split.shape, split.dtype, split.n) == ((4,), "float32", len(labels))
        assert values.dtype == np.float32
        assert values.tobytes() == X[rows].tobytes()
        assert labels == Y[rows].tolist()


@pytest.mark.parametrize("kind", ["uint8", "uint16", "uint64"])
def test_bytes_in_two_dimensions_are_vectors_and_not_scaled(tmp_path: Path, kind: str) -> None:
    x = np.arange(120).reshape(30, 4).astype(kind)
    np.savez(tmp_path / "a.npz", x=x, y=Y)
    data = loaded(tmp_path / "a.npz")
    assert data.x.dtype == torch.float32
    assert sorted(torch.cat([data.x, data.x_test]).flatten().tolist()) == list(range(120))


def test_three_dimensions_stay_grey_images(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((30, 4, 4), dtype=np.uint8), y=Y)
    data = loaded(tmp_path / "a.npz")
    assert (data.x.dtype, data.x.shape[1:]) == (torch.uint8, (1, 4, 4))
    np.savez(tmp_path / "b.npz", x=np.full((30, 4, 4), 2.5), y=Y)
    said = refused(tmp_path / "b.npz")
    assert "if they are no images, save them as vectors: x.reshape(len(x), -1)" in said


def test_a_fifth_of_each_class_is_held_out_and_the_digest_is_of_the_floats(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X.astype(np.float64), y=Y)
    data = loaded(tmp_path / "a.npz")
    assert (data.y.bincount().tolist(), data.y_test.bincount().tolist()) == ([8] * 3, [2] * 3)
    rows = {tuple(row): int(label) for row, label in zip(X.tolist(), Y, strict=True)}
    assert len(rows) == 30, "each row is told from the others"
    found = [(tuple(row), label) for row, label in zip(data.x.tolist(), data.y.tolist(), strict=True)]
    found += [(tuple(row), label) for row, label in zip(data.x_test.tolist(), data.y_test.tolist(), strict=True)]
    assert dict(found) == rows
    parts = (data.x, data.y, data.x_test, data.y_test)
    assert data.digest == hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()


@pytest.mark.parametrize(
    ("value", "words"),
    [(np.nan, "is nan, which is no number"), (np.inf, "is inf, which"), (1e39, "is 1e+39, larger than 1e+15")],
)
@pytest.mark.parametrize("row", [0, 17, 29])
def test_what_is_not_finite_is_named_by_its_place(tmp_path: Path, value: float, words: str, row: int) -> None:
    x = X.astype(np.float64)
    x[row, 2] = value
    np.savez(tmp_path / "a.npz", x=x, y=Y, x_test=X, y_test=Y)
    assert f"a.npz: x[{row}, 2] {words}" in refused(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=x, y=Y)  # also where a mask chooses the rows
    assert f"b.npz: x[{row}, 2] {words}" in refused(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", x=X, y=Y, x_test=x, y_test=Y)
    assert f"c.npz: x_test[{row}, 2] {words}" in refused(tmp_path / "c.npz")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X[:, :0], "y": Y}, "x is (30, 0); images are"),
        ({"x": X, "y": Y[:29]}, "30 vectors in x and 29 labels in y"),
        ({"x": X.astype("U5"), "y": Y}, "x is <U5; vectors are numbers"),
        ({"x": X > 0, "y": Y}, "x.npy is an array of bool"),
        ({"x": X + 1j, "y": Y}, "x.npy is an array of complex64"),
        ({"x": X, "y": np.arange(30)}, "class '0' has one vector; it needs at least two"),
        ({"x": X, "y": Y, "x_test": X[:, :3], "y_test": Y}, "vectors of (4,) in x and of (3,) in x_test"),
        ({"x": X, "y": Y, "x_test": np.zeros((30, 4, 4), np.uint8), "y_test": Y}, "vectors of (4,) in x and of (4, 4)"),
    ],
)
def test_what_are_no_vectors_is_said(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]  # none is called allow_pickle
    assert message in refused(tmp_path / "a.npz")


# .npy: files that belong together by their names


def save(folder: Path, **arrays: Any) -> None:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ("features", "features_labels"),
        ("features", "features_y"),
        ("x", "y"),
        ("X", "y"),
        ("x_train", "y_train"),
        ("X_train", "y_train"),
        ("X_train", "Y_train"),
        ("xrays", "xrays_labels"),
    ],
)
def test_labels_beside_an_npy_give_what_an_npz_gives(tmp_path: Path, x: str, y: str) -> None:
    arrays: dict[str, Any] = {x: X, y: Y}
    save(tmp_path, **arrays)
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    data = loaded(tmp_path / f"{x}.npy")
    assert data.x.dtype == torch.float32
    assert data.digest == loaded(tmp_path / "a.npz").digest


@pytest.mark.parametrize(
    "names",
    [
        ("features", "features_labels", "features_test", "features_test_labels"),
        ("x", "y", "x_test", "y_test"),
        ("X_train", "y_train", "X_test", "y_test"),
        ("bert_train_8", "bert_train_8_y", "bert_test_8", "bert_test_8_y"),
    ],
)
def test_a_test_pair_beside_an_npy_is_used(tmp_path: Path, names: tuple[str, ...]) -> None:
    arrays: list[Any] = [X, Y, X[5:14], Y[5:14]]
    save(tmp_path, **dict(zip(names, arrays, strict=True)))
    found = npy.find(tmp_path / f"{names[0]}.npy")
    assert found is not None
    assert [path.stem for path in found.files] == list(names)
    source = found.read()
    assert whole(source.train)[0].tobytes() == X.tobytes()
    assert whole(source.test)[0].tobytes() == X[5:14].tobytes()
    assert source.notes == ()


def test_a_test_pair_that_comes_later_is_noticed(tmp_path: Path) -> None:
    save(tmp_path, x=X, y=Y)
    assert len(loaded(tmp_path / "x.npy").y) == 24
    save(tmp_path, x_test=X, y_test=Y)
    assert len(loaded(tmp_path / "x.npy").y) == 30


def test_images_in_an_npy_are_images(tmp_path: Path) -> None:
    save(tmp_path, x=np.zeros((30, 4, 5, 3), dtype=np.uint8), y=Y)
    data = loaded(tmp_path / "x.npy")
    assert (data.x.dtype, data.x.shape[1:]) == (torch.uint8, (3, 4, 5))


def test_missing_labels_are_named_by_what_was_looked_for(tmp_path: Path) -> None:
    save(tmp_path, features=X, x=X)
    said = refused(tmp_path / "features.npy")
    assert f"expected features_labels.npy or features_y.npy in {tmp_path}" in said
    assert "expected x_labels.npy or x_y.npy or y.npy in" in refused(tmp_path / "x.npy")
    save(tmp_path, y=Y, x_test=X)
    assert "x_test.npy has no labels beside it" in refused(tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "this is no .npy file; np.save(path, x) makes one"),
        (b"<html>404</html>", "this is an HTML page"),
        (b"PK\x03\x04", "this is a zip archive"),
        (b"\x93NUMPY", "damaged, or no .npy file"),
        (b"\x93NUMPY\x01\x00\x20\x00__import__('os').system('ls')   \n", "damaged, or no .npy file"),
    ],
)
def test_other_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    save(tmp_path, y=Y)
    (tmp_path / "x.npy").write_bytes(content)
    assert message in refused(tmp_path / "x.npy")


def test_an_npy_that_lies_breaks_off_or_holds_objects_is_refused(tmp_path: Path) -> None:
    save(tmp_path, x=X, y=Y)
    content = (tmp_path / "x.npy").read_bytes()
    for wrong in (content[:-1], content + b"x", content[:128]):
        (tmp_path / "x.npy").write_bytes(wrong)
        assert "declares (30, 4) float32, which it does not hold" in refused(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.array([[1, "a"]] * 30, dtype=object), allow_pickle=True)
    assert "x.npy is an array of Python objects, which are never loaded" in refused(tmp_path / "x.npy")
    x = X.copy()
    x[7, 1] = np.nan
    save(tmp_path, x=x)
    assert "x.npy[7, 1] is nan" in refused(tmp_path / "x.npy")


def test_no_file_is_not_found(tmp_path: Path) -> None:
    assert npy.find(tmp_path / "a.npy") is None
    assert npy.find(tmp_path) is None


# What suits them


def test_vectors_suit_other_networks_than_images_of_the_same_suffix(tmp_path: Path) -> None:
    images, vectors = np.zeros((30, 4, 4), dtype=np.uint8), X
    np.savez(tmp_path / "images.npz", x=images, y=Y)
    np.savez(tmp_path / "vectors.npz", x_train=vectors, y_train=Y)
    save(tmp_path, images=images, vectors=vectors)
    for suffix in (".npz", ".npy"):
        stream = suited(str(tmp_path / f"images{suffix}"))
        assert (stream.net, stream.augment) == ("slim-resnet18", "colour")
        stream = suited(str(tmp_path / f"vectors{suffix}"))
        assert (stream.net, stream.augment, stream.n_tasks) == ("mlp", "none", 5)
        assert find_stream(str(tmp_path / f"vectors{suffix}")).net == "slim-resnet18", "nothing was opened"
    for name in ("a.csv", "a.tsv", "a.parquet", "A.CSV"):
        stream = suited(canonical(name))
        assert (stream.net, stream.augment, stream.n_tasks) == ("mlp", "none", 5)
    assert suited("digits") is find_stream("digits")


@pytest.mark.parametrize("name", ["a.npz", "a.npy"])
def test_what_cannot_be_looked_at_is_explained_later(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert suited(str(path)).net == "slim-resnet18"
    path.write_bytes(b"PK\x03\x04")
    assert suited(str(path)).net == "slim-resnet18"
    path.unlink()
    os.mkfifo(path)  # nobody writes into it: opening it would wait for ever
    assert suited(str(path)).net == "slim-resnet18"
