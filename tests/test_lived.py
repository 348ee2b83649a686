"""What keeping and serving costs, as it stands on the pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lived import live, serving, soak


def written(folder: Path, values: Any) -> Path:
    path = folder / "found.json"
    path.write_text(json.dumps(values))
    return path


def test_each_learner_has_a_column_and_each_ratio_a_line(tmp_path: Path) -> None:
    row = {
        "partial_fit_over_observe": 1.05,
        "prediction_over_forward": 1.111,
        "autosave_share": 0.002,
        "open_prediction_file_seconds": 0.0072,
        "images_a_second_learned": 285.4,
        "images_a_second_predicted_singly": 300.0,
    }
    more = {"vectors_a_second_learned": {"onepass": 33310.0, "sgd": 2771.0, "river": 98.0}, "torch": "2"}
    lines = live(written(tmp_path, {"er-ace, from 200 images on": row, **more})).splitlines()
    assert lines[0] == "| | ER-ACE, from 200 images on |"
    assert lines[2:8] == [
        "| `partial_fit` over `observe` | 1.05 |",
        "| one prediction over the bare forward pass | 1.11 |",
        "| autosave, share of learning | 0.20 % |",
        "| a file for prediction opens | 7 ms |",
        "| images learned a second | 285 |",
        "| predicted one by one | 300 |",
    ]
    assert "33,310 (SLDA)" in lines[9]


def test_turns_are_shown_by_their_median_and_ends(tmp_path: Path) -> None:
    turns = {"p95_learning_over_idle": [2.0, 1.5, 3.0], "learning_alone_over_asked": [1.0, 1.1, 1.2]}
    assert "| ER | 2.00 (1.50 to 3.00) | 1.10 (1.00 to 1.20) |" in serving(written(tmp_path, {"er": turns}))


def test_a_soak_says_what_was_lost(tmp_path: Path) -> None:
    found = {
        "minutes": 120,
        "requests begun": 72000,
        "server: killed": 40,
        "server: stopped": 20,
        "server: disk full": 18,
        "bad images refused": 3600,
        "slow clients told so": 500,
        "images sent": 36000,
        "images learned": 35999,
        "lost": 1,
        "KiB in memory, first third": 390625,
        "KiB in memory, last third": 400000,
    }
    text = soak(written(tmp_path, found))
    assert "| in 120 minutes | |" in text
    assert "| lost, learned twice | 1, 0 |" in text
    assert "| MB of the process, first and last third | 400, 410 |" in text
