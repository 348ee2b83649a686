"""What a run tells TensorBoard, read back with TensorBoard's own reader, also after stops and kills."""

from __future__ import annotations

import contextlib
import functools
import json
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

import forked
from onepass.bench import store
from onepass.bench.result import Result
from onepass.bench.run import Run
from onepass.bench.run_config import RunConfig
from onepass.bench.runner import Progress, run
from onepass.cli.main import main
from onepass.errors import RunError, UsageError
from onepass.learner.batch import Batch

CONFIG = RunConfig("finetune", batch=20, fraction=0.4, anytime=5)  # five tasks of six steps

Curves = dict[str, list[tuple[int, Any]]]  # step and value, or what is nearly it


def curves(place: Path) -> Curves:
    reader = EventAccumulator(str(place / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def expected(place: Path) -> Curves:
    """Every evaluation of the store as the curves it belongs to: the mean over tasks, and each task."""
    found: Curves = {}
    for line in map(json.loads, (place / "evaluations.jsonl").read_text().splitlines()):
        kind = "after task" if "after_task" in line else "anytime"
        values = {f"accuracy, {kind}": sum(line["accuracy"]) / len(line["accuracy"])}
        values |= {f"accuracy, {kind}/task {number}": value for number, value in enumerate(line["accuracy"], 1)}
        for tag, value in values.items():
            found.setdefault(tag, []).append((line["step"], pytest.approx(value, rel=1e-6)))  # kept as float32
    return found


@functools.cache
def losses() -> list[tuple[int, float]]:
    """The loss of every tenth step."""
    found: list[float] = []
    state = Run(CONFIG)
    observe = state.learner.observe

    def observed(batch: Batch) -> Tensor:
        loss = observe(batch)
        found.append(loss.item())
        return loss

    state.learner.observe = observed  # type: ignore[method-assign]  # watched
    state.advance()
    return [(step, found[step - 1]) for step in (10, 20, 30)]


@functools.cache
def unlogged() -> Result:
    return run(CONFIG)


def stop(step: int, how: type[BaseException] = KeyboardInterrupt) -> Progress:
    def progress(done: int, total: int) -> None:
        if done == step:
            raise how

    return progress


def assert_told(out: Path, result: Result) -> None:
    place = store.folder(out, CONFIG)
    found = curves(place)
    assert found.pop("loss") == losses()
    assert found == expected(place)
    assert replace(result, seconds=0) == replace(unlogged(), seconds=0)


@pytest.mark.system
def test_the_curves_are_the_stores_evaluations_and_every_tenth_loss(tmp_path: Path) -> None:
    assert_told(tmp_path, run(CONFIG, tmp_path, log="tensorboard"))
    assert len(curves(store.folder(tmp_path, CONFIG))["accuracy, anytime/task 3"]) == 4  # at 15, 20, 25 and 30


@pytest.mark.parametrize("step", [4, 5, 6, 10, 30])
def test_a_stopped_and_continued_run_tells_what_one_go_tells(step: int, tmp_path: Path) -> None:
    """Between two evaluations, at a look, at a task's end, at a look and a loss, and at the last step."""
    with pytest.raises(KeyboardInterrupt):
        run(CONFIG, tmp_path, log="tensorboard", progress=stop(step))
    assert_told(tmp_path, run(CONFIG, tmp_path, log="tensorboard"))


def test_what_a_killed_run_told_beyond_its_checkpoint_is_not_told_twice(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(CONFIG, tmp_path, log="tensorboard", progress=stop(7))
    for step in (21, 13):
        with pytest.raises(SystemExit):  # no chance to save anything
            run(CONFIG, tmp_path, log="tensorboard", progress=stop(step, SystemExit))
    assert_told(tmp_path, run(CONFIG, tmp_path, log="tensorboard"))


def test_without_a_log_nothing_is_told(tmp_path: Path) -> None:
    run(CONFIG, tmp_path)
    assert sorted(path.name for path in store.folder(tmp_path, CONFIG).iterdir()) == [
        "evaluations.jsonl",
        "result.json",
    ]


@pytest.mark.parametrize("step", [8, 99])
def test_a_run_that_ended_or_was_stopped_leaves_no_thread_behind(step: int, tmp_path: Path) -> None:
    """A table is thousands of runs in one process."""
    before = threading.active_count()
    with contextlib.suppress(KeyboardInterrupt):
        run(CONFIG, tmp_path, log="tensorboard", progress=stop(step))
    assert threading.active_count() == before


# Misuse and misfortune.


@pytest.mark.parametrize("stored", [True, False])
def test_an_unknown_log_is_refused_with_the_nearest_name(stored: bool, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown log 'tensorbord'; did you mean 'tensorboard'"):
        run(CONFIG, tmp_path if stored else None, log="tensorbord")


def test_the_command_refuses_an_unknown_log_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "er", "--log", "mlflow", "--out", str(tmp_path / "out")]) == 2
    assert "unknown log 'mlflow' (allowed: csv, tensorboard, wandb)" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_tensorboard_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert main(["run", "er", "--log", "tensorboard"]) == 2
    assert "pip install tensorboard" in capsys.readouterr().err


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files of up to 2,000 bytes: the store's lines fit, TensorBoard's do not."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.usefixtures("small_files")
def test_a_log_that_cannot_be_written_is_named_like_any_other_file(tmp_path: Path) -> None:
    before = threading.enumerate()
    with pytest.raises(RunError, match="tensorboard"):
        run(CONFIG, tmp_path, log="tensorboard")
    for thread in set(threading.enumerate()) - set(before):
        thread.join(60)  # TensorBoard's: its last words, of the same error, must not fall into another test


# Real processes.


OPTIONS = "--batch 10 --fraction 0.4 --anytime 4 --log tensorboard --jobs 1 --checkpoint-seconds 0"


def command(out: Path) -> forked.Command:
    return forked.Command(["run", "finetune", *OPTIONS.split(), "--out", str(out)])


@pytest.mark.system
def test_killed_and_started_again_a_command_leaves_the_curves_of_its_store(tmp_path: Path) -> None:
    place = store.folder(tmp_path, RunConfig("finetune", batch=10, fraction=0.4, anytime=4))
    lines, process = place / "evaluations.jsonl", command(tmp_path)
    while not lines.exists() or lines.read_text().count("\n") < 4:
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (place / "checkpoint.safetensors").exists()
    assert not (place / "result.json").exists()
    again = command(tmp_path)
    _, err = again.communicate()
    assert again.returncode == 0, err
    found = curves(place)
    steps = [step for step, _ in found.pop("loss")]
    assert steps == sorted(set(steps))
    assert found == expected(place)
    assert len(list((place / "tensorboard").iterdir())) == 1


@pytest.mark.system
def test_python_dash_m_onepass_is_the_command(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "onepass", "run", "finetune", "--log", "tensorbord", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("onepass: unknown log 'tensorbord'; did you mean 'tensorboard'?")
