"""The counts in a parquet footer, as pyarrow wrote them; damage is a ValueError, whatever it is."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pytest

from onepass.data import parquet_footer
from onepass.data.parquet_footer import list_lengths

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def write(path: Path, lengths: list[int], group: int = 7, **more: Any) -> Path:
    lists = pa.array([[float(row)] * length for row, length in enumerate(lengths)])
    table = pa.table({"text": [f"row {row}" for row in range(len(lengths))], "vector": lists, **more})
    pq.write_table(table.replace_schema_metadata({"odd": "x" * 1000}), path, row_group_size=group)
    return path


@pytest.mark.parametrize("n", [1, 6, 7, 8, 200])
def test_rows_and_values_are_those_that_were_written(tmp_path: Path, n: int) -> None:
    lengths = [1 + row % 5 for row in range(n)]
    path = write(tmp_path / "a.parquet", lengths)
    expected = [(len(lengths[i : i + 7]), sum(lengths[i : i + 7])) for i in range(0, n, 7)]
    assert list_lengths(path, "vector") == expected
    assert list_lengths(path, "text") == [(rows, rows) for rows, _ in expected]


def test_many_columns_and_odd_names_are_found(tmp_path: Path) -> None:
    columns: dict[str, Any] = {**{f"c{number}": [1.0] * 9 for number in range(300)}, "名前": [[1, 2]] * 9}
    path = write(tmp_path / "a.parquet", [4] * 9, 9, **columns)
    assert list_lengths(path, "名前") == [(9, 18)]
    assert list_lengths(path, "c299") == [(9, 9)]


def test_a_column_that_is_not_counted_is_damage(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [4] * 9)
    with pytest.raises(ValueError, match="does not count the rows and values"):
        list_lengths(path, "elsewhere")


@pytest.mark.parametrize(
    ("footer", "message"),
    [
        (b"", "footer has 0 bytes"),
        (b"\x19" * 50, "nested too deeply|breaks off|value of kind"),
        (b"\x1c" * 50, "nested too deeply"),
        (b"\x15" + b"\xff" * 40, "a number without end"),
        (b"\x18\xff\xff\xff\xff\x0f", "breaks off"),
        (b"\x19\xfc\xff\xff\xff\xff\x0f", "breaks off"),
        (b"\x1b\x02", "value of kind 11"),
        (b"\x1f", "value of kind 15"),
    ],
)
def test_hostile_footers_are_damage(tmp_path: Path, footer: bytes, message: str) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1")
    with pytest.raises(ValueError, match=message):
        list_lengths(path, "vector")


def test_the_footer_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", [4] * 9)
    monkeypatch.setattr(parquet_footer, "MAX_FOOTER", 100)
    with pytest.raises(ValueError, match="at most 100 are read"):
        list_lengths(path, "vector")
    for content in (b"", b"PAR1", b"\xff\xff\xff\xffPAR1"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"footer has|does not end"):
            list_lengths(path, "vector")


def test_any_damage_is_a_value_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [3] * 30)
    content, rng = path.read_bytes(), random.Random(0)
    (length,) = struct.unpack("<I", content[-8:-4])
    with path.open("r+b", buffering=0) as file:  # overwritten in place: a file system may wait where one is cut to 0
        for _ in range(2000):
            damaged = bytearray(content)
            for _ in range(rng.choice((1, 2, 10))):
                damaged[rng.randrange(len(content) - length - 8, len(content))] = rng.randrange(256)
            file.seek(0)
            file.write(damaged)
            try:
                counts = list_lengths(path, "vector")
            except ValueError:
                continue
            assert all(rows >= 0 <= values for rows, values in counts)
