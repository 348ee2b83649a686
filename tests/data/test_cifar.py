"""CIFAR-10 and CIFAR-100 in their authors' layouts, small and built here byte by byte, and files that are not them."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from data_helpers import Pixels, py2_array, py2_dict, py2_int, py2_list, py2_pickle, py2_text
from onepass.data import LocatedFiles, Source, Split, cache, cifar
from onepass.errors import BadData, UsageError

Files = dict[str, bytes]
RNG = np.random.default_rng(0)
N = 4  # images in each file, where the real ones have 10,000
X = RNG.integers(0, 256, (6 * N, 3, 32, 32), dtype=np.uint8)  # the last file is for testing
Y10 = RNG.integers(0, 10, 6 * N)
Y100 = RNG.integers(0, 100, 6 * N)
NAMES10 = "airplane automobile bird cat deer dog frog horse ship truck".split()  # noqa: SIM905
NAMES100 = [f"thing_{i}" for i in range(100)]


def batch(x: Pixels, **labels: npt.NDArray[np.int64]) -> bytes:
    lists = {name: py2_list(values.tolist()) for name, values in labels.items()}
    names = py2_list(py2_text(f"image_{i}.png") for i in range(len(x)))
    data = py2_array(x.reshape(len(x), -1))
    return py2_pickle(py2_dict(data=data, batch_label=py2_text("a batch"), **lists, filenames=names))


def records(x: Pixels, *labels: npt.NDArray[np.int64]) -> bytes:
    columns = [np.asarray(values, dtype=np.uint8)[:, None] for values in labels]
    return np.hstack([*columns, x.reshape(len(x), -1)]).tobytes()


def python10() -> Files:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    files = {name: batch(X[i * N : i * N + N], labels=Y10[i * N : i * N + N]) for i, name in enumerate(names)}
    meta = py2_pickle(py2_dict(num_cases_per_batch=py2_int(N), label_names=py2_list(map(py2_text, NAMES10))))
    return files | {"batches.meta": meta, "readme.html": b"<html>"}


def binary10() -> Files:
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    files = {name: records(X[i * N : i * N + N], Y10[i * N : i * N + N]) for i, name in enumerate(names)}
    return files | {"batches.meta.txt": ("\n".join(NAMES10) + "\n\n").encode()}


def python100() -> Files:
    def part(rows: slice) -> bytes:
        return batch(X[rows], coarse_labels=Y100[rows] // 5, fine_labels=Y100[rows])

    coarse = py2_list(py2_text(f"group_{i}") for i in range(20))
    meta = py2_pickle(py2_dict(fine_label_names=py2_list(map(py2_text, NAMES100)), coarse_label_names=coarse))
    return {"train": part(slice(0, 5 * N)), "test": part(slice(5 * N, None)), "meta": meta}


def binary100() -> Files:
    def part(rows: slice) -> bytes:
        return records(X[rows], Y100[rows] // 5, Y100[rows])

    names = ("\n".join(NAMES100) + "\n").encode()
    return {"train.bin": part(slice(0, 5 * N)), "test.bin": part(slice(5 * N, None)), "fine_label_names.txt": names}


FORMS = [
    (python10, cifar.CIFAR10[0], cifar.CIFAR10),
    (binary10, cifar.CIFAR10[1], cifar.CIFAR10),
    (python100, cifar.CIFAR100[0], cifar.CIFAR100),
    (binary100, cifar.CIFAR100[1], cifar.CIFAR100),
]
Form = tuple[Callable[[], Files], cifar.Layout, tuple[cifar.Layout, ...]]
every_form = pytest.mark.parametrize("form", FORMS, ids=["10-python", "10-binary", "100-python", "100-binary"])


def unpacked(place: Path, files: Files) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (place / name).write_bytes(content)
    return place


def packed(path: Path, folder: str, files: Files) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def find(root: Path, layouts: tuple[cifar.Layout, ...]) -> LocatedFiles:
    found = cifar.find(root, layouts)
    assert found is not None
    return found


def whole(split: Split) -> tuple[Pixels, list[int]]:
    blocks = list(split.blocks())
    return np.concatenate([x for x, _ in blocks]), np.concatenate([y for _, y in blocks]).tolist()


def check_all_there(source: Source, layouts: tuple[cifar.Layout, ...]) -> None:
    labels, names = (Y10, NAMES10) if layouts is cifar.CIFAR10 else (Y100, NAMES100)
    assert source.classes == tuple(names)
    for split, rows in ((source.train, slice(0, 5 * N)), (source.test, slice(5 * N, None))):
        x, y = whole(split)
        assert (split.n, split.shape) == (len(y), (3, 32, 32))
        assert np.array_equal(x, X[rows])
        assert y == labels[rows].tolist()


@every_form
def test_unpacked(tmp_path: Path, form: Form) -> None:
    files, layout, layouts = form
    unpacked(tmp_path / layout.folder, files())
    found = find(tmp_path, layouts)
    assert found.form == f"{'binary' if layout.binary else 'python'} version, unpacked"
    assert {path.name for path in found.files} == {*layout.train, *layout.test}
    check_all_there(found.read(), layouts)
    check_all_there(find(tmp_path / layout.folder, layouts).read(), layouts)  # or the folder itself


@every_form
def test_archive(tmp_path: Path, form: Form) -> None:
    files, layout, layouts = form
    path = packed(tmp_path / layout.archive, layout.folder, files())
    found = find(tmp_path, layouts)
    assert (found.form, found.files) == (f"{'binary' if layout.binary else 'python'} version, archive", (path,))
    check_all_there(found.read(), layouts)
    assert [item.name for item in tmp_path.iterdir()] == [layout.archive]  # nothing was unpacked


@every_form
def test_without_names_the_classes_are_numbers(tmp_path: Path, form: Form) -> None:
    files, layout, layouts = form
    some = files()
    del some[layout.names]
    unpacked(tmp_path, some)
    source = find(tmp_path, layouts).read()
    assert source.classes == tuple(map(str, range(10 if layouts is cifar.CIFAR10 else 100)))
    (tmp_path / "archive").mkdir()
    packed(tmp_path / "archive" / layout.archive, layout.folder, some)
    assert find(tmp_path / "archive", layouts).read().classes == source.classes


def test_the_two_data_sets_are_not_mixed_up(tmp_path: Path) -> None:
    unpacked(tmp_path / "cifar-10-batches-py", python10())
    assert cifar.find(tmp_path, cifar.CIFAR100) is None
    unpacked(tmp_path / "cifar-100-binary", binary100())
    check_all_there(find(tmp_path, cifar.CIFAR10).read(), cifar.CIFAR10)
    check_all_there(find(tmp_path, cifar.CIFAR100).read(), cifar.CIFAR100)
    assert cifar.find(tmp_path / "nowhere", cifar.CIFAR10) is None


def test_an_incomplete_folder_is_passed_over(tmp_path: Path) -> None:
    folder = unpacked(tmp_path / "cifar-10-batches-py", python10())
    (folder / "data_batch_3").unlink()
    assert cifar.find(tmp_path, cifar.CIFAR10) is None
    packed(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", binary10())
    assert find(tmp_path, cifar.CIFAR10).form == "binary version, archive"


def test_all_forms_make_the_same_cache(tmp_path: Path) -> None:
    unpacked(tmp_path / "a", python10())
    unpacked(tmp_path / "b", binary10())
    python, binary = (cache.write_cache(tmp_path / f"{at}.c", find(tmp_path / at, cifar.CIFAR10)) for at in "ab")
    assert python.digest == binary.digest
    assert torch.equal(python.x_test, torch.from_numpy(X[5 * N :].copy()))


def refused(place: Path, layouts: tuple[cifar.Layout, ...] = cifar.CIFAR10) -> str:
    """The message a person gets; nothing is left where the cache would have been."""
    with pytest.raises((UsageError, BadData)) as caught:
        cache.write_cache(place / "arrays" / "cache", find(place, layouts))
    assert not (place / "arrays").exists() or not list((place / "arrays").iterdir())
    return str(caught.value)


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.999])
def test_half_an_archive_is_refused(tmp_path: Path, keep: float) -> None:
    path = packed(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", python10())
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    assert str(path) in refused(tmp_path)


def test_another_archive_of_the_name_is_refused(tmp_path: Path) -> None:
    path = packed(tmp_path / "cifar-10-python.tar.gz", "x", {"data_batch_1": python10()["data_batch_1"]})
    assert "holds no data_batch_2, data_batch_3" in refused(tmp_path)
    path.write_bytes(b"<!DOCTYPE html><html>Not found</html>")
    assert "this is an HTML page" in refused(tmp_path)


def test_an_archive_with_a_way_out_is_refused(tmp_path: Path) -> None:
    packed(tmp_path / "cifar-10-python.tar.gz", "..", python10())
    assert "leads out of the folder" in refused(tmp_path)


def test_html_in_place_of_a_pickle_is_refused(tmp_path: Path) -> None:
    unpacked(tmp_path, python10() | {"data_batch_4": b"<html>Sign in to continue</html>"})
    assert "this is an HTML page, not a pickle" in refused(tmp_path)


def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path) -> None:
    command = py2_text(f"touch {tmp_path}/harm")
    unpacked(tmp_path, python10() | {"test_batch": py2_pickle(b"cos\nsystem\n" + command + b"\x85R")})
    assert "refused os.system" in refused(tmp_path)
    assert not (tmp_path / "harm").exists()


def test_the_wrong_label_key_is_named(tmp_path: Path) -> None:
    unpacked(tmp_path, python10() | {"data_batch_2": batch(X[:N], fine_labels=Y10[:N])})
    assert "data_batch_2 has data, batch_label, fine_labels, filenames and no labels" in refused(tmp_path)


@pytest.mark.parametrize("label", [10, 255])
def test_labels_out_of_range_are_refused(tmp_path: Path, label: int) -> None:
    wrong = Y10[:N].copy()
    wrong[2] = label
    unpacked(tmp_path / "python", python10() | {"data_batch_2": batch(X[:N], labels=wrong)})
    assert f"data_batch_2: labels from {wrong.min()} to {label} for 10 classes" in refused(tmp_path / "python")
    unpacked(tmp_path / "binary", binary10() | {"test_batch.bin": records(X[:N], wrong)})
    assert f"test_batch.bin: labels from {wrong.min()} to {label} for 10 classes" in refused(tmp_path / "binary")


def test_negative_labels_are_refused(tmp_path: Path) -> None:
    unpacked(tmp_path, python10() | {"test_batch": batch(X[:N], labels=Y10[:N] - 20)})
    assert "for 10 classes" in refused(tmp_path)


def test_pixels_of_another_shape_are_refused(tmp_path: Path) -> None:
    unpacked(tmp_path, python10() | {"test_batch": batch(X[:N, :1], labels=Y10[:N])})
    assert "test_batch: its data is no uint8 array of 3072 columns" in refused(tmp_path)
    unpacked(tmp_path, python10() | {"test_batch": py2_pickle(py2_list([]))})
    assert "test_batch: a pickled list where a dict is expected" in refused(tmp_path)


def test_a_binary_file_of_another_length_is_refused(tmp_path: Path) -> None:
    unpacked(tmp_path, binary10() | {"test_batch.bin": binary10()["test_batch.bin"][:-1]})
    assert f"{N * 3073 - 1} bytes are no whole number of records of 3073" in refused(tmp_path)
    unpacked(tmp_path, binary10() | {"test_batch.bin": b""})
    assert "test_batch.bin: 0 bytes" in refused(tmp_path)


def test_links_and_pipes_are_not_opened_from_an_archive(tmp_path: Path) -> None:
    path = packed(tmp_path / "cifar-10-python.tar.gz", "x", python10())
    with tarfile.open(path, "w:gz") as tar:
        entry = tarfile.TarInfo("x/data_batch_1")
        entry.type, entry.linkname = tarfile.SYMTYPE, os.devnull
        tar.addfile(entry)
    assert "it is a symbolic link, which is refused" in refused(tmp_path)
