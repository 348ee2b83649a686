"""Images that do not decode, by their headers or only by their pixels: skipped, counted and named, or fatal."""

from __future__ import annotations

import os
import struct
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from data_helpers import Pixels, noise, some_classes
from onepass.data import BadImages, Dataset, LocatedFiles, Source, cache, catalog, folder, images
from onepass.errors import UsageError


def cut(path: Path, keep: float = 0.6) -> Path:
    """A JPEG of which the end is missing: its header is as good as any."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(0)).save(path, "JPEG", quality=95)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - int((1 - keep) * (len(content) - content.index(b"\xff\xda")))])
    return path


def find(path: Path, bad_images: BadImages = "skip") -> LocatedFiles:
    found = folder.find(path, 0, bad_images=bad_images)
    assert found is not None
    return found


def written(tmp_path: Path, root: Path) -> Dataset:
    return cache.write_cache(tmp_path / "arrays" / root.name, find(root))


def refused(tmp_path: Path, root: Path, bad_images: BadImages = "skip") -> str:
    """The message a person gets; nothing is left where the cache would have been."""
    with pytest.raises(UsageError) as caught:
        cache.write_cache(tmp_path / "arrays" / "cache", find(root, bad_images))
    assert not (tmp_path / "arrays").exists() or not list((tmp_path / "arrays").iterdir())
    return str(caught.value)


def whole(source: Source) -> list[Pixels]:
    """All images, read to the end."""
    return [x for split in (source.train, source.test) for block, _ in split.blocks() for x in block]


def bomb(side: int) -> bytes:
    """A PNG of a few bytes that declares a huge image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


