"""Tables in parquet: columns of numbers or a column of lists give what an .npz gives; bombs and gaps are refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from onepass.data import Dataset, parquet_table, vectors
from onepass.data.catalog import Datasets
from onepass.errors import UsageError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4)) * 10.0 ** RNG.integers(-6, 6, (30, 4))
WORDS = np.array(["cat", "dog", "cow"])[np.arange(30) % 3]
FLAT = pa.array(X.ravel())


def numbers(**more: Any) -> dict[str, Any]:
    return {**{name: X[:, column] for column, name in enumerate("abcd")}, "label": WORDS, **more}


def write(path: Path, columns: Any, metadata: dict[str, str] | None = None, **options: Any) -> Path:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    if metadata is not None:
        table = table.replace_schema_metadata(metadata)
    pq.write_table(table, path, **{"row_group_size": 7, **options})
    return path


def loaded(path: Path) -> Dataset:
    return Datasets(path.parent / "data").load(str(path))


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        loaded(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.fixture
def reference(tmp_path: Path) -> Dataset:
    np.savez(tmp_path / "reference.npz", x=X, y=WORDS)
    return loaded(tmp_path / "reference.npz")


LISTS = {
    "list": pa.ListArray.from_arrays(pa.array(range(0, 121, 4), pa.int32()), FLAT),
    "large_list": pa.LargeListArray.from_arrays(pa.array(range(0, 121, 4), pa.int64()), FLAT),
    "fixed_size_list": pa.FixedSizeListArray.from_arrays(FLAT, 4),
}


@pytest.mark.parametrize(
    "columns",
    [
        numbers(),
        {"label": WORDS, **{name: X[:, column] for column, name in enumerate("abcd")}},
        {**{name: X[:, column] for column, name in enumerate("abcd")}, "species": WORDS},
        numbers(label=pa.array(WORDS).dictionary_encode()),
        numbers(label=pa.array(WORDS, pa.large_string())),
        *({"embedding": column, "label": WORDS} for column in LISTS.values()),
        {"id": np.arange(30), "text": ["a"] * 30, "target": WORDS, "embedding": LISTS["list"]},
    ],
    ids=["columns", "label-first", "label-last", "dictionary", "large_string", *LISTS, "beside-others"],
)
@pytest.mark.parametrize("block", [1, 300, 10**6])
def test_a_table_gives_what_an_npz_gives(
    tmp_path: Path, columns: dict[str, Any], block: int, reference: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_table, "BLOCK_BYTES", block)
    monkeypatch.setattr(parquet_table, "_ROWS", 4 if block == 1 else 10**6)
    data = loaded(write(tmp_path / "a.parquet", columns))
    assert (data.x.dtype, tuple(data.x.shape)) == (torch.float32, (24, 4))
    assert data.classes == ("cat", "cow", "dog")
    assert data.digest == reference.digest


@pytest.mark.parametrize("kind", ["int8", "uint16", "int64", "float16", "float32"])
def test_numbers_of_every_kind_are_read(tmp_path: Path, kind: str) -> None:
    x = np.arange(30).astype(kind)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(x), 1)
    one = loaded(write(tmp_path / "a.parquet", {"a": x, "y": WORDS}))
    other = loaded(write(tmp_path / "b.parquet", {"a": lists, "y": WORDS}))
    assert sorted(torch.cat([one.x, one.x_test]).flatten().tolist()) == list(range(30))
    assert one.digest == other.digest


def test_what_is_not_used_is_noted(tmp_path: Path) -> None:
    columns = {"text": ["a"] * 30, "label": WORDS, "embedding": LISTS["list"], "__index_level_0__": np.arange(30)}
    notes: list[str] = []
    Datasets(tmp_path / "data", tell=notes.extend).load(str(write(tmp_path / "a.parquet", columns)))
    assert "not used: the columns text, __index_level_0__" in notes
    data = loaded(write(tmp_path / "b.parquet", numbers(__index_level_0__=np.arange(30))))
    assert data.x.shape[1] == 4, "pandas' row numbers are no feature"


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["ant", "bee", "cow"], ("ant", "bee", "cow")),
        (["zebra", "bee", "cow", "never seen"], ("zebra", "bee", "cow")),
        (["ant", "ant", "cow"], ("0", "1", "2")),
        (["ant", "x" * 1001, "cow"], ("0", "1", "2")),
        ("no list", ("0", "1", "2")),
    ],
)
def test_numbers_are_called_as_the_file_calls_them(tmp_path: Path, names: Any, classes: tuple[str, ...]) -> None:
    features = {"info": {"features": {"label": {"names": names}}}}
    columns = {"a": np.arange(30), "label": np.arange(30) % 3}
    data = loaded(write(tmp_path / "a.parquet", columns, {"huggingface": json.dumps(features)}))
    assert data.classes == classes
    assert all(int(x) % 3 == int(y) for x, y in zip(data.x[:, 0], data.y, strict=True))


def test_a_column_of_the_split_is_obeyed(tmp_path: Path) -> None:
    sides = np.array(["train", "Test", "train"])[np.arange(12) // 2 % 3]
    data = loaded(write(tmp_path / "a.parquet", {"a": np.arange(12), "split": sides, "y": np.arange(12) % 2}))
    assert data.x.flatten().tolist() == [0, 1, 4, 5, 6, 7, 10, 11]
    assert data.x_test.flatten().tolist() == [2, 3, 8, 9]


def nulled(values: Any, row: int) -> Any:
    return pa.array([None if place == row else value for place, value in enumerate(values)])


UNEVEN = pa.array([[1.0, 2.0, 3.0, 4.0]] * 20 + [[1.0, 2.0, 3.0]] + [[1.0, 2.0, 3.0, 4.0, 5.0]] + [[0.0] * 4] * 8)
GAP = pa.array([[1.0, 2.0, 3.0, None if row == 17 else 4.0] for row in range(30)])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": WORDS}, "expected 2 to 65,536 columns, got 1"),
        ({"label": WORDS, "class": WORDS}, "expected one column of the labels, got 'label' and 'class'"),
        ({"split": ["train"] * 30, "label": WORDS}, "expected columns of numbers beside the labels, got none"),
        ({"a": WORDS, "label": WORDS}, "column 'a' holds string; expected numbers"),
        ({"a": X[:, 0] > 0, "label": WORDS}, "column 'a' holds bool; expected numbers"),
        ({"a": [[["x"]]] * 30, "label": WORDS}, "column 'a' holds list"),
        ({"a": LISTS["list"], "b": LISTS["list"], "label": WORDS}, "expected one column of lists, got a and b"),
        ({"a": LISTS["list"], "b": X[:, 0]}, "column 'b' holds double; expected whole numbers or words"),
        ({"a": X[:, 0], "label": [{"b": 1}] * 30}, "column 'label' holds struct<b: int64>; expected whole numbers or"),
        ({"a": LISTS["list"], "b": LISTS["list"]}, "expected a column of labels (label, class, target, y, or"),
        ({"a": X[:, 0], "label": ["b"] * 30}, "has only one class, 'b'"),
        ({"a": X[:, 0], "label": [*["b"] * 29, "c"]}, "class 'c' has one row; it needs at least two"),
        ({"a": X[:, 0], "label": nulled(WORDS, 8)}, "row 8 (from 0) has no label; fill it in, or remove the row"),
        ({"a": X[:, 0], "label": [*WORDS[:8], " ", *WORDS[9:]]}, "row 8 (from 0) has no label"),
        ({"a": X[:, 0], "label": [*WORDS[:8], "x" * 1001, *WORDS[9:]]}, "row 8 (from 0) has a label of 1001 letters"),
        ({"a": X[:, 0], "label": [*WORDS[:8], "x" * 4001, *WORDS[9:]]}, "has a word of 4,001 bytes"),
        ({"a": nulled(X[:, 0], 17), "label": WORDS}, "row 17 (from 0), column 'a' is empty"),
        ({"a": [*X[:17, 0], np.nan, *X[18:, 0]], "label": WORDS}, "row 17 (from 0), column 'a' is nan"),
        ({"a": [*X[:17, 0], 1e39, *X[18:, 0]], "label": WORDS}, "is 1e+39, larger than 1e+15"),
        ({"a": GAP, "label": WORDS}, "row 17 (from 0), column 'a' is empty"),
        ({"a": nulled(X.tolist(), 17), "label": WORDS}, "lists of one length in column 'a', got lists of several"),
        ({"a": UNEVEN, "label": WORDS}, "lists of one length in column 'a', got lists of several"),
        ({"a": pa.array([[]] * 30, pa.list_(pa.float32())), "label": WORDS}, "row 0 (from 0), column 'a': expected a"),
        ({"a": X[:, 0], "split": ["val"] * 30, "y": WORDS}, "row 0 (from 0), column 'split': expected train or test"),
        ({"a": X[:, 0], "split": ["train"] * 30, "y": WORDS}, "no test rows of class 'cat'"),
        ({"a": X[:0, 0], "y": WORDS[:0]}, "expected 1 to 16,777,216 rows, got 0"),
    ],
)
def test_what_is_no_such_table_is_said(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    assert message in refused(write(tmp_path / "a.parquet", columns))


def test_lists_of_other_lengths_in_one_group_are_named_by_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"a": UNEVEN, "label": WORDS}, row_group_size=30)
    assert "row 20 (from 0), column 'a': expected a list of 4, got one of 3" in refused(path)
    path = write(tmp_path / "b.parquet", {"a": nulled(X.tolist(), 0), "label": WORDS}, row_group_size=30)
    assert "lists of one length in column 'a', got lists of several" in refused(path)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(X[:, 0])] * 2 + [pa.array(WORDS)], names=["a", "a", "label"])
    assert "has two columns of one name" in refused(write(tmp_path / "a.parquet", table))


def test_rows_columns_and_bytes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", numbers())
    monkeypatch.setattr(parquet_table, "FREE_BYTES", 0)
    monkeypatch.setattr(parquet_table, "MAX_RATIO", 0)
    assert "declares 30 rows" in refused(path)
    monkeypatch.undo()
    monkeypatch.setattr(parquet_table, "MAX_COLUMNS", 4)
    assert "expected 2 to 4 columns, got 5" in refused(path)
    monkeypatch.undo()
    monkeypatch.setattr(parquet_table, "MAX_ROWS", 29)
    assert "expected 1 to 29 rows, got 30" in refused(path)
    monkeypatch.undo()
    monkeypatch.setattr(vectors, "MAX_CLASSES", 2)
    assert "its labels have more than 2 different values" in refused(path)
    monkeypatch.undo()
    monkeypatch.setattr(parquet_table, "MAX_COLUMNS", 3)
    lists = write(tmp_path / "b.parquet", {"a": LISTS["list"], "label": WORDS})
    assert "column 'a' has lists of 4; at most 3 are read" in refused(lists)
    monkeypatch.undo()
    assert loaded(path).digest == loaded(lists).digest


@pytest.mark.parametrize("rows", [29, 31])
def test_a_table_that_changes_between_the_passes_is_refused(tmp_path: Path, rows: int) -> None:
    found = parquet_table.find(write(tmp_path / "a.parquet", {"a": np.arange(30), "label": WORDS}))
    assert found is not None
    source = found.read()
    write(tmp_path / "a.parquet", {"a": np.arange(rows), "label": ["b"] * rows})
    with pytest.raises(UsageError, match=r"a\.parquet changed while it was read; run again"):
        list(source.train.blocks())


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", numbers())
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match="pip install pyarrow"):
        loaded(path)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"<html>404</html>", b"PAR1" + b"\0" * 100 + b"PAR1"])
def test_other_files_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    assert "no parquet file, or a damaged one" in refused(tmp_path / "a.parquet")


def test_damage_inside_is_named_or_harmless(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"e": LISTS["list"], "label": WORDS})
    content = path.read_bytes()
    for at in range(4, len(content), 37):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        try:
            data = loaded(path)
        except UsageError:
            continue
        assert bool(data.x.isfinite().all())


def test_no_file_is_not_found(tmp_path: Path) -> None:
    assert parquet_table.find(tmp_path / "a.parquet") is None
    assert parquet_table.find(tmp_path) is None
