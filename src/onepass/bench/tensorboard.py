"""Curves for TensorBoard."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onepass.bench.logs import scalars
from onepass.errors import RunError


class TensorBoardLog:
    """The loss every few steps, the accuracy on all tasks so far and on each at every evaluation."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder = folder
        with self._writing():
            shutil.rmtree(folder, ignore_errors=True)
            self.writer = SummaryWriter(str(folder))

    def loss(self, step: int, value: float) -> None:
        with self._writing():
            self.writer.add_scalar("loss", value, step)

    def evaluation(self, line: dict[str, Any]) -> None:
        with self._writing():
            for name, task, value in scalars(line):
                self.writer.add_scalar(f"{name}/task {task}" if task else name, value, line["step"])
            self.writer.flush()

    def close(self) -> None:
        with self._writing():
            self.writer.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A thread of the writer's meets the full disk; any later call may be the one that hears of it."""
        try:
            yield
        except OSError as error:
            raise RunError(f"cannot write {self.folder}: {error}") from error
