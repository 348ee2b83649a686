"""What a run tells others while it goes on. The store is the record; this is for watching."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from onepass.config import unknown
from onepass.errors import RunError, UsageError

LOGS = ("tensorboard",)


class Log:
    """TensorBoard: the loss every few steps, the accuracy on all tasks so far and on each at every evaluation.

    It begins with all that the run has measured already, in the place of what an earlier process wrote: so a run that
    was killed and continued has each point once.
    """

    def __init__(self, folder: Path, losses: list[tuple[int, float]], lines: list[dict[str, Any]]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        try:
            shutil.rmtree(folder, ignore_errors=True)
            self.writer = SummaryWriter(str(folder))
        except OSError as error:
            raise RunError(f"cannot write {folder}: {error}") from error
        for step, value in losses:
            self.loss(step, value)
        for line in lines:
            self.evaluation(line)

    def loss(self, step: int, value: float) -> None:
        self.writer.add_scalar("loss", value, step)

    def evaluation(self, line: dict[str, Any]) -> None:
        kind = "after task" if "after_task" in line else "anytime"
        for key, name in (("accuracy", "accuracy"), ("accuracy_last", "accuracy by last weights")):
            if key in line:
                self.writer.add_scalar(f"{name}, {kind}", sum(line[key]) / len(line[key]), line["step"])
                for task, value in enumerate(line[key]):
                    self.writer.add_scalar(f"{name}, {kind}/task {task + 1}", value, line["step"])
        try:
            self.writer.flush()
        except OSError as error:
            raise RunError(f"cannot write {self.writer.log_dir}: {error}") from error

    def close(self) -> None:
        try:
            self.writer.close()
        except OSError as error:
            raise RunError(f"cannot write {self.writer.log_dir}: {error}") from error


def check_log(name: str) -> None:
    if name and name not in LOGS:
        raise unknown("log", name, LOGS, "allowed")
    if name:
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError:
            raise UsageError("--log tensorboard needs another package: pip install tensorboard") from None
