"""Parquet files as hubs distribute CIFAR, built here with pyarrow; without pyarrow, what a person is told."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from onepass.data import Source, Split, parquet
from onepass.errors import UsageError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

Pixels = npt.NDArray[np.uint8]
X = np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
Y = [3, 0, 1, 2] * 6
NAMES = ["ant", "bee", "cow", "dog"]


def png(pixels: Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


ENCODED = [png(pixels) for pixels in X]


def write(
    path: Path,
    rows: slice,
    image: str = "img",
    label: str = "label",
    names: list[str] | None = NAMES,
    *,
    contents: list[Any] | None = None,
    labels: list[Any] | None = None,
    plain: bool = False,
) -> Path:
    contents = ENCODED[rows] if contents is None else contents
    if plain:
        column = pa.array(contents, pa.binary())
    else:
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        column = pa.array([{"bytes": content, "path": None} for content in contents], kind)
    table = pa.table({image: column, label: Y[rows] if labels is None else labels})
    if names:
        features = {image: {"_type": "Image"}, label: {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=5)
    return path


def hub(place: Path, **options: Any) -> Path:
    """Two shards to train on, one to test on."""
    write(place / "train-00000-of-00002.parquet", slice(0, 11), **options)
    write(place / "train-00001-of-00002.parquet", slice(11, 16), **options)
    write(place / "test-00000-of-00001.parquet", slice(16, 24), **options)
    return place


def read(folder: Path, label: str = "label", n_classes: int = 0) -> Source:
    found = parquet.find(folder, label, n_classes)
    assert found is not None
    return found.read()


def whole(split: Split) -> tuple[Pixels, list[int]]:
    blocks = list(split.blocks())
    return np.concatenate([x for x, _ in blocks]), np.concatenate([y for _, y in blocks]).tolist()


def refused(folder: Path, n_classes: int = 0) -> str:
    with pytest.raises(UsageError) as caught:
        whole(read(folder, n_classes=n_classes).train)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ({}, "label"),
        ({"image": "image", "label": "fine_label"}, "fine_label"),
        ({"plain": True}, "label"),
    ],
)
def test_shards_in_a_folder_inside_give_every_pixel_in_order(
    tmp_path: Path, options: dict[str, Any], label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "ROWS", 3)
    place = hub(tmp_path / "cifar10" / "plain_text", **options)
    source = read(tmp_path, label, 4)
    assert source.classes == tuple(NAMES)
    for split, rows in ((source.train, slice(0, 16)), (source.test, slice(16, 24))):
        x, y = whole(split)
        assert np.array_equal(x, X[rows].transpose(0, 3, 1, 2))
        assert y == Y[rows]
        assert (split.n, split.shape) == (len(y), (3, 32, 32))
    found = parquet.find(place, label)
    assert found is not None
    assert parquet.find(place.parent, label) is not None
    assert [path.name[:11] for path in found.files] == ["train-00000", "train-00001", "test-00000-"]


def test_without_names_classes_are_numbers(tmp_path: Path) -> None:
    hub(tmp_path, names=None)
    assert read(tmp_path).classes == ("0", "1", "2", "3")
    assert read(tmp_path, n_classes=5).classes == ("0", "1", "2", "3", "4")


def test_what_is_another_data_set_is_passed_over(tmp_path: Path) -> None:
    hub(tmp_path / "a", label="fine_label")
    hub(tmp_path / "b", names=["one", "two"])
    write(tmp_path / "c" / "train.parquet", slice(0, 4))  # and nothing to test on
    hub(tmp_path / "c", contents=[png(X[0, :28, :28])] * 8, labels=Y[:8])  # MNIST has ten classes too
    assert parquet.find(tmp_path, "label", 4, 32) is None
    hub(tmp_path / "d")
    found = parquet.find(tmp_path, "label", 4, 32)
    assert found is not None
    assert found.files[0].parent == tmp_path / "d"
    assert parquet.find(tmp_path / "nowhere", "label") is None


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert "pip install pyarrow" in refused(tmp_path)


def test_damaged_files_are_named_unless_there_are_others(tmp_path: Path) -> None:
    path = hub(tmp_path / "a") / "train-00000-of-00002.parquet"
    content = path.read_bytes()
    path.write_bytes(b"<html>401 Unauthorized</html>")
    assert f"{path}: no parquet file, or a damaged one: an HTML page" in refused(tmp_path)
    path.write_bytes(content[:-100])
    assert f"{path}: no parquet file, or a damaged one" in refused(tmp_path)
    path.write_bytes(b"")
    assert f"{path}: no parquet file, or a damaged one" in refused(tmp_path)
    hub(tmp_path / "b")
    assert read(tmp_path).train.n == 16


def test_damage_inside_is_named_or_harmless(tmp_path: Path) -> None:
    path = hub(tmp_path) / "train-00000-of-00002.parquet"
    content = path.read_bytes()
    for at in range(4, len(content), 1501):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        try:
            x, y = whole(read(tmp_path).train)
        except UsageError:
            continue
        assert x.shape[1:] == (3, 32, 32)
        assert len(x) == len(y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"contents": [b"no image"] * 16}, "its first image does not decode: it is no image"),
        ({"contents": [*ENCODED[:15], ENCODED[15][:99]]}, "an image in it does not decode"),
        ({"contents": [*ENCODED[:15], None]}, "its img holds something other than encoded images"),
        ({"labels": [4] * 16}, "labels from 4 to 4 for 4 classes"),
        ({"labels": [-1] * 16}, "labels from -1 to -1 for 4 classes"),
        ({"labels": [None] * 16}, "its label are not all integers"),
        ({"labels": ["ant"] * 16}, "its label are not all integers"),
        ({"contents": [], "labels": pa.array([], pa.int64())}, "no rows to train on"),
    ],
)
def test_wrong_content_is_named(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    write(tmp_path / "train.parquet", slice(0, 16), **options)
    write(tmp_path / "test.parquet", slice(16, 24))
    assert message in refused(tmp_path)


def test_a_shard_without_the_columns_is_named(tmp_path: Path) -> None:
    hub(tmp_path)
    write(tmp_path / "train-00001-of-00002.parquet", slice(11, 16), label="other")
    assert "train-00001-of-00002.parquet has the columns img, other and not label with img or image" in refused(
        tmp_path
    )
