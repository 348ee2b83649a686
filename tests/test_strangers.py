"""Files from strangers: nothing in them runs, sizes are checked before memory is taken, one odd file stops no other."""

from __future__ import annotations

import json
import math
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import onepass
from helpers import Counting
from onepass.bench import store
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.cli.main import main
from onepass.config import ReplayConfig
from onepass.errors import BadCheckpoint, RunError, UsageError
from onepass.learner.checkpoint import load_tree, save_tree
from onepass.methods.registry import method_class

STORED = Path(__file__).resolve().parents[1] / "results" / "digits"
HARM = "import pathlib\npathlib.Path('harmed').touch()\nraise SystemExit(7)\n"


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module that says when it is imported; we stand in it, as a person with a download would."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper.py").write_text(HARM)
    return tmp_path / "harmed"


def foreign(out: Path, **settings: Any) -> Path:
    """A stored result that names a method of its own."""
    [file] = STORED.glob("digits-er-7*/seed-0/result.json")
    values = json.loads(file.read_text())
    values["config"]["method"] = values["method"] = "helper:Learner"
    values["config"]["settings"] |= {"twist": 0.5, **settings}
    place = out / "digits-helper.Learner-0123456789" / "seed-0"
    place.mkdir(parents=True)
    (place / "result.json").write_text(store.sign(values))
    return place / "result.json"


# Nothing that a file names is imported.


@pytest.mark.system
def test_a_report_on_somebodys_results_runs_nothing_and_shows_them(trap: Path, tmp_path: Path) -> None:
    foreign(tmp_path / "runs")
    shutil.copytree(STORED, tmp_path / "runs" / "more")
    program = [sys.executable, "-m", "onepass", "report", "runs", "-o", "report.html"]
    done = subprocess.run(program, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "16 runs in report.html\n")
    assert "helper:Learner" in (tmp_path / "report.html").read_text()
    assert not trap.exists()


def test_settings_of_a_method_that_is_not_imported_are_plain_data(trap: Path, tmp_path: Path) -> None:
    foreign(tmp_path / "runs")
    [result] = store.load_all(tmp_path / "runs")
    assert result.config.settings.twist == 0.5  # type: ignore[union-attr]
    assert result.config.to_json()["settings"]["memory"] == 100
    assert Result.from_json(result.to_json()) == result
    assert not trap.exists()


@pytest.mark.parametrize(
    "settings", [{"to_json": 1}, {"__class__": "x"}, {"a b": 1}, {"nested": [1]}, {f"s{i}": 0 for i in range(300)}]
)
def test_settings_that_are_not_plain_are_damage(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = foreign(tmp_path, **settings)
    assert store.load_all(tmp_path) == []
    assert f"{file} is damaged (" in capsys.readouterr().err


def test_a_preset_of_another_method_imports_nothing(trap: Path, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps({"method": "helper:Learner", "stream": "digits", "settings": {}}))
    assert main(["run", "er", "--preset", "p.json", "--out", str(tmp_path / "out")]) == 2
    assert not trap.exists()


def saved(path: Path, of: str = "er", **changes: Any) -> Path:
    """A learner's file, with changes to the top of its tree."""
    problem = onepass.Problem(n_classes=4, shape=(1, 8, 8), n_tasks=2)
    config = {"memory": 20} if issubclass(method_class(of).Config, ReplayConfig) else {}
    learner = onepass.build(of, problem, config, net="small-cnn")
    learner.observe(onepass.Batch(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 2])))
    onepass.save(learner, path)
    if changes:
        tree = load_tree(path)
        for name, value in changes.items():
            if isinstance(value, dict) and isinstance(tree.get(name), dict):
                tree[name] = {**tree[name], **value}
            else:
                tree[name] = value
        save_tree(path, tree)
    return path


def test_a_model_imports_only_what_is_allowed(trap: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = saved(tmp_path / "model", method="helper:Learner")
    with pytest.raises(UsageError, match=r"if you trust it, load\('.*model', allow=\('helper:Learner',\)\)"):
        onepass.load(file)
    assert not trap.exists()
    with pytest.raises(SystemExit):
        onepass.load(file, allow=("helper:Learner",))
    assert trap.exists(), "which is what allowing it means"


def test_a_method_of_ones_own_is_loaded_where_it_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_for_strangers.py").write_text(
        "from onepass.methods.er import ER\n\n\nclass Mine(ER):\n    pass\n"
    )
    file = saved(tmp_path / "model", method="mine_for_strangers:Mine")
    assert type(onepass.load(file, allow=("mine_for_strangers:Mine",))).__name__ == "Mine"


# Sizes are checked before memory is taken.


