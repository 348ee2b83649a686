"""One run: a learner meets a stream once. The loop knows no method's name."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from onepass import store
from onepass.checkpoint import fingerprint, load_state, load_tree, save_tree
from onepass.data import Dataset
from onepass.data.catalog import find_stream, load
from onepass.errors import BadCheckpoint, Diverged, UsageError
from onepass.factory import build, save
from onepass.learner import CHUNK, Learner, Problem
from onepass.results import Result, RunConfig
from onepass.stream import TaskData, batches, make_tasks, n_batches

Progress = Callable[[int, int], None]


def host_facts(device: str) -> dict[str, Any]:
    """Bits are promised to be the same for the same versions, device and threads."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": device,
        "threads": torch.get_num_threads(),
    }


class Run:
    """A run in progress: what it is made of, where it stands, and how it is saved and continued."""

    def __init__(self, config: RunConfig, device: str = "cpu", data_dir: Path | str | None = None) -> None:
        _prepare(device)
        self.config = config
        self.device = device
        self.data: Dataset
        self.tasks: list[TaskData]
        data = load(config.stream, root=data_dir, image_size=config.image_size)
        self.data, self.tasks = make_tasks(data, config.stream_config, seed=config.seed)
        channels, height, width = data.x.shape[1:]
        views = find_stream(config.stream).views
        problem = Problem(len(data.classes), (channels, height, width), views, len(self.tasks))
        self.learner: Learner = build(config.method, problem, config.learner_config, net=config.net, seed=config.seed)
        self.learner.to(device)
        self.matrix: list[list[float]] = []
        self.batch = -1  # the batch of the current task that comes next; -1: the task has not begun
        self.seconds = 0.0

    @property
    def total(self) -> int:
        return sum(n_batches(task, self.config.batch) for task in self.tasks)

    def data_facts(self) -> dict[str, Any]:
        return {
            "learned": sum(len(task.train) for task in self.tasks),
            "measured": sum(len(task.test) for task in self.tasks),
            "shape": list(self.data.x.shape[1:]),
            "sha256": self.data.digest,
        }

    def save(self, path: Path) -> None:
        tree = {
            "config": self.config.to_json(),
            "threads": torch.get_num_threads(),
            "matrix": self.matrix,
            "batch": self.batch,
            "seconds": self.seconds,
            "learner": self.learner.state_dict(),
        }
        save_tree(path, tree)

    def restore(self, path: Path) -> None:
        tree = load_tree(path)
        if not isinstance(tree, dict) or tree.get("config") != self.config.to_json():
            raise BadCheckpoint(f"{path} belongs to another run")
        torch.set_num_threads(tree["threads"])  # sums over another number of threads would end in other bits
        load_state(self.learner, tree["learner"], path)
        self.matrix, self.batch, self.seconds = tree["matrix"], tree["batch"], tree["seconds"]

    def advance(self, after_step: Callable[[], None]) -> None:
        """Learn to the end of the stream from wherever the run stands."""
        told = self.config.scenario != "task-free"
        for task in self.tasks[len(self.matrix) :]:
            if self.batch < 0:
                if told:
                    self.learner.begin_task(task.info)
                self.batch = 0
            for batch in batches(self.data, task, self.config.batch, start=self.batch):
                begin = time.perf_counter()
                self.learner.observe(batch)
                self.seconds += time.perf_counter() - begin
                self.batch += 1
                after_step()
            if told:
                self.learner.end_task()
            self.matrix.append(accuracy_by_task(self.learner, self.data, self.tasks[: task.info.index + 1]))
            self.data.release()
            self.batch = -1


def accuracy_by_task(learner: Learner, data: Dataset, tasks: list[TaskData]) -> list[float]:
    with learner.predicting() as predict:
        hits = [
            torch.cat([predict(data.x_test[rows]).cpu() == data.y_test[rows] for rows in task.test.split(CHUNK)])
            for task in tasks
        ]
    return [hit.double().mean().item() for hit in hits]


def run(
    config: RunConfig,
    out: Path | str | None = None,
    *,
    data_dir: Path | str | None = None,
    device: str = "cpu",
    checkpoint_seconds: float = 30.0,
    progress: Progress = lambda done, total: None,
) -> Result:
    """Train and measure. With `out`, the result is stored there, found again, and a stopped run continues."""
    place = None if out is None else store.folder(Path(out), config)
    if place is not None and (stored := store.load_result(place, config)) is not None:
        return stored
    state = Run(config, device, data_dir)
    checkpoint = None if place is None else place / "checkpoint.safetensors"
    if checkpoint is not None and checkpoint.exists():
        try:
            state.restore(checkpoint)
        except BadCheckpoint as error:
            print(f"{error}; this run starts again from the beginning", file=sys.stderr)
            state = Run(config, device, data_dir)
    saved = time.monotonic()

    def after_step() -> None:
        nonlocal saved
        try:
            progress(state.learner.steps, state.total)
        except KeyboardInterrupt:  # asked to stop between two steps, where the state is whole
            if checkpoint is not None:
                state.save(checkpoint)
            raise
        if checkpoint is not None and time.monotonic() - saved >= checkpoint_seconds:
            state.save(checkpoint)
            saved = time.monotonic()

    try:
        state.advance(after_step)
    except Diverged as error:
        where = f"{config.method} on {config.stream}, seed {config.seed}, task {len(state.matrix)}"
        if place is None:
            raise Diverged(f"{where}: {error}") from None
        save(state.learner, place / "diverged.safetensors")
        raise Diverged(f"{where}: {error} in {place / 'diverged.safetensors'}") from None
    learner = state.learner
    bits = fingerprint(learner.state_dict())
    facts = (state.seconds, bits, state.data_facts(), host_facts(device))
    result = Result(config, state.matrix, learner.steps, *facts)
    if place is not None and checkpoint is not None:
        store.save_result(place, result)
        checkpoint.unlink(missing_ok=True)
    return result


def _prepare(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise UsageError(f"unknown device {device!r}: give cpu, cuda or cuda:N") from error
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(f"device {device!r}: torch finds no CUDA here; use --device cpu")
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
