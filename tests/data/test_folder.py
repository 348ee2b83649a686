"""Folders of images: what becomes of the pixels, which images are for testing, and what is refused."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from data_helpers import Pixels, noise, save, some_classes
from onepass.data import SUFFIXES, BadImages, Source, Split, cache, folder, images
from onepass.errors import UsageError


def read(path: Path, image_size: int = 0, bad_images: BadImages = "skip") -> Source:
    found = folder.find(path, image_size, bad_images=bad_images)
    assert found is not None
    return found.read()


def whole(split: Split) -> tuple[Pixels, list[int]]:
    blocks = list(split.blocks())
    return np.concatenate([x for x, _ in blocks]), np.concatenate([y for _, y in blocks]).tolist()


def refused(path: Path, image_size: int = 0, bad_images: BadImages = "skip") -> str:
    with pytest.raises(UsageError) as caught:
        read(path, image_size, bad_images)
    return str(caught.value)


def test_pixels_arrive_exactly_with_channels_first_and_classes_in_natural_order(tmp_path: Path) -> None:
    for c, name in enumerate(("zebra", "10", "9", "apple")):
        save(tmp_path / "train" / name / "a.png", noise(c))
        save(tmp_path / "train" / name / "b.png", noise(10 + c))
        save(tmp_path / "test" / name / "c.png", noise(20 + c))
    source = read(tmp_path)
    assert source.classes == ("9", "10", "apple", "zebra")
    x, y = whole(source.train)
    assert source.train.n == 8
    assert source.train.shape == x.shape[1:] == (3, 8, 8)
    assert y == [0, 0, 1, 1, 2, 2, 3, 3]
    expected = [noise(c) for c in (2, 12, 1, 11, 3, 13, 0, 10)]
    assert np.array_equal(x, np.stack(expected).transpose(0, 3, 1, 2))
    x, y = whole(source.test)
    assert np.array_equal(x, np.stack([noise(c) for c in (22, 21, 23, 20)]).transpose(0, 3, 1, 2))
    assert y == [0, 1, 2, 3]
    assert source.notes == ()


@pytest.mark.parametrize("name", ["val", "validation", "Test"])
def test_other_names_of_a_test_folder(tmp_path: Path, name: str) -> None:
    some_classes(tmp_path / "train")
    some_classes(tmp_path / name, n=2)
    source = read(tmp_path)
    assert (source.train.n, source.test.n) == (10, 4)


def test_of_test_and_val_the_first_is_taken_and_the_other_noted(tmp_path: Path) -> None:
    for name, n in (("train", 4), ("val", 3), ("test", 2)):
        some_classes(tmp_path / name, n=n)
    source = read(tmp_path)
    assert source.test.n == 4
    assert source.notes == ("not used: the folder val",)


def test_a_test_folder_without_labels_is_passed_over_for_val(tmp_path: Path) -> None:
    some_classes(tmp_path / "train")
    some_classes(tmp_path / "val", n=1)
    save(tmp_path / "test" / "images" / "0.png", noise(0))  # as Tiny ImageNet's
    assert read(tmp_path).test.n == 2


def test_without_a_test_folder_a_fixed_fifth_of_each_class_is_held_out(tmp_path: Path) -> None:
    source = read(some_classes(tmp_path / "two", n=10))
    (x, y), (x_test, y_test) = whole(source.train), whole(source.test)
    assert (y, y_test) == ([0] * 8 + [1] * 8, [0] * 2 + [1] * 2)
    assert "20% of each class were held out for testing (seed 0)" in source.notes[0]
    seen = {image.tobytes() for image in (*x, *x_test)}
    assert len(seen) == 20
    more = read(some_classes(tmp_path / "three", ("cat", "dog", "ant"), n=10))
    again = {image.tobytes() for image in whole(more.test)[0]}
    cats = {noise(i).transpose(2, 0, 1).tobytes() for i in range(10)}
    assert again & cats == {image.tobytes() for image in x_test[:2]}  # another class changes nothing for this one


def test_one_of_the_classes_may_be_trains(tmp_path: Path) -> None:
    assert read(some_classes(tmp_path, ("train", "plane"))).classes == ("plane", "train")


def test_train_alone_is_split(tmp_path: Path) -> None:
    some_classes(tmp_path / "train")
    source = read(tmp_path)
    assert (source.classes, source.train.n, source.test.n) == (("cat", "dog"), 8, 2)


def test_images_in_folders_inside_a_class_count_and_other_files_do_not(tmp_path: Path) -> None:
    some_classes(tmp_path)
    save(tmp_path / "cat" / "images" / "more.png", noise(7))  # as Tiny ImageNet's
    save(tmp_path / "cat" / ".hidden.png", noise(8))
    save(tmp_path / ".trash" / "a.png", noise(8))
    (tmp_path / "cat" / "boxes.txt").write_text("0 0 1 1")
    (tmp_path / "README.md").write_text("cats and dogs")
    os.mkfifo(tmp_path / "cat" / "pipe.png")  # opening it would wait for ever
    source = read(tmp_path)
    assert source.train.n + source.test.n == 11
    assert source.classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("sizes", "asked", "given"),
    [((8, 8), 0, 8), ((96, 96), 0, 96), ((97, 97), 0, 64), ((8, 9), 0, 64), ((97, 97), 32, 32), ((8, 8), 16, 16)],
)
def test_the_size_is_the_images_own_if_small_and_alike(
    tmp_path: Path, sizes: tuple[int, int], asked: int, given: int
) -> None:
    for name, side in zip(("a", "b"), sizes, strict=True):
        for i in range(2):
            save(tmp_path / name / f"{i}.png", noise(i, side))
    source = read(tmp_path, asked)
    assert source.train.shape == whole(source.train)[0].shape[1:] == (3, given, given)
    assert any("--image-size" in note for note in source.notes) == (not asked and given == 64)


def test_the_middle_of_a_wide_image_is_kept(tmp_path: Path) -> None:
    wide = np.zeros((20, 60, 3), dtype=np.uint8)
    wide[:, :20, 0] = wide[:, 20:40, 1] = wide[:, 40:, 2] = 255
    path = save(tmp_path / "wide.png", wide)
    pixels = images.decode(path, 10)
    assert (pixels[1] > 235).all()  # as scaled first and cut then: the edges know their neighbours
    assert (pixels[[0, 2]] < 20).all()
    assert (pixels[1, :, 3:7] == 255).all()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_decodes(tmp_path: Path, suffix: str) -> None:
    grey = np.full((8, 8), 255, dtype=np.uint8)
    path = save(tmp_path / f"image{suffix}", grey)
    assert (images.decode(path, 8) >= 250).all()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_size_is_in_the_header_of_every_format(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / f"image{suffix}", np.zeros((8, 12, 3), dtype=np.uint8))
    for kind in (Image.Image, ImageFile.ImageFile):
        monkeypatch.setattr(kind, "load", lambda image: pytest.fail("decoded"))
    assert images.measure(path) == (12, 8)


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("L", 100, (100, 100, 100)),
        ("RGBA", (10, 20, 30, 255), (10, 20, 30)),
        ("RGBA", (10, 20, 30, 0), (255, 255, 255)),
        ("LA", (10, 0), (255, 255, 255)),
        ("1", 1, (255, 255, 255)),
        ("I;16", 40000, (156, 156, 156)),
    ],
)
def test_any_mode_becomes_rgb(
    tmp_path: Path, mode: str, colour: int | tuple[int, ...], expected: tuple[int, ...]
) -> None:
    path = tmp_path / "a.png"
    Image.new(mode, (4, 4), colour).save(path)
    assert images.decode(path, 4)[:, 1, 1].tolist() == list(expected)


@pytest.mark.parametrize(("mode", "reason"), [("F", "its pixels are floats")])
def test_what_no_rgb_can_be_made_of_is_bad(tmp_path: Path, mode: str, reason: str) -> None:
    Image.new(mode, (4, 4)).save(tmp_path / "a.tif")
    for attempt in (images.measure, lambda path: images.decode(path, 4)):
        with pytest.raises(images.BadImage, match=reason):
            attempt(tmp_path / "a.tif")


def test_transparent_palettes_and_cmyk(tmp_path: Path) -> None:
    palette = Image.fromarray(np.array([[0, 1], [1, 0]], dtype=np.uint8), mode="P")
    palette.putpalette([0, 0, 0, 9, 9, 9])
    palette.save(tmp_path / "a.png", transparency=bytes([0, 255]))
    assert images.decode(tmp_path / "a.png", 2)[0].tolist() == [[255, 9], [9, 255]]
    Image.new("CMYK", (16, 16), (0, 0, 0, 0)).save(tmp_path / "a.jpg")
    assert (images.decode(tmp_path / "a.jpg", 8) >= 250).all()


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".webp"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_a_photograph_is_turned_upright(tmp_path: Path, turn: int, suffix: str) -> None:
    upright = np.zeros((8, 16, 3), dtype=np.uint8)
    upright[:4, :8] = 255  # wide, the upper left quarter white
    lying = Image.fromarray(upright)
    back = {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    if turn > 1:
        lying = lying.transpose(back.get(turn, images._UPRIGHT[turn]))  # the others undo themselves
    exif = Image.Exif()
    exif[0x0112] = turn
    path = tmp_path / f"a{suffix}"
    lying.save(path, exif=exif)
    assert images.measure(path) == (16, 8)
    pixels = np.asarray(images._loaded(path, 16))
    assert np.array_equal(pixels > 127, upright > 127)  # some formats lose a little


def test_a_large_jpeg_is_decoded_at_a_smaller_scale_and_looks_the_same(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 1024).astype(np.uint8)
    pixels = np.stack([np.broadcast_to(ramp, (1024, 1024)), np.broadcast_to(ramp[:, None], (1024, 1024))], axis=2)
    pixels = np.concatenate([pixels, np.full((1024, 1024, 1), 128, dtype=np.uint8)], axis=2)
    path = tmp_path / "a.jpg"
    Image.fromarray(pixels).save(path, quality=95)
    assert images.measure(path) == (1024, 1024)
    small = images.decode(path, 32).astype(int)
    exact = pixels.reshape(32, 32, 32, 32, 3).mean(axis=(1, 3)).transpose(2, 0, 1)
    assert abs(small - exact).max() < 6


def test_blocks_keep_the_order_however_many_threads_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some_classes(tmp_path, n=100)
    monkeypatch.setattr(images, "_BLOCK_BYTES", 3 * 8 * 8 * 7)
    split = read(tmp_path).train
    first, second = whole(split), whole(split)
    assert [len(y) for _, y in split.blocks()] == [7] * 22 + [6]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(5)), raising=False)
    third = whole(split)
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[0], third[0])
    assert first[1] == third[1] == [0] * 80 + [1] * 80


def test_threads_work_only_a_little_ahead() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for i in range(1000):
            taken.append(i)
            yield i

    results = images.in_threads(str, items())
    assert next(results) == "0"
    assert len(taken) <= 2 * images._MAX_THREADS + 1
    assert list(results) == [str(i) for i in range(1, 1000)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", images.FORMATS)
def test_any_damage_is_a_bad_image_at_most(form: str) -> None:
    file, rng = io.BytesIO(), np.random.default_rng(0)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(noise(0)).save(file, form, exif=exif)
    for _ in range(60):
        damaged = bytearray(file.getvalue())
        for at in rng.integers(0, len(damaged), rng.integers(1, 4)):
            damaged[at] = rng.integers(256)
        with contextlib.suppress(images.BadImage):
            assert images.decode(bytes(damaged), 4).shape == (3, 4, 4)


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    secret = save(tmp_path / "private" / "secret.png", noise(0))
    root = some_classes(tmp_path / "data")
    (root / "cat" / "again.png").symlink_to("0.png")  # inside: fine
    assert sum(split.n for split in (read(root).train, read(root).test)) == 11
    link = root / "cat" / "link.png"
    link.symlink_to(secret)
    assert f"{link} is a link that leads out of {root}" in refused(root)
    link.unlink()
    (root / "linked").symlink_to(secret.parent)
    assert "linked is a link to a folder" in refused(root)


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    some_classes(tmp_path / "data")
    (tmp_path / "link").symlink_to("data")
    assert read(tmp_path / "link").train.n == 8


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    assert folder.find(tmp_path / "nowhere", 0) is None
    assert folder.find(tmp_path, 0) is None
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert "has no images: put them there as class/image.jpg" in refused(tmp_path)
    some_classes(tmp_path, ("a",))
    assert "class 'b' has no images; it needs at least two" in refused(tmp_path)
    save(tmp_path / "b" / "0.png", noise(0))
    assert "class 'b' has one image" in refused(tmp_path)
    (tmp_path / "b" / "0.png").write_bytes(b"")
    (tmp_path / "b" / "1.png").write_bytes(b"")
    message = refused(tmp_path)
    assert "class 'b' has no images that decode" in message
    assert "b/0.png (the file is empty)" in message or "b/1.png (the file is empty)" in message


def test_one_class_is_not_enough_and_the_folder_inside_is_suggested(tmp_path: Path) -> None:
    some_classes(tmp_path / "flowers")
    message = refused(tmp_path)
    assert "only one class, 'flowers'" in message
    assert f"do you mean {tmp_path / 'flowers'}, which has the folders cat, dog?" in message
    some_classes(tmp_path / "alone", ("cat",))
    assert "only one class, 'cat': a stream needs at least two" in refused(tmp_path / "alone")


def test_train_and_test_must_have_the_same_classes(tmp_path: Path) -> None:
    some_classes(tmp_path / "train")
    some_classes(tmp_path / "test", ("cow",))
    assert "test has the folders cow, none of which is in train (cat, dog)" in refused(tmp_path)
    some_classes(tmp_path / "test", ("cat",))
    assert "cow to test on" in refused(tmp_path)
    for path in (tmp_path / "test" / "cow").iterdir():
        path.unlink()
    (tmp_path / "test" / "cow").rmdir()
    assert "class 'dog' has no images to test on" in refused(tmp_path)


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some_classes(tmp_path)

    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", denied)
    assert "cannot be read: Permission denied" in refused(tmp_path)


def test_a_new_image_or_class_makes_the_cache_stale(tmp_path: Path) -> None:
    root = some_classes(tmp_path / "data")
    found = folder.find(root, 0)
    assert found is not None
    assert set(found.files) == {root / "cat", root / "dog"}
    data = cache.write_cache(tmp_path / "cache", found)
    assert data.x.shape == (8, 3, 8, 8)
    assert cache.open_cache(tmp_path / "cache", found.files) is not None
    inside = root / "cat" / "deeper" / "more.png"
    inside.parent.mkdir()
    hidden = root / "cat" / ".store"
    hidden.mkdir()
    cache.write_cache(tmp_path / "cache", found)
    save(hidden / "away.png", noise(7))
    (root / "cat" / "Thumbs.db").write_text("")
    assert cache.open_cache(tmp_path / "cache", found.files) is not None, "what is no image does not count"
    (root / "dog" / "linked.png").symlink_to(hidden / "away.png")
    cache.write_cache(tmp_path / "cache", found)
    os.utime(hidden / "away.png", ns=(0, 0))
    assert cache.open_cache(tmp_path / "cache", found.files) is None, "a link's image has changed"
    for change in (lambda: save(inside, noise(9)), lambda: os.utime(inside, ns=(0, 0)), inside.unlink):
        cache.write_cache(tmp_path / "cache", found)
        assert cache.open_cache(tmp_path / "cache", found.files) is not None
        change()
        assert cache.open_cache(tmp_path / "cache", found.files) is None
    some_classes(root, ("cow",))
    again = folder.find(root, 0)
    assert again is not None
    assert cache.write_cache(tmp_path / "cache", again).classes == ("cat", "cow", "dog")
