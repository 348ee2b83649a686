"""The same list of runs on a Slurm cluster: one job array, a run a task, in folders that all nodes share.

submitit writes the batch script and requeues. A task answers in a small JSON file of its own; results go through the
store, as everywhere. Before Slurm takes a node away it signals: the run saves its state between two steps, and goes on
from there when Slurm starts the task again.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from onepass.bench import store
from onepass.bench.result import Result
from onepass.errors import RunError, UsageError, explain, extra
from onepass.executors.protocol import Executor, Work
from onepass.files import write_text

MINUTES = 240  # of a task before it is requeued; SBATCH_TIMELIMIT wins over it
REQUEUES = 1000  # after so many time limits a run is given up
SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")
REQUEUED = ("SIGUSR1", "SIGUSR2")  # the time limit is near: the task asks to be started again
POLL = 1.0  # seconds between two looks at the answers
LOOK = 10.0  # seconds between two looks at Slurm's queue
PATIENCE = 40.0  # seconds that tasks have to save their state when they are told to stop
ARRIVAL = 60.0  # seconds after which a network drive shows what another machine wrote


def executor() -> Executor:
    """Runs as tasks of a job array; partition, account and time limit as for any job (SBATCH_PARTITION, ...)."""
    if importlib.util.find_spec("submitit") is None:
        raise UsageError(f"on='slurm' needs submitit: {extra('slurm')}")
    if shutil.which("sbatch") is None:
        raise UsageError("on='slurm': expected sbatch on the PATH, found none. Type the command on a login node")
    return partial(execute, "slurm")


class Task:
    """One run on the node that Slurm chose."""

    def __call__(self, payload: str) -> None:
        asked = json.loads(payload)
        answer, told = Path(asked.pop("answer")), time.monotonic()
        received: list[int] = []

        def on_signal(number: int, frame: FrameType | None) -> None:
            received.append(number)

        numbers = [getattr(signal, name) for name in SIGNALS]
        before = {number: signal.signal(number, on_signal) for number in numbers}

        def progress(done: int, total: int) -> None:
            nonlocal told
            if received:
                raise KeyboardInterrupt  # the run saves its state
            if time.monotonic() - told >= POLL:
                told = time.monotonic()
                write_text(answer, json.dumps({"done": done, "total": total}))

        try:
            error = _train(asked, progress)
        except KeyboardInterrupt:
            number, again = received[0], [getattr(signal, name) for name in REQUEUED]
            handler = before[number]
            if number in again and callable(handler):
                handler(number, None)  # submitit's: it requeues the task and ends this process
            os._exit(128 + number)  # without an answer: Slurm starts a preempted task again by itself
        write_text(answer, json.dumps({"error": error}))

    def checkpoint(self, payload: str) -> Any:
        """What submitit starts after a requeue: the same; the run finds its checkpoint in the store."""
        return importlib.import_module("submitit").helpers.DelayedSubmission(self, payload)


def _train(asked: dict[str, Any], progress: Any) -> str:
    """One run; an empty answer, or what went wrong."""
    import torch

    from onepass.bench.run_config import RunConfig
    from onepass.bench.runner import run
    from onepass.data.catalog import Datasets

    values, out, threads = asked.pop("config"), Path(asked.pop("out")), asked.pop("threads")
    torch.set_num_threads(threads)  # bits depend on it
    try:
        datasets = Datasets(asked["data_dir"], rescan=False)
        run(RunConfig(**values), out, datasets=datasets, progress=progress, **asked)
    except Exception as error:  # whatever happens to one run, the others go on
        return explain(f"{values['method']} seed {values['seed']} on node {os.uname().nodename}", error)
    return ""


def execute(cluster: str, work: Work) -> dict[int, Result | str]:
    """`cluster` is slurm, or local: submitit's own, which starts the tasks as processes here."""
    try:
        place = work.out.absolute() / ".slurm"
        place.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(dir=place))  # readable by its owner alone: submitit keeps pickles there
    except OSError as error:
        raise RunError(f"cannot write to {work.out}: {error}") from error
    array = Array(cluster, work, place)
    failures = array.run()
    deadline = time.monotonic() + ARRIVAL
    outcomes: dict[int, Result | str] = {
        index: failures.get(index) or _arrived(work, index, deadline) for index in work.waiting
    }
    if not failures:
        shutil.rmtree(place, ignore_errors=True)
    return outcomes


