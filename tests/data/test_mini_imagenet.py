"""MiniImageNet in its three forms, of which small versions are built here, and what is refused."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from data_helpers import Pixels, py2_array, py2_dict, py2_int, py2_list, py2_pickle, py2_text
from onepass.data import Source, Split, mini_imagenet
from onepass.data.pickle_values import BadPickle
from onepass.errors import UsageError

PARTS = {"train": range(64), "val": range(64, 80), "test": range(80, 100)}
N = 6  # images a class, where the real one has 600


def wnid(c: int) -> str:
    return f"n{(c * 37) % 100:08d}"  # so that the parts do not come in the order of names


def pickled(pixels: bytes, class_dict: dict[str, bytes]) -> bytes:
    return py2_pickle(py2_dict(class_dict=py2_dict(**class_dict), image_data=pixels))


def image(c: int, i: int, side: int = 84) -> Pixels:
    """Each image of each class is another plain colour, whatever its size becomes."""
    return np.broadcast_to(np.array([c, 40 * i, 7], dtype=np.uint8), (side, side, 3))


def cache_pickles(place: Path, side: int = 84) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for part, classes in PARTS.items():
        pixels = np.stack([image(c, i, side) for c in classes for i in range(N)])
        rows = {wnid(c): py2_list(range(k * N, k * N + N)) for k, c in enumerate(classes)}
        (place / f"mini-imagenet-cache-{part}.pkl").write_bytes(pickled(py2_array(pixels), rows))
    return place


def csv_and_images(place: Path) -> Path:
    (place / "images").mkdir(parents=True)
    for part, classes in PARTS.items():
        lines = ["filename,label"]
        for c in classes:
            for i in range(N):
                Image.fromarray(image(c, i, 12)).save(place / "images" / f"{wnid(c)}{i:08}.png")
                lines.append(f"{wnid(c)}{i:08}.png,{wnid(c)}")
        (place / f"{part}.csv").write_text("\r\n".join(lines) + "\r\n")
    return place


def class_folders(place: Path, *, parts: bool) -> Path:
    for part, classes in PARTS.items():
        for c in classes:
            folder = place / part / wnid(c) if parts else place / wnid(c)
            folder.mkdir(parents=True)
            for i in range(N):
                Image.fromarray(image(c, i, 12)).save(folder / f"{i}.png")
    return place


def read(place: Path, image_size: int = 0) -> Source:
    found = mini_imagenet.find(place, image_size)
    assert found is not None
    return found.read()


def whole(split: Split) -> tuple[Pixels, npt.NDArray[np.int64]]:
    blocks = list(split.blocks())
    return np.concatenate([x for x, _ in blocks]), np.concatenate([y for _, y in blocks])


def refused(place: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read(place)
    return str(caught.value)


def check_all_there(source: Source, side: int = 84) -> set[tuple[int, ...]]:
    """Every image once, under its class's name, in its colours; a sixth of each class for testing. The test images."""
    assert source.classes == tuple(sorted(wnid(c) for c in range(100)))
    assert (source.train.n, source.test.n) == (500, 100)
    numbers = {wnid(c): c for c in range(100)}
    seen: list[set[tuple[int, ...]]] = []
    for split, each in ((source.train, 5), (source.test, 1)):
        x, y = whole(split)
        assert x.shape == (split.n, 3, side, side)
        assert (x == x[:, :, :1, :1]).all()
        assert x[:, 0, 0, 0].tolist() == [numbers[source.classes[label]] for label in y]
        assert (np.bincount(y) == each).all()
        seen.append({tuple(colour) for colour in x[:, :, 0, 0].tolist()})
    assert seen[0] | seen[1] == {(c, 40 * i, 7) for c in range(100) for i in range(N)}
    assert not seen[0] & seen[1]
    assert any("seed 0" in note for note in source.notes)
    return seen[1]


def test_cache_pickles_give_all_classes_exactly_and_a_fixed_sixth_of_each(tmp_path: Path) -> None:
    place = cache_pickles(tmp_path / "somewhere")
    found = mini_imagenet.find(tmp_path, 0)
    assert found is not None
    assert (found.form, {path.parent for path in found.files}) == ("cache pickles", {place})
    source = found.read()
    test = check_all_there(source)
    assert check_all_there(source) == test  # the blocks can be read again
    assert len({colour[1] for colour in test}) > 3  # shuffled: not the last of every class
    assert check_all_there(read(tmp_path)) == test