@pytest.mark.parametrize(
    "changes",
    [
        {"problem": {"n_classes": 8_000_000}},
        {"problem": {"shape": [1, 10**6, 10**6]}},
        {"problem": {"shape": [10**9, 8, 8]}},
        {"config": {"memory": 10**12}},
        {"net": "resnet18"},
        {"net": 5},
        {"seed": "x"},
        {"problem": {"shape": 5}},
        {"problem": 5},
        {"learner": {"memory._extra_state": {"rows": 5}}},
        {"learner": {"memory._extra_state": 5}},
        {"learner": 5},
    ],
    ids=str,
)
def test_a_small_file_with_large_claims_is_refused_and_takes_no_memory(changes: dict[str, Any], tmp_path: Path) -> None:
    file = saved(tmp_path / "model", **changes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((BadCheckpoint, UsageError)):
        onepass.load(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000, "kilobytes"


@pytest.mark.parametrize("method", onepass.METHODS)
def test_no_method_takes_memory_before_sizes_are_compared(method: str, tmp_path: Path) -> None:
    """Not only as much as such a file might claim: none, so that no claim is too large."""
    file = saved(tmp_path / "model", method, problem={"n_classes": 1_000_000})
    with Counting() as count, pytest.raises(BadCheckpoint, match="does not fit"):
        onepass.load(file)
    assert count.largest < file.stat().st_size


@pytest.mark.parametrize(
    "tree", ['{"list": 5}', '{"tensor": [1]}', '{"tensor": 5}', '{"dict": [5]}', '{"a": 1, "b": 2}']
)
def test_a_tree_that_is_none_is_damage(tree: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onepass.learner import checkpoint

    monkeypatch.setattr(checkpoint, "flatten", lambda value, tensors: json.loads(tree))
    save_tree(tmp_path / "model", {})
    with pytest.raises(BadCheckpoint, match="is damaged"):
        onepass.load(tmp_path / "model")


# One odd file stops nothing else.


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


ODD: list[Callable[[dict[str, Any]], Any]] = [
    lambda v: v.update(seconds=None),
    lambda v: v.update(seconds=math.nan),
    lambda v: v.update(steps=True),
    lambda v: v.update(steps=10**400),
    lambda v: v.update(protocol={"deep": nested(400)}),
    lambda v: v.update(losses=[1e308 * 10]),
    lambda v: v.update(data=None),
    lambda v: v.update(data={"sha256": 5}),
    lambda v: v.update(anytime=True),
    lambda v: v.update(anytime=[{"step": 1}]),
    lambda v: v.update(anytime=[{"step": 1, "accuracy": [2]}]),
    lambda v: v.update(prequential=[[1, 0]]),
    lambda v: v.update(prequential=[[3, 2]]),
    lambda v: v.update(losses=["x"]),
    lambda v: v.update(host=[]),
    lambda v: v.update(protocol=5),
    lambda v: v.update(facts={}),
    lambda v: v.update(accuracy_matrix=[[True]]),
    lambda v: v.update(fingerprint=5),
    lambda v: v["config"].update(net=True),
    lambda v: v["config"].update(net=5),
    lambda v: v["config"].update(stream=5),
    lambda v: v["config"].update(method=5),
    lambda v: v["config"].update(seed=1.5),
    lambda v: v["config"].update(settings=[]),
    lambda v: v["config"].update(more=1),
    lambda v: v.pop("config"),
    lambda v: v.pop("final_accuracy"),
]


def odd(number: int, place: Path) -> Path:
    """A stored result in a store of its own, with one thing odd."""
    values = json.loads(next(STORED.glob("digits-er-7*/seed-2/result.json")).read_text())
    ODD[number](values)
    file = place / next(STORED.glob("digits-er-7*")).name / "seed-2" / "result.json"
    file.parent.mkdir(parents=True)
    file.write_text(store.sign(values))
    return file


@pytest.mark.parametrize("number", range(len(ODD)))
def test_an_odd_result_is_named_and_left_out(number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = odd(number, tmp_path)
    assert store.load_all(tmp_path) == []
    assert str(file) in capsys.readouterr().err


def test_odd_results_are_named_and_the_others_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(STORED, tmp_path / "runs" / "5")  # with odd ones before it and after it
    files = [odd(number, tmp_path / "runs" / str(number % 10) / str(number)) for number in range(len(ODD))]
    assert main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "report.html")]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("15 runs in")
    assert [str(file) in said.err for file in files] == [True] * len(ODD)


def test_a_result_of_this_format_without_its_hash_is_refused_and_one_of_an_older_one_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(STORED, tmp_path / "runs")
    file = next((tmp_path / "runs").glob("digits-er-7*/seed-2/result.json"))
    values = {name: value for name, value in json.loads(file.read_text()).items() if name != "sha256"}
    file.write_text(json.dumps(values))
    assert len(store.load_all(tmp_path)) == 14
    assert "it has no hash of itself" in capsys.readouterr().err
    del values["format"]
    file.write_text(json.dumps(values))
    assert len(store.load_all(tmp_path)) == 15


def test_a_checkpoint_of_another_version_is_named_and_the_run_starts_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = RunConfig("finetune", batch=50, fraction=0.2)
    place = store.folder(tmp_path, config)
    for odd in ({"config": config.to_json(), "matrix": []}, {"version": 2, "config": config.to_json()}, [1]):
        save_tree(place / "checkpoint.safetensors", odd)
        result = onepass.run(config, tmp_path)
        assert "this run starts again from the beginning" in capsys.readouterr().err
        assert len(result.accuracy_matrix) == 5
        (place / "result.json").unlink()
    (place / "checkpoint.safetensors").mkdir()
    with pytest.raises(RunError, match="is a folder, expected a checkpoint or nothing: remove it"):
        onepass.run(config, tmp_path)


def test_a_result_larger_than_any_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = foreign(tmp_path)
    with file.open("r+b") as opened:
        opened.truncate(store.LARGEST + 1)  # which takes no room on the disk
    assert store.load_all(tmp_path) == []
    assert "it is larger than the 64 MiB that a result may have" in capsys.readouterr().err
