"""The array cache: what was written comes back, mapped; what changed or broke is noticed; nothing half is left."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from onepass import files
from onepass.data import Dataset, LocatedFiles, Source, Split, cache
from onepass.errors import RunError, UsageError

Block = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 256, (20, 3, 4, 5), dtype=np.uint8), RNG.integers(0, 3, 20)
X_TEST, Y_TEST = X[::-1][:7], Y[::-1][:7]
V = RNG.normal(size=(20, 5)).astype(np.float32)


def blocks(x: npt.NDArray[np.uint8], y: npt.NDArray[np.int64], step: int = 6) -> Iterator[Block]:
    for i in range(0, len(x), step):
        yield x[i : i + step], y[i : i + step]


def found_at(path: Path, **changes: Any) -> LocatedFiles:
    path.write_text("what the images were made from")
    train = changes.get("train", Split(20, (3, 4, 5), partial(blocks, X, Y)))
    finish = changes.get("finish", tuple)
    test = Split(7, (3, 4, 5), partial(blocks, X_TEST, Y_TEST))
    source = Source(("a", "b", "c"), train, test, ("a note",), finish)
    return LocatedFiles("a form", (path,), lambda: source)


def test_what_was_written_comes_back_mapped_and_equal(tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []
    found = found_at(tmp_path / "from")
    written = cache.write_cache(tmp_path / "deep" / "er", found, lambda done, total: reported.append((done, total)))
    again = cache.open_cache(tmp_path / "deep" / "er", found.files)
    assert again is not None
    for data in (written, again):
        for tensor, array in ((data.x, X), (data.y, Y), (data.x_test, X_TEST), (data.y_test, Y_TEST)):
            assert torch.equal(tensor, torch.from_numpy(array.copy()))
            assert isinstance(tensor.mapped, mmap.mmap)  # type: ignore[attr-defined]  # added by the cache
        assert (data.x.dtype, data.y.dtype) == (torch.uint8, torch.int64)
        assert data.classes == ("a", "b", "c")
    assert written.digest == again.digest
    again.release()
    assert torch.equal(again.x, written.x)  # given back, and read again
    assert reported == [(0, 0), (6, 27), (12, 27), (18, 27), (20, 27), (26, 27), (27, 27)]
    assert cache.notes(tmp_path / "deep" / "er") == ["a note"]
    assert cache.verify(tmp_path / "deep" / "er")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["er"]


def test_blocks_of_other_sizes_and_strides_give_the_same_digest(tmp_path: Path) -> None:
    one = cache.write_cache(tmp_path / "one", found_at(tmp_path / "from"))
    strided = np.ascontiguousarray(X.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    train = Split(20, (3, 4, 5), partial(blocks, strided, Y, 1))
    other = cache.write_cache(tmp_path / "other", found_at(tmp_path / "from", train=train))
    assert torch.equal(one.x, other.x)
    assert one.digest == other.digest
    changed = Split(20, (3, 4, 5), partial(blocks, X, (Y + 1) % 3))
    assert cache.write_cache(tmp_path / "third", found_at(tmp_path / "from", train=changed)).digest != one.digest


def vectors_at(path: Path, x: npt.NDArray[np.float32] = V, **changes: Any) -> LocatedFiles:
    """Rows of numbers, some at a time."""
    path.write_text("what the vectors were made from")

    def rows(step: int) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
        for i in range(0, len(x), step):
            yield x[i : i + step], Y[i : i + step]

    train = Split(20, x.shape[1:], partial(rows, changes.get("step", 6)), dtype="float32")
    test = Split(20, x.shape[1:], partial(rows, 7), dtype="float32")
    return LocatedFiles("a form", (path,), lambda: Source(("a", "b", "c"), train, test))


@pytest.mark.parametrize("shape", [(5,), (1,), (2, 3), (2, 3, 4)])
def test_numbers_of_any_shape_come_back_mapped_and_equal(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = RNG.normal(size=(20, *shape)).astype(np.float32)
    x[3] = np.float32(3e38)
    x[4] = np.float32(-1e-45)  # the smallest there is
    found = vectors_at(tmp_path / "from", x)
    written = cache.write_cache(tmp_path / "cache", found)
    again = cache.open_cache(tmp_path / "cache", found.files)
    assert again is not None
    for data in (written, again):
        assert (data.x.dtype, data.x_test.dtype) == (torch.float32, torch.float32)
        assert isinstance(data.x.mapped, mmap.mmap)  # type: ignore[attr-defined]  # added by the cache
        assert data.x.numpy().tobytes() == data.x_test.numpy().tobytes() == x.tobytes()
        assert data.y.tolist() == Y.tolist()
    expected = hashlib.sha256(2 * (x.tobytes() + Y.astype("<i8").tobytes())).hexdigest()
    assert written.digest == again.digest == expected
    other = cache.write_cache(tmp_path / "other", vectors_at(tmp_path / "from", x, step=1))
    assert other.digest == expected, "blocks do not matter"
    again.release()
    assert np.array_equal(again.x.numpy(), x)


def test_a_damaged_number_is_found(tmp_path: Path) -> None:
    cache.write_cache(tmp_path / "cache", vectors_at(tmp_path / "from"))
    path = tmp_path / "cache" / "x.npy"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    assert cache.open_cache(tmp_path / "cache") is None
    assert not cache.verify(tmp_path / "cache")


def forged(folder: Path, **arrays: npt.NDArray[np.generic]) -> Dataset | None:
    """A cache with other arrays, whose hash and sizes fit them, as a stranger would make it."""
    meta = json.loads((folder / "meta.json").read_text())
    digest = hashlib.sha256()
    for name in ("x", "y", "x_test", "y_test"):
        path = folder / f"{name}.npy"
        if name in arrays:
            np.save(path, arrays[name])
        digest.update(np.load(path).tobytes())
        meta["sizes"][name] = path.stat().st_size
    (folder / "meta.json").write_text(json.dumps({**meta, "digest": digest.hexdigest()}))
    return cache.open_cache(folder)


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": np.where(np.arange(100).reshape(20, 5) == 42, np.nan, V).astype(np.float32)},
        {"x_test": np.where(np.arange(100).reshape(20, 5) == 42, -np.inf, V).astype(np.float32)},
        {"x": V.astype(np.float64)},
        {"x": V[:, :4]},
        {"x": V[:, :, None]},
        {"x": V[:, 0]},
        {"x": V[0, 0]},
        {"x": np.asfortranarray(V)},
        {"x": V.view(np.uint8)},
        {"y": Y[0]},
        {"y": Y[:, None]},
    ],
    ids=["nan", "infinite", "double", "narrow", "deep", "flat", "scalar", "fortran", "bytes", "label", "labels"],
)
def test_a_cache_of_a_stranger_is_no_data_whatever_its_hash_says(
    tmp_path: Path, arrays: dict[str, npt.NDArray[np.generic]]
) -> None:
    cache.write_cache(tmp_path / "cache", vectors_at(tmp_path / "from"))
    assert forged(tmp_path / "cache", x=V + 1) is not None, "a fitting one is read"
    assert forged(tmp_path / "cache", **arrays) is None


def test_it_is_stale_when_its_files_change(tmp_path: Path) -> None:
    path = tmp_path / "from"
    cache.write_cache(tmp_path / "cache", found_at(path))
    assert cache.open_cache(tmp_path / "cache", (path,)) is not None
    os.utime(path, ns=(1, 1))
    assert cache.open_cache(tmp_path / "cache", (path,)) is None
    assert cache.open_cache(tmp_path / "cache") is not None  # nobody asked about the files: they may be gone
    cache.write_cache(tmp_path / "cache", found_at(path))
    assert cache.open_cache(tmp_path / "cache", (path,)) is not None
    modified = path.stat().st_mtime_ns
    path.write_text("longer than what the images were made from")
    os.utime(path, ns=(modified, modified))
    assert cache.open_cache(tmp_path / "cache", (path,)) is None
    assert cache.open_cache(tmp_path / "cache", (path, path)) is None
    path.unlink()
    assert cache.open_cache(tmp_path / "cache", (path,)) is None


@pytest.mark.parametrize("name", ["x", "y", "x_test", "y_test"])
def test_a_damaged_byte_is_found(tmp_path: Path, name: str) -> None:
    cache.write_cache(tmp_path / "cache", found_at(tmp_path / "from"))
    path = tmp_path / "cache" / f"{name}.npy"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    assert cache.open_cache(tmp_path / "cache") is None
    assert not cache.verify(tmp_path / "cache")


def test_a_label_out_of_range_is_refused_whatever_the_hash_says(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    data = cache.write_cache(folder, found_at(tmp_path / "from"))
    y = data.y.clone()
    y[0] = len(data.classes)
    np.save(folder / "y.npy", y.numpy())
    meta = json.loads((folder / "meta.json").read_text())
    wrong = replace(data, y=y)
    (folder / "meta.json").write_text(json.dumps({**meta, "digest": cache.digest_of(wrong)}))
    assert cache.open_cache(folder) is None


def test_arrays_are_hashed_once_after_they_were_moved_and_then_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_cache(tmp_path / "cache", found_at(tmp_path / "from"))
    hashed: list[str] = []
    whole = cache.digest_of

    def counted(data: Dataset) -> str:
        hashed.append(whole(data))
        return hashed[-1]

    monkeypatch.setattr(cache, "digest_of", counted)
    assert cache.open_cache(tmp_path / "cache") is not None
    assert not hashed, "they are as they were written"
    shutil.copytree(tmp_path / "cache", tmp_path / "copy")
    for _ in range(2):
        assert cache.open_cache(tmp_path / "copy") is not None
        assert len(hashed) == 1


def test_what_a_killed_process_left_is_swept_and_what_is_being_made_is_not(tmp_path: Path) -> None:
    left, making = tmp_path / ".cache.killed", tmp_path / ".cache.making"
    for folder in (left, making):
        folder.mkdir()
        (folder / "x.npy").write_bytes(b"half")
    handle = os.open(making, os.O_RDONLY)
    assert files.lock(handle)
    cache.write_cache(tmp_path / "cache", found_at(tmp_path / "from"))
    os.close(handle)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == [".cache.making"]


def test_a_cache_can_be_read_by_those_it_is_shared_with(tmp_path: Path) -> None:
    cache.write_cache(tmp_path / "cache", found_at(tmp_path / "from"))
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o777 & ~files.UMASK
    for path in (tmp_path / "cache").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~files.UMASK


@pytest.mark.parametrize("name", ["x", "y", "x_test", "y_test"])
def test_a_missing_shorter_or_longer_file_is_noticed_at_once(tmp_path: Path, name: str) -> None:
    cache.write_cache(tmp_path / "cache", found_at(tmp_path / "from"))
    path = tmp_path / "cache" / f"{name}.npy"
    content = path.read_bytes()
    for damaged in (content[:-1], content + b"x", b""):
        path.write_bytes(damaged)
        assert cache.open_cache(tmp_path / "cache") is None
        assert not cache.verify(tmp_path / "cache")
    path.unlink()
    assert cache.open_cache(tmp_path / "cache") is None


@pytest.mark.parametrize("content", ["", "[]", "null", "{}", '{"format": "onepass-arrays-0"}', '{"format": 3', "\xff"])
def test_another_meta_is_no_cache(tmp_path: Path, content: str) -> None:
    assert cache.open_cache(tmp_path / "cache") is None
    cache.write_cache(tmp_path / "cache", found_at(tmp_path / "from"))
    (tmp_path / "cache" / "meta.json").write_text(content, encoding="latin-1")
    assert cache.open_cache(tmp_path / "cache") is None


def test_a_pickle_inside_is_never_loaded(tmp_path: Path) -> None:
    cache.write_cache(tmp_path / "cache", found_at(tmp_path / "from"))
    path, meta = tmp_path / "cache" / "y.npy", tmp_path / "cache" / "meta.json"
    np.save(path, np.array([{"an": "object"}] * 20, dtype=object), allow_pickle=True)
    facts = json.loads(meta.read_text())
    facts["sizes"]["y"] = path.stat().st_size
    meta.write_text(json.dumps(facts))
    assert cache.open_cache(tmp_path / "cache") is None


class Crash(BaseException):
    """Like a Ctrl-C: no ordinary error."""


@pytest.mark.parametrize("error", [Crash, ValueError, MemoryError])
def test_a_crash_while_writing_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    def crashing() -> Iterator[Block]:
        yield X[:6], Y[:6]
        assert len(list((tmp_path / "arrays").iterdir())) == 1 + there
        raise error("in the middle")

    (tmp_path / "arrays").mkdir()
    target = tmp_path / "arrays" / "cache"
    for there in (0, 1):
        with pytest.raises(error):
            cache.write_cache(target, found_at(tmp_path / "from", train=Split(20, (3, 4, 5), crashing)))
        assert len(list((tmp_path / "arrays").iterdir())) == there
        if not there:
            assert cache.open_cache(target) is None
            cache.write_cache(target, found_at(tmp_path / "from"))
    assert cache.verify(target)


def test_who_makes_the_same_cache_at_the_same_time_ends_with_it(tmp_path: Path) -> None:
    together = threading.Barrier(4)

    def waiting() -> Iterator[Block]:
        yield X, Y
        together.wait(60)

    def make(found: LocatedFiles) -> str:
        return cache.write_cache(tmp_path / "arrays" / "cache", found).digest

    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):  # each time over a cache of older files
            found = found_at(tmp_path / "from", train=Split(20, (3, 4, 5), waiting))
            assert len(set(pool.map(make, [found] * 4))) == 1
    assert [path.name for path in (tmp_path / "arrays").iterdir()] == ["cache"]
    assert cache.verify(tmp_path / "arrays" / "cache")


@pytest.mark.parametrize(
    "train",
    [
        Split(21, (3, 4, 5), partial(blocks, X, Y)),
        Split(19, (3, 4, 5), partial(blocks, X, Y)),
        Split(19, (3, 4, 5), partial(blocks, X, Y), exact=False),
        Split(20, (3, 5, 4), partial(blocks, X, Y)),
        Split(20, (3, 4, 5), partial(blocks, X.astype(np.int64), Y)),
        Split(20, (3, 4, 5), partial(blocks, X, Y[:19])),
        Split(20, (3, 4, 5), partial(blocks, X, Y), dtype="float32"),
        Split(20, (5,), lambda: iter([(V, Y)])),
        Split(20, (5,), lambda: iter([(V.astype(np.float64), Y)]), dtype="float32"),  # type: ignore[list-item]
        Split(20, (5,), lambda: iter([(V + np.float32(np.inf), Y)]), dtype="float32"),
    ],
)
def test_a_reader_that_does_not_keep_its_word_is_an_error(tmp_path: Path, train: Split) -> None:
    with pytest.raises(ValueError, match=r"block of|block with a NaN|were announced"):
        cache.write_cache(tmp_path / "cache", found_at(tmp_path / "from", train=train))
    assert [path.name for path in tmp_path.iterdir()] == ["from"]


@pytest.mark.parametrize("announced", [20, 21, 1_000, 10_000_000])
def test_fewer_images_than_at_most_are_the_same_cache(tmp_path: Path, announced: int) -> None:
    exact = cache.write_cache(tmp_path / "exact", found_at(tmp_path / "from"))
    reported: list[tuple[int, int]] = []
    train = Split(announced, (3, 4, 5), partial(blocks, X, Y), exact=False)
    found = found_at(tmp_path / "from", train=train)
    fewer = cache.write_cache(tmp_path / "fewer", found, lambda done, total: reported.append((done, total)))
    assert torch.equal(fewer.x, exact.x)
    assert fewer.digest == exact.digest
    assert cache.verify(tmp_path / "fewer")
    for name in ("x", "y", "x_test", "y_test"):
        assert (tmp_path / "fewer" / f"{name}.npy").read_bytes() == (tmp_path / "exact" / f"{name}.npy").read_bytes()
    assert reported[-1] == (announced + 7, announced + 7)


def test_what_is_known_in_the_end_is_noted_then(tmp_path: Path) -> None:
    read: list[int] = []

    def counted(x: npt.NDArray[np.uint8], y: npt.NDArray[np.int64]) -> Iterator[Block]:
        for block in blocks(x, y):
            read.append(len(block[1]))
            yield block

    train = Split(20, (3, 4, 5), partial(counted, X, Y))
    found = found_at(tmp_path / "from", train=train, finish=lambda: (f"{sum(read)} were read",))
    cache.write_cache(tmp_path / "cache", found)
    assert cache.notes(tmp_path / "cache") == ["a note", "20 were read"]


def test_a_refusal_in_the_end_leaves_what_was_there(tmp_path: Path) -> None:
    def refusing() -> tuple[str, ...]:
        raise UsageError("not with these")

    target = tmp_path / "arrays" / "cache"
    with pytest.raises(UsageError, match="not with these"):
        cache.write_cache(target, found_at(tmp_path / "from", finish=refusing))
    assert not list((tmp_path / "arrays").iterdir())
    cache.write_cache(target, found_at(tmp_path / "from"))
    with pytest.raises(UsageError, match="not with these"):
        cache.write_cache(target, found_at(tmp_path / "from", finish=refusing))
    assert [path.name for path in (tmp_path / "arrays").iterdir()] == ["cache"]
    assert cache.verify(target)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RunError, match=r"cannot make the array cache .*file/cache: .*--data-dir"):
        cache.write_cache(tmp_path / "file" / "cache", found_at(tmp_path / "from"))
