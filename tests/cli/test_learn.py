"""The commands around a kept model, as real processes where that matters: killed, stopped, started again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import forked
from helpers import linux_only
from onepass.cli.main import main
from onepass.live.claim import claimed
from onepass.live.folder import Files
from onepass.live.model import Model
from onepass.live.state import load_model, save_model

SMALL = ["--method", "patch-lda", "--filters", "5", "--first", "40", "--image-size", "8"]


def photos(root: Path, n: int, first: int = 0) -> Path:
    data = load_digits()
    for number in range(first, n):
        folder = root / f"digit-{data.target[number]}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((data.images[number] * 15).astype(np.uint8)).save(folder / f"{number}.png")
    return root


def told(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    assert main([str(word) for word in words]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_folder_is_learned_once_moved_files_are_relabelled_and_bad_ones_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, model = photos(tmp_path / "photos", 100), tmp_path / "m.onepass"
    (root / "digit-1" / "broken.png").write_text("no image")
    found = told(capsys, "learn", root, "--model", model, *SMALL, "--json")
    assert (found["learned"], found["quarantined"], found["classes"]) == (100, 1, 10)
    assert list(found["quarantine"]) == ["digit-1/broken.png"]
    again = told(capsys, "learn", root, "--model", model, "--json")
    assert (again["found"], again["learned"], again["samples"]) == (0, 0, 100)
    moved = next((root / "digit-0").iterdir())
    moved.rename(root / "digit-1" / "moved.png")
    (root / "digit-2" / "copy.png").write_bytes((root / "digit-1" / "moved.png").read_bytes())
    next((root / "digit-3").iterdir()).rename(root / "digit-3" / "renamed.png")
    photos(root, 110, 100)
    found = told(capsys, "learn", root, "--model", model, "--json")
    assert (found["relabelled"], found["learned"], found["known"], found["quarantined"]) == (1, 10, 1, 1)
    assert "the same image is learned as digit-1/moved.png" in found["quarantine"]["digit-2/copy.png"]
    expected = Counter(f"digit-{c}" for c in load_digits().target[:110])
    expected["digit-0"] -= 1
    expected["digit-1"] += 1
    shown = told(capsys, "inspect", model, "--json")
    assert {row["name"]: row["samples"] for row in shown["classes"]} == expected
    assert shown["accuracy"] is not None


@pytest.mark.system
def test_what_is_learned_predicts_is_forgotten_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, model = photos(tmp_path / "photos", 300), tmp_path / "m.onepass"
    told(capsys, "learn", root, "--model", model, *SMALL, "--json")
    new = photos(tmp_path / "new", 330, 300)
    assert main(["predict", str(model), str(new), "--json", "--top", "2"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    right = [row["classes"][0]["class"] == Path(row["path"]).parent.name for row in rows]
    assert len(rows) == 30
    assert np.mean(right) > 0.6
    assert all(len(row["classes"]) == 2 for row in rows)
    assert main(["predict", str(model), str(new), "--csv"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "path,class_1,probability_1"
    small = tmp_path / "p.onepass"
    assert told(capsys, "export", model, small, "--json")["form"] == "prediction alone"
    assert main(["predict", str(small), str(new), "--json", "--top", "2"]) == 0
    alike = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for a, b in zip(rows, alike, strict=True):
        assert a["classes"][0]["class"] == b["classes"][0]["class"]
        assert a["classes"][0]["probability"] == pytest.approx(b["classes"][0]["probability"], abs=1e-5)
    last = next(root.rglob("299.png"))
    found = told(capsys, "forget", model, last, "--json")
    assert (found["forgotten"], found["exact"], found["influenced"]) == (1, 1, 0)
    assert sorted(path.name for path in tmp_path.glob("m.onepass*")) == ["m.onepass"], "no older copy has it"
    assert load_model(model).learned == 299
    (new / "digit-1" / "bad.png").write_text("x")
    assert main(["predict", str(model), str(new / "digit-1" / "bad.png")]) == 2
    assert "it is no image" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["learn", "nowhere", "--model", "m"], "Expected a folder with a folder of images"),
        (["export", "m.onepass", "m.txt"], "Expected a path that ends in"),
        (["predict", "nothing.onepass", "x.png"], "no checkpoint at nothing.onepass"),
        (["forget", "m.onepass"], "Expected paths or --ids"),
    ],
)
def test_misuse_is_one_sentence(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if "m.onepass" in words:
        main(["learn", str(photos(tmp_path / "photos", 30)), "--model", "m.onepass", *SMALL])
        capsys.readouterr()
    assert main(words) in (1, 2)
    assert says in capsys.readouterr().err


def start(root: Path, model: Path, *more: str) -> forked.Command:
    return forked.Command(["learn", str(root), "--model", str(model), *SMALL, *more])


@pytest.mark.system
def test_killed_at_random_moments_every_file_is_learned_exactly_once(tmp_path: Path) -> None:
    """SIGKILL while it reads, learns and saves. ONEPASS_KILLS says how often; then it is left to finish."""
    kills, rng = int(os.environ.get("ONEPASS_KILLS", "12")), random.Random(0)
    root, model = photos(tmp_path / "photos", 600), tmp_path / "m.onepass"
    counts, interrupted = [0], 0
    for _ in range(kills):
        process = start(root, model, "--save-seconds", "0")
        seen = model.stat().st_mtime_ns if model.exists() else 0
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:  # until it has saved something of its own
            if model.exists() and model.stat().st_mtime_ns != seen:
                break
            time.sleep(0.002)
        time.sleep(rng.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        code = process.wait()
        assert code in (0, -signal.SIGKILL), "it failed by itself"
        interrupted += code != 0
        if not model.exists():  # killed before it had saved anything
            assert counts == [0]
            continue
        learned = load_model(model)
        assert learned.learned == learned.journal.known >= counts[-1], "never less than before, never one twice"
        counts.append(learned.learned)
        if learned.learned == 600:
            model.unlink()
            counts = [0]
    assert start(root, model).wait() == 0
    whole = load_model(model)
    assert interrupted
    assert whole.learned == whole.journal.known == 600
    assert whole.class_counts() == Counter(f"digit-{c}" for c in load_digits().target[:600])
    assert float(whole.learner.counts.sum()) == 600  # type: ignore[operator]
    assert not [path.name for path in tmp_path.iterdir() if "tmp" in path.name]


@pytest.mark.system
def test_a_watched_folder_is_learned_as_it_fills_and_sigterm_saves(tmp_path: Path) -> None:
    root, model = photos(tmp_path / "photos", 60), tmp_path / "m.onepass"
    process = start(root, model, "--watch")
    deadline = time.monotonic() + 120
    while not model.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    second = start(root, model)
    assert second.wait(timeout=120) == 2
    assert "another process" in second.err
    photos(root, 90, 60)
    while load_model(model).learned < 90 and time.monotonic() < deadline:
        time.sleep(0.1)
    photos(root, 95, 90)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    assert 90 <= load_model(model).learned <= 95


def test_what_was_forgotten_is_not_learned_again_and_leaves_no_digest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, model = photos(tmp_path / "photos", 60), tmp_path / "m.onepass"
    told(capsys, "learn", root, "--model", model, *SMALL, "--json")
    gone = next((root / "digit-0").iterdir())
    digest = Files(load_model(model).cursor.tree).digests[str(gone.relative_to(root))]
    told(capsys, "forget", model, gone, "--json")
    assert digest not in model.read_bytes()
    assert told(capsys, "learn", root, "--model", model, "--json")["samples"] == 59


def test_a_model_that_is_being_learned_into_is_not_changed_by_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, model = photos(tmp_path / "photos", 20), tmp_path / "m.onepass"
    told(capsys, "learn", root, "--model", model, *SMALL, "--json")
    before = model.read_bytes()
    with claimed(model):
        assert main(["forget", str(model), str(root)]) == 2
        assert main(["learn", str(root), "--model", str(model)]) == 2
        assert capsys.readouterr().err.count("learned into by another") == 2
    assert model.read_bytes() == before


def test_an_image_in_two_class_folders_is_listed_whenever_they_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both in the first scan, side by side."""
    root, model = photos(tmp_path / "photos", 20), tmp_path / "m.onepass"
    one = next((root / "digit-0").iterdir())
    (root / "digit-1" / "twin.png").write_bytes(one.read_bytes())
    found = told(capsys, "learn", root, "--model", model, *SMALL, "--json")
    assert (found["learned"], found["quarantined"]) == (20, 1)
    [(name, reason)] = found["quarantine"].items()
    assert "the same image is learned as" in reason
    assert {name, reason.rsplit(" as ")[1]} == {"digit-1/twin.png", str(one.relative_to(root))}