@pytest.mark.filterwarnings("ignore:Image size:PIL.Image.DecompressionBombWarning")
def test_images_that_do_not_decode_are_named_and_skipped_or_fatal(tmp_path: Path) -> None:
    root = some_classes(tmp_path / "data", n=10)
    good = (root / "cat" / "0.png").read_bytes()
    bad = {
        "html.jpg": (b"<!DOCTYPE html><html>404</html>", "it is an HTML page"),
        "lfs.jpg": (b"version https://git-lfs.github.com/spec/v1\n", "it is a Git LFS pointer"),
        "empty.png": (b"", "the file is empty"),
        "short.png": (good[: len(good) // 2], ""),  # the only one with a good header
        "text.gif": (b"hello", "it is no image"),
        "bomb.png": (bomb(60_000), "60000"),
        "large.png": (bomb(10_000), "10000 x 10000 pixels are more than"),
        "eps.jpg": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it is no image"),
    }
    for name, (content, _) in bad.items():
        (root / "dog" / name).write_bytes(content)
    (root / "dog" / "gone.png").symlink_to(root / "nowhere.png")  # not a file: not an image either
    source = find(root).read()
    assert source.train.n + source.test.n == 21
    assert not source.train.exact
    assert len(whole(source)) == 20
    assert not any("skipped" in note for note in source.notes)
    (note,) = source.finish()
    assert note.startswith("8 of 28 images do not decode and were skipped: ")
    for name, (_, reason) in bad.items():
        assert f"{root / 'dog' / name} ({reason}" in note or (name == "bomb.png" and name in note)
    assert "8 of 28 images do not decode; remove them or mend them" in refused(tmp_path, root, "error")


def test_a_jpeg_that_is_cut_off_is_skipped_counted_and_named(tmp_path: Path) -> None:
    root = some_classes(tmp_path / "data", n=10)
    path = cut(root / "cat" / "x.jpg")
    assert images.measure(path) == (8, 8)
    data = written(tmp_path, root)
    assert len(data.y) + len(data.y_test) == 20
    (note,) = [note for note in cache.notes(tmp_path / "arrays" / "data") if "do not decode" in note]
    assert note.startswith(f"1 of 21 images do not decode and were skipped: {path} (")
    assert "truncated" in note
    assert f"{path} (" in refused(tmp_path / "other", root, "error")


def test_if_fatal_ten_are_named_and_all_counted(tmp_path: Path) -> None:
    root = some_classes(tmp_path / "data", n=10)
    paths = [cut(root / "cat" / f"x{i:02}.jpg") for i in range(12)]
    (root / "dog" / "empty.png").write_bytes(b"")
    message = refused(tmp_path, root, "error")
    assert "and 3 more: 13 of 33 images do not decode; remove them or mend them" in message
    assert sum(f"{path} (" in message for path in paths) in (9, 10)


def test_a_class_all_of_whose_images_are_cut_off_is_refused_by_name(tmp_path: Path) -> None:
    root = some_classes(tmp_path / "data")
    cut(root / "cat" / "x.jpg")  # another class, which has enough
    paths = [cut(root / "eel" / f"{i}.jpg") for i in range(3)]
    message = refused(tmp_path, root)
    assert f"{root}: class 'eel' has no images that decode (such as " in message
    assert "to train on; add some, or remove the class" in message
    assert any(f"(such as {path} (" in message for path in paths)


def test_a_class_with_nothing_left_to_test_on_is_refused_by_name(tmp_path: Path) -> None:
    some_classes(tmp_path / "data" / "train")
    some_classes(tmp_path / "data" / "test", ("cat",))
    path = cut(tmp_path / "data" / "test" / "dog" / "0.jpg")
    message = refused(tmp_path, tmp_path / "data")
    assert f"class 'dog' has no images that decode (such as {path} (" in message
    assert "to test on" in message


def test_a_folder_where_nothing_decodes_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for i in range(2):
            cut(tmp_path / "data" / name / f"{i}.jpg")
    assert f"{tmp_path / 'data'} has no images that decode (such as " in refused(tmp_path, tmp_path / "data")


def test_the_cache_is_that_of_the_folder_without_them(tmp_path: Path) -> None:
    roots = [tmp_path / "clean", tmp_path / "mixed"]
    for root in roots:
        some_classes(root / "train", n=4)  # with the bad ones 13: another number of digits
        some_classes(root / "test", n=2)
    for i, name in enumerate(("train/cat/0", "train/cat/1x", "train/cat/3x", "train/dog/2x", "test/cat/0x")):
        cut(roots[1] / f"{name}.jpg", keep=0.3 + i / 10)
    (roots[1] / "train" / "dog" / "empty.png").write_bytes(b"")
    clean, mixed = (written(tmp_path, root) for root in roots)
    assert mixed.x.shape == (8, 3, 8, 8)
    assert mixed.x_test.shape == (4, 3, 8, 8)
    for ours, theirs in ((clean.x, mixed.x), (clean.y, mixed.y), (clean.x_test, mixed.x_test)):
        assert torch.equal(ours, theirs)
    assert mixed.digest == clean.digest
    assert cache.verify(tmp_path / "arrays" / "mixed")
    again = cache.open_cache(tmp_path / "arrays" / "mixed", find(roots[1]).files)
    assert again is not None
    assert again.digest == clean.digest
    assert np.load(tmp_path / "arrays" / "mixed" / "x.npy").shape == (8, 3, 8, 8)


def test_every_file_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = some_classes(tmp_path / "data", n=10)
    bad = cut(root / "cat" / "x.jpg")
    decoded: list[Path | bytes] = []
    loaded: Counter[str | bytes] = Counter()
    decode, load = images.decode, ImageFile.ImageFile.load

    def counted(source: Path | bytes, size: int) -> Pixels:
        decoded.append(source)
        return decode(source, size)

    def counted_load(image: ImageFile.ImageFile) -> object:
        loaded[image.filename] += bool(image.tile)  # which are gone once the pixels are there
        return load(image)

    monkeypatch.setattr(images, "decode", counted)
    monkeypatch.setattr(ImageFile.ImageFile, "load", counted_load)
    written(tmp_path, root)
    files = [path for path in root.rglob("*") if path.is_file()]
    assert bad in files
    assert sorted(map(str, decoded)) == sorted(map(str, files))
    assert loaded == Counter(map(str, files))


def test_they_are_named_in_the_order_of_the_files_however_many_threads_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_classes(tmp_path / "train", n=3)
    some_classes(tmp_path / "test", n=3)
    cuts = [cut(tmp_path / "train" / name / f"{i}x.jpg") for name in ("cat", "dog") for i in (0, 1, 2)]
    empty = tmp_path / "train" / "dog" / "0y.png"
    empty.write_bytes(b"")
    order = [*cuts[:4], empty, *cuts[4:], cut(tmp_path / "test" / "cat" / "0x.jpg")]
    monkeypatch.setattr(images, "_BLOCK_BYTES", 1)  # an image in each block
    found: set[str] = set()
    for cores in (1, 2, 5):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: set(range(cores)), raising=False)
        source = find(tmp_path).read()
        assert len(whole(source)) == len(whole(source)) == 12  # and once more
        found.update(source.finish())
    (note,) = found
    places = [note.index(f"{path} (") for path in order]
    assert places == sorted(places)
    assert note.startswith("8 of 20 images")


def test_an_image_that_is_damaged_or_gone_later_is_one_that_does_not_decode(tmp_path: Path) -> None:
    source = find(some_classes(tmp_path)).read()
    damaged, gone = tmp_path / "dog" / "0.png", tmp_path / "dog" / "1.png"
    damaged.write_bytes(b"x")
    gone.unlink()
    assert len(whole(source)) == 8
    (note,) = source.finish()
    assert note.startswith("2 of 10 images do not decode")
    assert f"{damaged} (it is no image)" in note
    assert f"{gone} (No such file or directory)" in note


def test_progress_runs_over_all_that_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = some_classes(tmp_path / "data", n=10)
    cut(root / "dog" / "x.jpg")
    monkeypatch.setattr(images, "_BLOCK_BYTES", 3 * 8 * 8 * 4)
    reported: list[tuple[int, int]] = []
    cache.write_cache(tmp_path / "cache", find(root), lambda done, total: reported.append((done, total)))
    assert reported[:2] == [(0, 0), (4, 21)]
    assert reported[-1] == (21, 21)
    assert reported == sorted(reported)


def test_a_cache_that_left_some_out_is_refused_to_who_wants_none_left_out(tmp_path: Path) -> None:
    root = some_classes(tmp_path / "data")
    cut(root / "dog" / "x.jpg")
    assert len(catalog.load(str(root), root=tmp_path).y) == 8
    with pytest.raises(UsageError, match="1 of 11 images do not decode"):
        catalog.Datasets(tmp_path, bad_images="error").load(str(root))
