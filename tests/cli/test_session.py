"""A command does nothing twice: it opens its data once, scans their files once, builds its run once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_helpers import some_classes
from onepass.bench import store
from onepass.bench.run import Run
from onepass.cli.main import main
from onepass.data import cache
from onepass.data.catalog import Datasets


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a command opens arrays, scans the files they come from, builds a run, and reads a stored result."""
    calls: Counter[str] = Counter()

    def count(owner: Any, name: str, what: str) -> None:
        whole: Callable[..., Any] = getattr(owner, name)

        def call(*words: Any, **named: Any) -> Any:
            done = whole(*words, **named)
            calls[what] += 1  # what is not there is not opened or read
            return done

        monkeypatch.setattr(owner, name, call)

    count(cache, "_map", "arrays opened")
    count(cache, "stamp", "scans")
    count(Run, "__init__", "runs built")
    count(store, "_read", "results read")
    return calls


def run(folder: Path, tmp_path: Path, *more: str) -> list[str]:
    words = ["run", "finetune", "--stream", str(folder), "--tasks", "2", "--net", "small-cnn", "--jobs", "1", *more]
    return [*words, "--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "runs"), "--json"]


def test_a_run_on_a_folder_opens_and_scans_it_once(counted: Counter[str], tmp_path: Path) -> None:
    folder = some_classes(tmp_path / "photos")
    assert main(run(folder, tmp_path)) == 0
    assert counted == {"arrays opened": 4, "scans": 1, "runs built": 1}, "the first time, when the arrays are made"
    counted.clear()
    assert main(run(folder, tmp_path, "--seed", "1")) == 0
    assert counted == {"arrays opened": 4, "scans": 1, "runs built": 1}
    counted.clear()
    assert main(run(folder, tmp_path, "--seed", "1")) == 0
    assert counted == {"arrays opened": 4, "scans": 1, "results read": 1}, "stored: only compared with what is there"


def test_several_runs_share_what_one_has_opened(counted: Counter[str], tmp_path: Path) -> None:
    folder = some_classes(tmp_path / "photos")
    assert main(run(folder, tmp_path, "--runs", "3")) == 0
    assert counted == {"arrays opened": 4, "scans": 1, "runs built": 3}


def test_a_worker_opens_what_its_command_has_compared_already(counted: Counter[str], tmp_path: Path) -> None:
    folder = str(some_classes(tmp_path / "photos"))
    Datasets(tmp_path).load(folder)
    counted.clear()
    Datasets(tmp_path, rescan=False).load(folder)
    assert counted == {"arrays opened": 4}