@linux_only
def test_a_class_that_cannot_be_read_stops_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, model = photos(tmp_path / "photos", 20), tmp_path / "m.onepass"
    outside = tmp_path / "outside.png"
    next((root / "digit-1").iterdir()).rename(outside)
    (root / "digit-1" / "link.png").symlink_to(outside)
    os.mkfifo(root / "digit-2" / "pipe.png")
    found = told(capsys, "learn", root, "--model", model, *SMALL, "--json")
    assert "leads out of" in found["quarantine"]["digit-1"]
    assert found["learned"] == 18
    (root / "digit-1" / "link.png").unlink()
    found = told(capsys, "learn", root, "--model", model, "--json")
    assert (found["learned"], found["quarantine"]) == (1, {})


@pytest.mark.system
@linux_only
def test_watching_outlives_what_goes_wrong_meanwhile(tmp_path: Path) -> None:
    """A link to a folder appears, the disk is full, both are mended; then it is stopped."""
    root, model = photos(tmp_path / "photos", 10), tmp_path / "deep" / "m.onepass"
    command = [sys.executable, "-m", "onepass", "learn", str(root), "--model", str(model), "--watch", *SMALL]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        wait_for(lambda: model.exists() and load_model(model).learned == 10)
        (root / "elsewhere").symlink_to(tmp_path)
        assert "is a link to a folder" in process.stderr.readline()
        (root / "elsewhere").unlink()
        photos(root, 20, 10)
        wait_for(lambda: load_model(model).learned == 20)
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM


