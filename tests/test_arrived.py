"""The table of photos that arrived, against a run written by hand."""

from __future__ import annotations

import json
from pathlib import Path

from arrived import arrived


def test_accuracy_stands_below_the_number_of_classes_that_had_come(tmp_path: Path) -> None:
    run = {"each": 20, "tested": 10, "kills": 2, "accuracy": [1.0, 0.75], "samples": 40, "seconds": 90.0}
    (tmp_path / "photos.json").write_text(json.dumps(run))
    lines = arrived(tmp_path / "photos.json").splitlines()
    assert lines[0].startswith("CIFAR-10, 20 photos of each class, one class after the other; 2 SIGKILLs; 10 test ")
    assert lines[2:5] == ["| classes so far | 1 | 2 |", "|---|---:|---:|", "| accuracy among them % | 100.0 | 75.0 |"]
    assert lines[6] == "40 photos were written and 40 learned, each once."