def test_pages_of_the_pickles_can_be_given_back(tmp_path: Path) -> None:
    """Else all of them would be resident in the end; it depends on how the pickle reader holds its arrays."""
    path = cache_pickles(tmp_path) / "mini-imagenet-cache-val.pkl"
    for _, member in mini_imagenet._members(path):
        assert isinstance(mini_imagenet._mapping(member.pixels), mmap.mmap)
    before = member.pixels[0].copy()
    mini_imagenet._release(member.pixels)
    assert np.array_equal(member.pixels[0], before)


def test_cache_pickles_in_another_size(tmp_path: Path) -> None:
    check_all_there(read(cache_pickles(tmp_path, side=12), 20), side=20)


def test_csv_and_images(tmp_path: Path) -> None:
    csv_and_images(tmp_path / "images-of-someone")
    found = mini_imagenet.find(tmp_path, 0)
    assert found is not None
    assert found.form == "CSV files and images"
    check_all_there(found.read())


@pytest.mark.parametrize("parts", [False, True])
def test_class_folders(tmp_path: Path, parts: bool) -> None:
    class_folders(tmp_path / "MiniImageNet", parts=parts)
    found = mini_imagenet.find(tmp_path, 12)
    assert found is not None
    assert found.form == "class folders"
    check_all_there(found.read(), side=12)


def test_a_folder_of_another_name_is_not_taken_for_it(tmp_path: Path) -> None:
    class_folders(tmp_path / "flowers", parts=False)
    assert mini_imagenet.find(tmp_path, 0) is None
    assert mini_imagenet.find(tmp_path / "nowhere", 0) is None


def test_a_sixth_of_any_number_of_images(tmp_path: Path) -> None:
    class_folders(tmp_path / "mini_imagenet", parts=False)
    folder = tmp_path / "mini_imagenet" / wnid(0)
    for i in range(N, 30):
        Image.fromarray(image(0, 1, 12)).save(folder / f"{i}.png")
    for i in range(2, N):
        (tmp_path / "mini_imagenet" / wnid(1) / f"{i}.png").unlink()
    source = read(tmp_path, 12)
    train, test = (np.bincount(whole(split)[1]) for split in (source.train, source.test))
    few = source.classes.index(wnid(1))
    assert (train[0], test[0]) == (25, 5)
    assert (train[few], test[few]) == (1, 1)


def test_a_missing_pickle_is_named(tmp_path: Path) -> None:
    place = cache_pickles(tmp_path / "mini-imagenet")
    (place / "mini-imagenet-cache-val.pkl").unlink()
    with pytest.raises(UsageError, match=r"cache-train.pkl, .*cache-test.pkl but not mini-imagenet-cache-val.pkl"):
        mini_imagenet.find(tmp_path, 0)
    csv_and_images(tmp_path / "other")  # another form is whole: no reason to complain
    found = mini_imagenet.find(tmp_path, 0)
    assert found is not None
    assert found.form == "CSV files and images"


def test_a_missing_csv_is_named(tmp_path: Path) -> None:
    place = csv_and_images(tmp_path / "mini-imagenet")
    (place / "test.csv").unlink()
    with pytest.raises(UsageError, match=r"has train.csv, val.csv but not test.csv"):
        mini_imagenet.find(tmp_path, 0)


def test_too_few_classes_are_refused(tmp_path: Path) -> None:
    place = class_folders(tmp_path / "mini-imagenet", parts=False)
    (place / wnid(3)).rename(tmp_path / "elsewhere")
    assert "has 99 classes and MiniImageNet has 100" in refused(tmp_path)


def test_html_and_half_a_file_in_place_of_a_pickle(tmp_path: Path) -> None:
    path = cache_pickles(tmp_path) / "mini-imagenet-cache-val.pkl"
    content = path.read_bytes()
    path.write_bytes(b"<!DOCTYPE html><html>Google Drive: quota exceeded</html>")
    with pytest.raises(BadPickle, match=r"cache-val\.pkl: this is an HTML page, not a pickle"):
        read(tmp_path)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(BadPickle, match=r"cache-val\.pkl: not a whole pickle"):
        read(tmp_path)


