"""What a run tells others while it goes on. The store is the record; this is for watching."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from onepass.config import unknown
from onepass.errors import UsageError

LOGS = ("tensorboard",)
EVERY = 10  # steps between two losses


class Log:
    """TensorBoard: the loss every few steps, the accuracy on all tasks so far and on each at every evaluation."""

    def __init__(self, folder: Path, start: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=start)  # what a killed run wrote beyond its checkpoint

    def step(self, step: int, loss: Tensor) -> None:
        if step % EVERY == 0:
            self.writer.add_scalar("loss", loss.item(), step)

    def evaluation(self, line: dict[str, Any]) -> None:
        accuracy, kind = line["accuracy"], "after task" if "after_task" in line else "anytime"
        self.writer.add_scalar(f"accuracy, {kind}", sum(accuracy) / len(accuracy), line["step"])
        for task, value in enumerate(accuracy):
            self.writer.add_scalar(f"accuracy, {kind}/task {task + 1}", value, line["step"])
        self.writer.flush()


def check_log(name: str) -> None:
    if name and name not in LOGS:
        raise unknown("log", name, LOGS, "allowed")
    if name:
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError:
            raise UsageError("--log tensorboard needs another package: pip install 'onepass[tensorboard]'") from None


def logger(name: str, place: Path, start: int) -> Log | None:
    check_log(name)
    return Log(place / "tensorboard", start) if name else None
