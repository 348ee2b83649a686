"""What a run tells while it goes on: as CSV, to a function, to Weights & Biases, and as a line now and then."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from onepass.bench import store
from onepass.bench.minutes import Minutes
from onepass.bench.result import Record
from onepass.bench.run_config import RunConfig
from onepass.bench.runner import run

CONFIG = RunConfig("finetune", net="linear", batch=20, fraction=0.4, anytime=5)  # five tasks of six steps


def interrupted(step: int) -> Any:
    def progress(done: int, total: int) -> None:
        if done == step:
            raise KeyboardInterrupt

    return progress


def read(place: Path) -> list[dict[str, str]]:
    with (place / "log.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_csv_has_every_loss_and_evaluation_once_also_after_a_stop(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(CONFIG, tmp_path, log="csv", progress=interrupted(17))
    result = run(CONFIG, tmp_path, log="csv")
    place = store.folder(tmp_path, CONFIG)
    rows = read(place)
    losses = {int(row["step"]): float(row["value"]) for row in rows if row["name"] == "loss"}
    assert losses == pytest.approx({10 * (n + 1): loss for n, loss in enumerate(result.losses)}, rel=1e-5)
    lines = [json.loads(line) for line in (place / "evaluations.jsonl").read_text().splitlines()]
    means = [float(row["value"]) for row in rows if row["name"].startswith("accuracy") and not row["task"]]
    assert means == pytest.approx([sum(line["accuracy"]) / len(line["accuracy"]) for line in lines], rel=1e-5)
    by_task = [row for row in rows if row["name"] == "accuracy, after task" and row["task"]]
    assert [float(row["value"]) for row in by_task[-5:]] == pytest.approx(result.accuracy_matrix[-1], rel=1e-5)
    assert [int(row["step"]) for row in rows] == sorted(int(row["step"]) for row in rows)


def test_a_callback_hears_the_same_and_changes_nothing() -> None:
    heard: list[dict[str, Any]] = []
    result = run(CONFIG, callback=heard.append)
    assert [event["loss"] for event in heard if "loss" in event] == result.losses
    assert [event["accuracy"] for event in heard if "after_task" in event] == result.accuracy_matrix
    assert [event["accuracy"] for event in heard if event.keys() == {"step", "accuracy"}] == [
        look["accuracy"] for look in result.anytime
    ]
    assert result.fingerprint == run(CONFIG).fingerprint


def test_lines_say_step_task_loss_accuracy_and_what_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(CONFIG, tell_every=1e-9)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 30
    pattern = r"finetune seed 0: step 12 of 30, task 2 of 5, loss [\d.]+, accuracy [\d.]+ %, about 1 min left"
    assert re.fullmatch(pattern, lines[11])
    run(CONFIG, tell_every=3600)
    assert capsys.readouterr().err == ""


def test_the_time_that_is_left_counts_from_where_this_process_began(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("onepass.bench.minutes.time.monotonic", lambda: now)
    minutes = Minutes(60)
    assert not minutes.due(501)  # a continued run: its first step here
    now += 600
    assert minutes.due(600)  # 100 steps in 10 minutes
    assert not minutes.due(601)
    record = Record(accuracy_matrix=[[0.5], [0.25, 0.75]], losses=[1.25])
    line = minutes.line("er seed 1", record, 600, 1600, 5)
    assert line == "er seed 1: step 600 of 1600, task 3 of 5, loss 1.25, accuracy 50.0 %, about 1 h 40 min left"


@pytest.mark.system
def test_weights_and_biases_gets_every_loss_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the file that `wandb sync` would send. Where wandb is installed: it is no part of the extra for tests."""
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    result = run(CONFIG, tmp_path, log="wandb")
    [path] = store.folder(tmp_path, CONFIG).glob("wandb/offline-run-*/*.wandb")
    written = path.read_bytes()
    assert all(str(loss)[:10].encode() in written for loss in result.losses)
    assert b"accuracy, after task/task 5" in written
    assert b"seed" in written