PIXELS = py2_array(np.zeros((4, 84, 84, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (py2_pickle(py2_dict(data=PIXELS)), "a dict with data where one with image_data and class_dict"),
        (py2_pickle(py2_list([1])), "a list where one with image_data"),
        (pickled(py2_list([1]), {}), "its image_data is no uint8 array of (n, 84, 84, 3)"),
        (pickled(py2_array(np.zeros((4, 84, 84), dtype=np.uint8)), {}), "its image_data is no uint8 array"),
        (pickled(py2_array(np.zeros((4, 84, 80, 3), dtype=np.uint8)), {}), "its image_data is no uint8 array"),
        (pickled(PIXELS, {"n1": py2_list([0, 4])}), "class 'n1' does not list rows of the 4 images"),
        (pickled(PIXELS, {"n1": py2_list([-1])}), "class 'n1' does not list rows of the 4 images"),
        (pickled(PIXELS, {"n1": py2_int(3)}), "class 'n1' does not list rows"),
        (pickled(PIXELS, {"n1": py2_list([py2_list([1]), py2_list([1, 2])])}), "class 'n1' does not list rows"),
        (pickled(PIXELS, {"n1": py2_list([py2_text("1")])}), "class 'n1' does not list rows"),
        (pickled(PIXELS, {"n1": py2_list([1, 1])}), "class 'n1' has an image twice"),
        (pickled(PIXELS, {"n1": py2_list([1, 2]), "n2": py2_list([2, 3])}), "class 'n2' has an image twice, or one of"),
        (py2_pickle(py2_dict(image_data=PIXELS, class_dict=py2_list([]))), "its class_dict is a list"),
        (pickled(PIXELS, {"n1": py2_list([0])}), "has 85 classes"),
    ],
)
def test_wrong_content_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    cache_pickles(tmp_path, side=2)
    (tmp_path / "mini-imagenet-cache-val.pkl").write_bytes(content)
    assert message in refused(tmp_path)


def test_a_class_with_one_image_and_parts_of_different_sizes_are_refused(tmp_path: Path) -> None:
    cache_pickles(tmp_path, side=2)
    path = tmp_path / "mini-imagenet-cache-val.pkl"
    whole_part = path.read_bytes()
    pixels = np.zeros((16, 2, 2, 3), dtype=np.uint8)
    path.write_bytes(pickled(py2_array(pixels), {wnid(c): py2_list([c - 64]) for c in PARTS["val"]}))
    assert "has one image; it needs at least two" in refused(tmp_path)
    path.write_bytes(whole_part)
    cache_pickles(tmp_path / "larger", side=4)
    (tmp_path / "larger" / path.name).replace(path)
    assert "images of 2 sizes in the pickles; --image-size makes them one" in refused(tmp_path)
    assert read(tmp_path, 3).train.shape == (3, 3, 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<html>404</html>", "train.csv: this is an HTML page, not a CSV file"),
        ("a,b\n", "train.csv: its first line is not 'filename,label'"),
        ("", "train.csv: its first line is not 'filename,label'"),
        ("filename,label\nalone\n", "train.csv: line 2 is no 'filename,label'"),
        ("filename,label\n" + "x" * 200_000, "train.csv: not a CSV file: field larger than"),
    ],
)
def test_a_damaged_csv_is_named(tmp_path: Path, content: str, message: str) -> None:
    csv_and_images(tmp_path)
    (tmp_path / "train.csv").write_text(content)
    assert message in refused(tmp_path)


def test_a_csv_that_is_no_text_or_names_what_is_not_there(tmp_path: Path) -> None:
    path = csv_and_images(tmp_path) / "train.csv"
    lines = path.read_text()
    path.write_text(f"{lines}../../etc/passwd,{wnid(0)}\n")
    assert "1 of 601 images are not in" in refused(tmp_path)
    path.write_text(f"{lines}{wnid(0)}{0:08}.png,{wnid(1)}\n")
    assert "name an image twice" in refused(tmp_path)
    path.write_bytes(b"filename,label\n\xff\xfe\n")
    assert "train.csv: not a CSV file" in refused(tmp_path)


def test_an_image_that_does_not_decode_is_skipped_and_named(tmp_path: Path) -> None:
    csv_and_images(tmp_path)
    path = tmp_path / "images" / f"{wnid(5)}{2:08}.png"
    path.write_bytes(b"")
    source = read(tmp_path, 12)
    assert len(whole(source.train)[1]) + len(whole(source.test)[1]) == 599
    assert source.finish() == (f"1 of 600 images do not decode and were skipped: {path} (the file is empty)",)
    path.unlink()
    path.symlink_to("/etc/hostname")
    assert "is a link that leads out of" in refused(tmp_path)
