"""Curves for TensorBoard."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from onepass.bench.logs import scalars
from onepass.errors import RunError


class TensorBoardLog:
    """The loss every few steps, the accuracy on all tasks so far and on each at every evaluation."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        try:
            shutil.rmtree(folder, ignore_errors=True)
            self.writer = SummaryWriter(str(folder))
        except OSError as error:
            raise RunError(f"cannot write {folder}: {error}") from error

    def loss(self, step: int, value: float) -> None:
        self.writer.add_scalar("loss", value, step)

    def evaluation(self, line: dict[str, Any]) -> None:
        for name, task, value in scalars(line):
            self.writer.add_scalar(f"{name}/task {task}" if task else name, value, line["step"])
        try:
            self.writer.flush()
        except OSError as error:
            raise RunError(f"cannot write {self.writer.log_dir}: {error}") from error

    def close(self) -> None:
        try:
            self.writer.close()
        except OSError as error:
            raise RunError(f"cannot write {self.writer.log_dir}: {error}") from error