def _arrived(work: Work, index: int, deadline: float) -> Result | str:
    place = store.folder(work.out, work.configs[index])
    while (result := store.load_result(place, work.configs[index], quiet=True)) is None:
        if time.monotonic() >= deadline:
            return f"{work.name(index)}: no result came to {place}; do all nodes share this folder?"
        time.sleep(0.2)
    return result


class Array:
    """The side of the command: it submits, reads the answers, and looks at the queue for tasks that ended without."""

    def __init__(self, cluster: str, work: Work, place: Path) -> None:
        submitit = importlib.import_module("submitit")
        self.work, self.place, self.cluster = work, place, cluster
        self.left = set(work.waiting)
        self.failures: dict[int, str] = {}
        self.looked = time.monotonic()
        runner = submitit.AutoExecutor(folder=place, cluster=cluster, slurm_max_num_timeout=REQUEUES)
        needs: dict[str, Any] = {"cpus_per_task": work.threads, "timeout_min": MINUTES, "name": "onepass"}
        if work.options["device"].startswith("cuda"):
            needs["gpus_per_node"] = 1
        if work.jobs:
            needs["slurm_array_parallelism"] = work.jobs
        runner.update_parameters(**needs, slurm_additional_parameters={"requeue": True})
        try:
            jobs = runner.map_array(Task(), [self._payload(index) for index in work.waiting])
        except Exception as error:
            raise RunError(f"cannot submit to Slurm: {error}") from error
        self.jobs = dict(zip(work.waiting, jobs, strict=True))

    def _payload(self, index: int) -> str:
        work = self.work
        places = {"out": str(work.out.absolute()), "data_dir": str(work.datasets.place.absolute())}
        asked = {"config": work.configs[index].to_json(), "threads": work.threads, "answer": str(self._answer(index))}
        return json.dumps({**work.options, **places, **asked})

    def _answer(self, index: int) -> Path:
        return self.place / f"answer-{index}.json"

    def run(self) -> dict[int, str]:
        while self.left and not self.work.stop():
            time.sleep(POLL / 2)
            self._listen()
        if self.left and self.work.stop():
            self._stop()
            raise KeyboardInterrupt
        return self.failures

    def _listen(self) -> None:
        for index in sorted(self.left):
            told = self._read(index)
            if "error" in told:
                self._end(index, told["error"])
            elif "done" in told:
                self.work.report(index, told["done"], told["total"])
        if self.left and time.monotonic() - self.looked >= LOOK:
            self.looked = time.monotonic()
            for index in self.left - self._queued():
                told = self._read(index)  # it may have answered just now
                lost = f"{self.work.name(index)}: its task ended without an answer; {self.place} has its log"
                self._end(index, told.get("error", f"{lost}; the same command continues it"))

    def _read(self, index: int) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            told = json.loads(self._answer(index).read_text(encoding="utf-8"))
            return told if isinstance(told, dict) else {}
        return {}

    def _end(self, index: int, error: str) -> None:
        self.left.discard(index)
        if error:
            self.failures[index] = error
        else:
            self.work.report(index, 1, 1)

    def _queued(self) -> set[int]:
        """The runs whose tasks wait or run; all of them while Slurm does not answer."""
        if self.cluster != "slurm":
            return {index for index in self.left if not self.jobs[index].done()}
        first = next(iter(self.jobs.values())).job_id.partition("_")[0]
        asked = ["squeue", "--noheader", "--array", "--jobs", first, "--format", "%i %F_%K"]
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
        if found.returncode and "Invalid job id" not in found.stderr:
            return set(self.left)
        names = found.stdout.split()
        if first in names:  # after a requeue Slurm calls an array of one by its number alone
            return set(self.left)
        return {index for index in self.left if self.jobs[index].job_id in names}

    def _stop(self) -> None:
        """Tasks in progress save their state between two steps; those that have not begun never do."""
        for index in self.left:
            self.jobs[index].cancel()
        deadline = time.monotonic() + PATIENCE
        while self.left & self._queued() and time.monotonic() < deadline:
            time.sleep(POLL)
