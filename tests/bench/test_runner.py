"""Runs: measured, stored, found again, continued."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import onepass
from data_helpers import some_classes
from helpers import linux_only, small_settings
from onepass.bench import store
from onepass.bench.evaluate import accuracy_by_task
from onepass.bench.result import Result
from onepass.bench.run import Run
from onepass.bench.run_config import RunConfig
from onepass.bench.runner import Progress, run
from onepass.errors import Diverged, RunError, UsageError
from onepass.executors import run_many
from onepass.executors.pool import Pool
from onepass.learner.batch import Batch
from onepass.methods.er import ER
from onepass.methods.er_fsl import ERFSL
from onepass.methods.identity import source_digest
from onepass.methods.registry import is_reference
from onepass.report.grouping import check_one_protocol

QUICK = {"memory": 30}
STEPS = 30


def quick(method: str, seed: int = 0, **settings: float) -> RunConfig:
    """A run in few, large steps."""
    chosen = {**QUICK, **settings} if method != "finetune" else settings
    return RunConfig(method, seed=seed, batch=50, settings=chosen)


def test_a_run_measures_every_task_after_every_task() -> None:
    result = run(quick("er"))
    assert [len(row) for row in result.accuracy_matrix] == [1, 2, 3, 4, 5]
    assert all(0 <= value <= 1 for row in result.accuracy_matrix for value in row)
    assert result.steps == STEPS
    assert result.final_accuracy == sum(result.accuracy_matrix[-1]) / 5


def test_accuracy_is_counted_on_each_tasks_own_test_images() -> None:
    state = Run(quick("finetune"))
    state.learner.mark_seen(range(10))
    found = accuracy_by_task(state.learner, state.data, state.tasks)
    for task, accuracy in zip(state.tasks, found, strict=True):
        labels = state.data.y_test[task.test]
        assert set(labels.tolist()) == set(task.info.classes)
        predicted = state.learner.predict(state.data.x_test[task.test])
        assert accuracy == sum(int(p == y) for p, y in zip(predicted, labels, strict=True)) / len(labels)


def test_same_config_same_bits_and_another_seed_other_bits() -> None:
    first, again, other = (run(quick("er-fsl", seed)) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint
    assert first.accuracy_matrix == again.accuracy_matrix
    assert first.fingerprint != other.fingerprint


def test_a_stored_run_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = quick("er")
    first = run(config, tmp_path)
    monkeypatch.setattr(Run, "advance", lambda *_: pytest.fail("trained again"))
    assert run(config, tmp_path) == first
    assert run_many([config], tmp_path) == [first]


def test_a_result_survives_json() -> None:
    result = run(quick("er-fsl", gamma=0.5))
    assert Result.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_the_store_tells_settings_apart_but_not_spellings(tmp_path: Path) -> None:
    same = RunConfig("er", settings={"memory": 1000}), RunConfig("er", net="small-cnn", settings={})
    assert store.folder(tmp_path, same[0]) == store.folder(tmp_path, same[1])
    other = RunConfig("er", settings={"memory": 999}), RunConfig("er", batch=11), RunConfig("er", seed=1)
    assert len({store.folder(tmp_path, config) for config in (same[0], *other)}) == 4


@pytest.mark.system
@pytest.mark.parametrize("damage", ["", "{", "[]", '{"config": {"method": "er"}}'])
def test_a_damaged_result_is_named_and_trained_again(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = quick("finetune")
    first = run(config, tmp_path)
    file = store.folder(tmp_path, config) / "result.json"
    file.write_text(damage)
    again = run(config, tmp_path)
    assert str(file) in capsys.readouterr().err
    assert (again.fingerprint, again.accuracy_matrix) == (first.fingerprint, first.accuracy_matrix)
    assert json.loads(file.read_text())["fingerprint"] == first.fingerprint


@pytest.mark.system
def test_a_result_of_another_config_is_not_believed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = quick("finetune", 1), quick("finetune", 2)
    store.save_result(store.folder(tmp_path, two), run(one))
    assert run(two, tmp_path).config == two
    assert "another config" in capsys.readouterr().err


def stop_at(step: int) -> Progress:
    def progress(done: int, total: int) -> None:
        if done == step:
            raise KeyboardInterrupt

    return progress


@pytest.mark.system
@pytest.mark.parametrize("step", [1, 6, 7, 20, STEPS])
def test_stopped_at_a_step_and_continued_ends_with_the_same_bits(step: int, tmp_path: Path) -> None:
    config = quick("er-fsl")
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path, progress=stop_at(step))
    steps: list[int] = []
    result = run(config, tmp_path, progress=lambda done, total: steps.append(done))
    assert steps[:1] == ([step + 1] if step < STEPS else [])
    assert result.fingerprint == run(config).fingerprint


def test_a_checkpoint_remembers_the_number_of_threads(tmp_path: Path) -> None:
    """Other threads, other sums, other bits: a continued run goes on as it began."""
    config, before = quick("er"), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path, progress=stop_at(2))
        torch.set_num_threads(1)
        Run(config).restore(store.folder(tmp_path, config) / "checkpoint.safetensors")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.system
def test_a_damaged_checkpoint_is_named_and_the_run_starts_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = quick("er")
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path, progress=stop_at(10))
    file = store.folder(tmp_path, config) / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    assert run(config, tmp_path).fingerprint == run(config).fingerprint
    assert f"{file} is damaged" in capsys.readouterr().err


def test_a_diverged_run_says_where_and_what_to_change_and_keeps_the_learner(tmp_path: Path) -> None:
    config = quick("er", lr=1e20)
    with pytest.raises(Diverged, match=r"er on digits, seed 0, task 0: at step \d+ the loss is .* with lr=1e\+20") as e:
        run(config, tmp_path)
    assert "--lr 1e+19" in str(e.value)
    file = store.folder(tmp_path, config) / "diverged.safetensors"
    assert str(file) in str(e.value)
    assert all(value.isfinite().all() for value in onepass.load(file).net.parameters())


@pytest.mark.system
def test_one_failed_run_does_not_stop_the_others(tmp_path: Path) -> None:
    bad, good = quick("er", lr=1e20), quick("finetune")
    with pytest.raises(RunError, match="1 of 2 runs failed"):
        run_many([bad, good], tmp_path, jobs=2)
    assert store.load_result(store.folder(tmp_path, good), good) is not None


class Broken(ER):
    def loss(self, batch: Batch, replay: Batch) -> torch.Tensor:
        raise ZeroDivisionError("a bug of one's own")


def test_a_bug_in_one_method_does_not_stop_the_others_here_either(tmp_path: Path) -> None:
    bad = RunConfig(f"{__name__}:Broken", batch=50, settings=QUICK)
    good = quick("finetune")
    with pytest.raises(RunError, match=r"1 of 2 runs failed:\n.*Broken seed 0:\nTraceback[^$]*a bug of one's own"):
        run_many([bad, good], tmp_path, jobs=1)
    assert store.load_result(store.folder(tmp_path, good), good) is not None


def own_data(path: Path, n: int, seed: int) -> None:
    pixels = numpy.random.default_rng(seed).integers(0, 256, (n, 8, 8, 3), dtype=numpy.uint8)
    numpy.savez(path, x=pixels, y=numpy.arange(n) % 4)


def test_runs_on_data_that_have_changed_are_trained_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "mine.npz", tmp_path / "out"
    config = RunConfig("er", stream=str(file), net="small-cnn", tasks=2, settings=QUICK)
    place = tmp_path / "data"
    own_data(file, 80, seed=0)
    first = run(config, out, data_dir=place)
    assert run(config, out, data_dir=place) == first
    own_data(file, 120, seed=1)
    second = run(config, out, data_dir=place)
    assert second.data["learned"] > first.data["learned"]
    assert "is of other data than are there now; it does not count" in capsys.readouterr().err
    own_data(file, 80, seed=0)
    [third] = run_many([config], out, jobs=1, data_dir=place)
    assert third.fingerprint == first.fingerprint
    file.unlink()
    assert run(config, out, data_dir=place) == third  # what it was measured on may be gone


OWN_METHOD = """
from onepass.methods.er import ER