def wait_for(true: Any) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


CURSORS: list[dict[str, Any]] = [
    {"files": 3},
    {"files": {"paths": torch.zeros(3).byte(), "stamps": torch.zeros(2, 2), "digests": torch.zeros(2, 16).byte()}},
    {"files": {"paths": torch.tensor([97, 0]).byte(), "stamps": torch.zeros(1, 3), "digests": torch.zeros(1, 16)}},
    {"quarantine": 5},
    {"quarantine": [[1]]},
    {"quarantine": [["x", "z", 0, "r"]]},
    {"features": 5},
    {"features": [5]},
]


@pytest.mark.parametrize("cursor", CURSORS, ids=str)
def test_a_strange_cursor_is_refused_by_every_command(
    cursor: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Model.create((3, 8, 8), method="patch-lda", settings={"filters": 5, "first": 10})
    model.learn(torch.zeros(1, 3, 8, 8).byte(), ["a"])
    model.cursor.tree = cursor
    save_model(model, tmp_path / "m.onepass")
    for words in (
        ["inspect"],
        ["predict", str(tmp_path)],
        ["forget", "--ids", "1"],
        ["export", str(tmp_path / "p.onepass")],
    ):
        command, *rest = words
        assert main([command, str(tmp_path / "m.onepass"), *rest]) == 1
        assert "holds no whole model" in capsys.readouterr().err
