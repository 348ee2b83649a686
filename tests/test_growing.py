"""What grows: the table says what was varied, from one end to the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import growing
import growth as measure


def test_the_table_has_both_ends_of_what_was_varied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"axis": axis, "size": size, "method": "er", "ms": ms, "peak": 10 * size}
        for axis in growing.AXES
        for size, ms in ((1000, 0.344), (100_000, 0.5), (10_000_000, 619.5))
    ]
    (tmp_path / "growth.json").write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr(growing, "ROOT", tmp_path)
    told = growing.growth("growth.json").splitlines()
    assert told[4] == "| ER | samples in the memory | 1,000 | 10,000,000 | 0.34 | 620 | 0 | 100 |"
    assert growing.growth("none.json") == "Not measured yet."


def test_a_full_memory_holds_its_classes_alike_and_a_point_takes_time() -> None:
    found = measure.milliseconds("er", measure.Point(memory=40, side=measure.GREY))
    assert 0 < found < 1000