class Mine(ER):
    def loss(self, batch, replay):
        return {factor} * super().loss(batch, replay)
"""


@pytest.mark.system
def test_a_method_of_ones_own_that_has_changed_is_trained_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "changing_method.py"

    def made(factor: int, progress: Progress = lambda done, total: None, comment: str = "") -> Result:
        file.write_text(OWN_METHOD.format(factor=factor) + comment)
        sys.modules.pop("changing_method", None)
        importlib.invalidate_caches()
        config = RunConfig("changing_method:Mine", batch=50, settings={"memory": 30})
        return run(config, tmp_path / "out", progress=progress)

    first = made(1)
    assert made(1) == first
    assert made(1, comment="# another one") == first, "a comment is no other method"
    seen = first.protocol["code"]
    assert seen == source_digest(file.read_text())
    assert not capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        made(2222, stop_at(3))
    assert "was made by another changing_method than is there now; it does not count" in capsys.readouterr().err
    assert made(1) == first  # nothing was stored in between
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    with pytest.raises(KeyboardInterrupt):
        made(1, stop_at(3))

    def edit(done: int, total: int) -> None:
        file.write_text("raise SystemExit")  # what is trained is what was imported

    edited = made(22, edit)
    assert edited.fingerprint != first.fingerprint
    assert edited.protocol["code"] == source_digest(OWN_METHOD.format(factor=22))
    assert "is of another changing_method than is there now; this run starts again" in capsys.readouterr().err


def test_a_checkpoint_of_other_data_is_not_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "mine.npz", tmp_path / "out"
    config = RunConfig("er", stream=str(file), net="small-cnn", tasks=2, settings=QUICK)
    own_data(file, 80, seed=0)
    with pytest.raises(KeyboardInterrupt):
        run(config, out, data_dir=tmp_path / "data", progress=stop_at(3))
    own_data(file, 80, seed=1)
    result = run(config, out, data_dir=tmp_path / "data")
    assert (
        "checkpoint.safetensors is of other data than are there now; this run starts again" in capsys.readouterr().err
    )
    assert result.fingerprint == run(config, data_dir=tmp_path / "data").fingerprint


def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path) -> None:
    config = quick("finetune")
    place = store.folder(tmp_path, config)
    place.mkdir(parents=True)
    (place / ".checkpoint.safetensors.abc").write_text("half")
    run(config, tmp_path)
    assert sorted(path.name for path in place.iterdir()) == ["evaluations.jsonl", "result.json"]


@pytest.mark.system
def test_predictions_before_learning_are_by_what_predicts() -> None:
    plain, averaged = (
        run(RunConfig("er", batch=50, prequential=True, settings={**QUICK, "average": decay})) for decay in (None, 0.9)
    )
    assert averaged.accuracy_matrix_last == plain.accuracy_matrix, "trained alike"
    assert averaged.prequential != plain.prequential, "but asked the average"


def test_lists_of_no_runs_and_numbers_of_jobs_below_zero(tmp_path: Path) -> None:
    assert run_many([], tmp_path) == []
    with pytest.raises(UsageError, match="jobs=-1"):
        run_many([quick("er")], tmp_path, jobs=-1)
    assert run_many([quick("finetune")], str(tmp_path), jobs=1)[0].steps == STEPS


@pytest.mark.system
def test_a_worker_that_starts_while_all_are_stopped_is_stopped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Pool._start

    def slowly(self: Pool) -> subprocess.Popen[str]:
        while not self.stopping:
            time.sleep(0.01)
        return start(self)

    monkeypatch.setattr(Pool, "_start", slowly)
    configs = [RunConfig("er", seed=seed, settings={"memory": 100}) for seed in (0, 1)]
    with pytest.raises(KeyboardInterrupt):
        run_many(configs, tmp_path, jobs=2, stop=lambda: True)
    assert not list(tmp_path.rglob("result.json"))


@pytest.mark.system
def test_side_by_side_and_one_after_the_other_agree_for_the_same_threads(tmp_path: Path) -> None:
    configs = [quick("er", seed) for seed in (0, 1)]
    beside = run_many(configs, tmp_path, jobs=2)
    torch.set_num_threads(beside[0].host["threads"])
    assert [result.fingerprint for result in beside] == [run(config).fingerprint for config in configs]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"method": "er-fls"}, "unknown method 'er-fls'; did you mean 'er-fsl'?"),
        ({"stream": "digit"}, "unknown stream 'digit'; did you mean 'digits'?"),
        ({"net": "resnet-18"}, "unknown net 'resnet-18'; did you mean 'resnet18'?"),
        ({"batch": 0}, "batch=0: must be at least 1"),
        ({"seed": -1}, "seed=-1: must be at least 0"),
        ({"settings": {"memory": 0}}, "memory=0: must be at least 1; finetune is the method without a memory"),
        ({"settings": {"memry": 5}}, "unknown setting 'memry'; did you mean 'memory'?"),
        ({"settings": {"lr": float("nan")}}, "lr=nan: must be a finite number"),
        ({"settings": onepass.LearnerConfig()}, "settings of LearnerConfig: er needs its own Config"),
    ],
)
def test_an_impossible_config_is_refused_when_it_is_made(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        RunConfig(**{"method": "er", **change})
    assert complaint in str(caught.value)


def two_runs(out: Path, batch: int = 20) -> list[str]:
    """A command whose two runs go side by side and save themselves often."""
    options = f"--runs 2 --jobs 2 --memory 30 --batch {batch} --checkpoint-seconds 0.1 --out {out}"
    return [sys.executable, "-m", "onepass.cli.main", "run", "er", *options.split()]


@linux_only
@pytest.mark.system
def test_a_killed_worker_is_named_and_its_run_continues(tmp_path: Path) -> None:
    command = two_runs(tmp_path)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while not (found := list(tmp_path.rglob("checkpoint.safetensors"))):
        assert process.poll() is None
        time.sleep(0.01)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    if not children:  # started by a thread: listed under that thread
        tasks = Path(f"/proc/{process.pid}/task").iterdir()
        children = [pid for task in tasks for pid in (task / "children").read_text().split()]
    os.kill(int(children[0]), signal.SIGKILL)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "its worker ended with code -9" in err
    assert found
    assert subprocess.run([*command, "--jobs", "1"], capture_output=True, timeout=600).returncode == 0


@linux_only
@pytest.mark.system
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    command = two_runs(tmp_path, batch=2)
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not list(tmp_path.rglob("checkpoint.safetensors")):
        assert process.poll() is None
        time.sleep(0.01)
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    workers = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    assert len(workers) == 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 600
    while any(Path(f"/proc/{pid}").exists() and "Z" not in state(pid) for pid in workers):
        assert time.monotonic() < deadline, "workers outlive their parent"
        time.sleep(0.05)
    assert len(list(tmp_path.rglob("result.json"))) < 2, "they ended before their work did"


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "Z"


def test_a_run_on_a_path_is_stored_inside_the_out_folder(tmp_path: Path) -> None:
    pixels = torch.randint(256, (60, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).numpy()
    numpy.savez(tmp_path / "mine.npz", x=pixels, y=numpy.arange(60) % 4)
    config = RunConfig("finetune", stream=str(tmp_path / "mine.npz"), net="small-cnn", tasks=2)
    result = run(config, tmp_path / "out", data_dir=tmp_path / "data")
    assert [len(row) for row in result.accuracy_matrix] == [1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "mine.npz", "out"]
    assert store.folder(tmp_path / "out", config).is_relative_to(tmp_path / "out")


@pytest.mark.system
def test_without_boundaries_er_fsl_takes_a_subspace_for_each_task_that_arrives() -> None:
    state = Run(RunConfig("er-fsl", batch=10, scenario="task-free", settings=QUICK))
    state.advance()
    learner = state.learner
    assert isinstance(learner, ERFSL)
    assert int(learner.begun) == 5
    assert learner.task is not None
    assert set(learner.task.classes) == set(state.tasks[-1].info.classes)
    told = Run(RunConfig("er-fsl", batch=10, settings=QUICK))
    told.advance()
    assert isinstance(told.learner, ERFSL)
    assert torch.equal(learner.spaces, told.learner.spaces)


@pytest.mark.system
@pytest.mark.parametrize("scenario", ["task-free", "iid", "iid++", "gradual-50", "i-blurry-50-10"])
def test_every_method_runs_in_every_scenario(scenario: str) -> None:
    for method in onepass.METHODS:
        result = run(RunConfig(method, fraction=0.05, scenario=scenario, settings=small_settings(method)))
        assert all(0 <= value <= 1 for row in result.accuracy_matrix for value in row), method


@pytest.mark.system
def test_every_method_learns_classes_again_in_other_domains() -> None:
    for method in onepass.METHODS:
        if is_reference(method):
            continue
        settings = small_settings(method)
        state = Run(RunConfig(method, stream="inverted-digits", batch=20, fraction=0.1, settings=settings))
        assert state.config.scenario == "domain-incremental"
        state.advance()
        assert [len(row) for row in state.record.accuracy_matrix] == [1, 2], method
        assert state.learner.task == state.tasks[1].info
        assert (state.learner.classes_before_task, state.learner.seen) == (set(range(10)), set(range(10))), method


def test_a_result_names_the_domains_of_each_task_and_tables_do_not_compare_them() -> None:
    results = [run(RunConfig("finetune", stream="inverted-digits", fraction=0.1, batch=50, seed=s)) for s in range(3)]
    found = [result.protocol["domains"] for result in results]
    assert {str(sorted(names)) for names in found} == {"[['black on white'], ['white on black']]"}
    assert len({str(names) for names in found}) == 2, "the seed decides their order"
    assert [result.protocol["class_order"] for result in results] == [list(range(10))] * 3
    iid = run(RunConfig("iid", stream="inverted-digits", fraction=0.1, batch=50))
    assert (iid.config.scenario, "domains" in iid.protocol) == ("iid", False)
    check_one_protocol([*results, iid])


def test_a_folder_of_domains_has_a_task_for_each_unless_told_otherwise(tmp_path: Path) -> None:
    for d, domain in enumerate(("art", "photo", "sketch")):
        some_classes(tmp_path / "photos" / domain, ("cat", "dog"), n=5 + d)
    asked: dict[str, Any] = {"stream": str(tmp_path / "photos"), "net": "small-cnn", "scenario": "domain-incremental"}
    configs = [RunConfig("finetune", **asked), RunConfig("finetune", **asked, tasks=2)]
    results = [run(config, data_dir=tmp_path / "data") for config in configs]
    assert [len(result.accuracy_matrix) for result in results] == [3, 2]
    assert results[0].config.tasks == 0
    assert results[0].config.key != results[1].config.key


def test_a_checkpoint_that_a_killed_process_left_beside_its_result_is_swept(tmp_path: Path) -> None:
    config = RunConfig("finetune", batch=200)
    first = run(config, tmp_path)
    [result] = tmp_path.rglob("result.json")
    left = result.parent / "checkpoint.safetensors"
    left.write_bytes(b"of the moment between storing and removing")
    assert run(config, tmp_path).fingerprint == first.fingerprint
    assert not left.exists()
