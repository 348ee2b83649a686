"""What a run tells others while it goes on. The store is the record; these are for watching.

A log begins with all that the run has measured already, in the place of what an earlier process wrote: so a run that
was killed and continued has each point once.
"""

from __future__ import annotations

import csv
import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from onepass.config import unknown
from onepass.errors import RunError, UsageError

LOGS = {"csv": "", "tensorboard": "tensorboard", "wandb": "wandb"}  # and what each needs
Callback = Callable[[dict[str, Any]], None]


class Log(Protocol):
    def loss(self, step: int, value: float) -> None: ...
    def evaluation(self, line: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


def check_log(name: str) -> None:
    if name and name not in LOGS:
        raise unknown("log", name, LOGS, "allowed")
    if name and LOGS[name]:
        try:
            importlib.import_module(LOGS[name])
        except ImportError:
            raise UsageError(f"--log {name} needs another package: pip install {LOGS[name]}") from None


def open_log(name: str, place: Path, config: dict[str, Any], losses: list[tuple[int, float]], lines: list[Any]) -> Log:
    """The log of this name in a run's folder, with all that the run has measured already."""
    if name == "tensorboard":
        from onepass.bench.tensorboard import TensorBoardLog

        log: Log = TensorBoardLog(place / name)
    else:
        log = CsvLog(place / "log.csv") if name == "csv" else WandbLog(place, config)
    points: list[tuple[int, int, Any]] = [(step, 0, value) for step, value in losses]
    points += [(line["step"], 1, line) for line in lines]
    for step, kind, value in sorted(points, key=lambda point: point[:2]):
        log.evaluation(value) if kind else log.loss(step, value)
    return log


def scalars(line: dict[str, Any]) -> Iterator[tuple[str, int, float]]:
    """An evaluation as names, tasks (0: all so far) and values."""
    kind = "after task" if "after_task" in line else "anytime"
    for key, name in (("accuracy", "accuracy"), ("accuracy_last", "accuracy by last weights")):
        if key in line:
            yield f"{name}, {kind}", 0, sum(line[key]) / len(line[key])
            for task, value in enumerate(line[key], start=1):
                yield f"{name}, {kind}", task, value


class CsvLog:
    """step,name,task,value: a line for each loss and each accuracy, of all tasks so far (no task) and of each."""

    def __init__(self, path: Path) -> None:
        try:
            self.file = path.open("w", newline="", encoding="utf-8", buffering=1)  # whoever watches sees whole lines
        except OSError as error:
            raise RunError(f"cannot write {path}: {error}") from error
        self.writer = csv.writer(self.file, lineterminator="\n")
        self.writer.writerow(("step", "name", "task", "value"))

    def loss(self, step: int, value: float) -> None:
        self.writer.writerow((step, "loss", "", f"{value:.6g}"))

    def evaluation(self, line: dict[str, Any]) -> None:
        for name, task, value in scalars(line):
            self.writer.writerow((line["step"], name, task or "", f"{value:.6g}"))

    def close(self) -> None:
        self.file.close()


class CallbackLog:
    """Each loss and each evaluation as a dict: {"step", "loss"}, or as a line of evaluations.jsonl."""

    def __init__(self, callback: Callback) -> None:
        self.callback = callback

    def loss(self, step: int, value: float) -> None:
        self.callback({"step": step, "loss": value})

    def evaluation(self, line: dict[str, Any]) -> None:
        self.callback(dict(line))

    def close(self) -> None:
        pass


class WandbLog:
    """Weights & Biases. Offline unless WANDB_MODE says otherwise: nothing leaves the machine by itself."""

    def __init__(self, place: Path, config: dict[str, Any]) -> None:
        wandb = importlib.import_module("wandb")
        name = f"{config['method']} {config['stream']} seed {config['seed']}"
        mode = os.environ.get("WANDB_MODE", "offline")
        try:
            self.run = wandb.init(
                project="onepass", name=name, config=config, dir=str(place), mode=mode, reinit="create_new"
            )
        except Exception as error:
            raise RunError(f"--log wandb: {error}") from error

    def loss(self, step: int, value: float) -> None:
        self.run.log({"loss": value}, step=step)

    def evaluation(self, line: dict[str, Any]) -> None:
        values = {f"{name}/task {task}" if task else name: value for name, task, value in scalars(line)}
        self.run.log(values, step=line["step"])

    def close(self) -> None:
        self.run.finish(quiet=True)
