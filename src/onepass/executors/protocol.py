"""What an executor is: it does runs somewhere, and each result appears in the store. A new one is a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.data.catalog import Datasets


class Report(Protocol):
    """Number of the run in the list, its steps done, its steps in all; and in words its task, loss and accuracy."""

    def __call__(self, index: int, done: int, total: int, news: str = "", /) -> None: ...


class News:
    """The last loss and evaluation of a run, from its callback, as a few words beside its bar."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def __call__(self, line: dict[str, Any]) -> None:
        self.seen.update(line)

    def __str__(self) -> str:
        loss, accuracies = self.seen.get("loss"), self.seen.get("accuracy", [])
        words = [f"task {self.seen.get('after_task', -1) + 2}"]
        words += [] if loss is None else [f"loss {loss:.2f}"]
        words += [f"accuracy {100 * sum(accuracies) / len(accuracies):.1f} %"] if accuracies else []
        return ", ".join(words)


@dataclass(frozen=True)
class Work:
    """The runs of a list that are not stored yet, and how they are to be done."""

    configs: Sequence[RunConfig]
    waiting: Sequence[int]  # the numbers of those to be done
    out: Path
    datasets: Datasets  # open here already
    options: dict[str, Any]  # of `runner.run`, as JSON: device, data_dir, checkpoint_seconds, log, tell_every, keep
    jobs: int  # runs at once at most; 0: as many as there is room for
    threads: int  # of each run; bits depend on it
    report: Report
    stop: Callable[[], bool]

    def name(self, index: int) -> str:
        return f"{self.configs[index].method} seed {self.configs[index].seed}"


class Executor(Protocol):
    """Does the runs, and gives each one's result or, as text, what went wrong with it: one failure stops no other run.

    When `stop` becomes true, every run in progress saves its state between two steps, and KeyboardInterrupt is raised.
    """

    def __call__(self, work: Work) -> dict[int, Result | str]: ...
