"""Runs as tasks of a job array: by submitit's local executor everywhere, by a real Slurm where there is one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from onepass.bench import store
from onepass.bench.run_config import RunConfig
from onepass.bench.runner import CHECKPOINT, run
from onepass.data.catalog import Datasets
from onepass.errors import UsageError
from onepass.executors import executor, slurm
from onepass.executors.protocol import Work

REAL = shutil.which("sbatch") is not None and subprocess.run(["sinfo", "-h"], capture_output=True).stdout != b""
CLUSTERS = ["local", pytest.param("slurm", marks=pytest.mark.skipif(not REAL, reason="no Slurm answers here"))]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def config(seed: int = 0, fraction: float = 0.1, **settings: Any) -> RunConfig:
    return RunConfig("er", "digits", net="linear", seed=seed, fraction=fraction, settings={"memory": 50, **settings})


def work(out: Path, configs: list[RunConfig], stop: Callable[[], bool] = lambda: False) -> Work:
    options = {
        "device": "cpu",
        "data_dir": str(Datasets().place),
        "checkpoint_seconds": 1e6,
        "log": "",
        "tell_every": 0.0,
    }
    return Work(configs, range(len(configs)), out, Datasets(), options, 0, 1, lambda *news: None, stop)


@pytest.mark.system
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_tasks_store_what_a_run_here_stores_and_a_failure_stops_no_other(cluster: str, tmp_path: Path) -> None:
    asked = [config(0), config(1), config(2)]
    (store.folder(tmp_path, asked[1]) / CHECKPOINT).mkdir(parents=True)
    first, failed, last = slurm.execute(cluster, work(tmp_path, asked)).values()
    assert not isinstance(first, str)
    assert not isinstance(last, str)
    assert [first.fingerprint, last.fingerprint] == [run(asked[0]).fingerprint, run(asked[2]).fingerprint]
    assert isinstance(failed, str)
    assert "seed-1" in failed
    assert "is a folder, expected a checkpoint or nothing" in failed
    assert list((tmp_path / ".slurm").iterdir()), "logs of a failure stay"


def signalled(job: Any, cluster: str, place: Path) -> None:
    """As a minute before its time limit."""
    if cluster == "slurm":
        subprocess.run(["scancel", "--signal", "USR2", job.job_id], check=True)
        return
    lines = {path.parent.name: path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")}
    [task] = [pid for pid, line in lines.items() if b"submitit.core._submit" in line and str(place).encode() in line]
    os.kill(int(task), signal.SIGUSR2)


@pytest.mark.system
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_before_its_time_is_over_a_task_saves_is_requeued_and_ends_with_the_same_bits(
    cluster: str, tmp_path: Path
) -> None:
    asked = config(0, fraction=1.0, lr=0.01, updates=40)
    place = tmp_path / "tasks"
    place.mkdir()
    array = slurm.Array(cluster, work(tmp_path, [asked]), place)
    checkpoint = store.folder(tmp_path, asked) / CHECKPOINT
    waiting_for(lambda: array._read(0).get("done", 0) > 0, "the first steps")
    signalled(array.jobs[0], cluster, place)
    waiting_for(checkpoint.exists, "the checkpoint: nothing but the signal makes one")
    assert array.run() == {}
    result = store.load_result(checkpoint.parent, asked)
    assert result is not None
    assert result.fingerprint == run(asked).fingerprint


@pytest.mark.system
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_command_that_is_stopped_stops_its_tasks_which_save_their_state(cluster: str, tmp_path: Path) -> None:
    asked = config(0, fraction=1.0, lr=0.01, updates=40)
    stopped = threading.Event()
    begun = lambda index, done, total: stopped.set() if done else None  # noqa: E731
    plan = work(tmp_path, [asked], stopped.is_set)
    with pytest.raises(KeyboardInterrupt):
        slurm.execute(cluster, Work(**{**vars(plan), "report": begun}))
    assert (store.folder(tmp_path, asked) / CHECKPOINT).exists()
    assert not (store.folder(tmp_path, asked) / "result.json").exists()


@pytest.mark.system
@pytest.mark.skipif(not REAL, reason="no Slurm answers here")
def test_a_task_that_slurm_takes_its_node_from_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Slurm's own requeue sends SIGTERM, as preemption does."""
    asked = config(0, fraction=1.0, lr=0.01, updates=40)
    place = tmp_path / "tasks"
    place.mkdir()
    array = slurm.Array("slurm", work(tmp_path, [asked]), place)
    checkpoint = store.folder(tmp_path, asked) / CHECKPOINT
    waiting_for(lambda: array._read(0).get("done", 0) > 0, "the first steps")
    subprocess.run(["scontrol", "requeue", array.jobs[0].job_id], check=True)
    waiting_for(checkpoint.exists, "the checkpoint")
    assert array.run() == {}
    result = store.load_result(checkpoint.parent, asked)
    assert result is not None
    assert result.fingerprint == run(asked).fingerprint


def waiting_for(there: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not there():
        assert time.monotonic() < deadline, f"still waiting for {what}"
        time.sleep(0.05)


def test_without_slurm_the_command_says_what_it_expected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="expected sbatch on the PATH, found none"):
        executor("slurm", 0)
