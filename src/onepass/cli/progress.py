"""What a person sees while runs go on: bars on a terminal, a line per finished run elsewhere. All on stderr."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from onepass.cli.signals import handled
from onepass.text import printable


class Bar:
    """One bar for something that takes a while; nothing at all if it does not, or if nobody watches."""

    def __init__(self, what: str) -> None:
        console = Console(stderr=True)
        columns = (TextColumn(escape(printable(what))), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self.row: TaskID | None = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def report(self, done: int, total: int | None) -> None:
        if self.row is None:
            self.row = self.progress.add_task("", total=None)
            self.progress.start()
        self.progress.update(self.row, completed=done, total=total or None)


class Clock(ProgressColumn):
    """Time so far and, once a step is done, the time left at the pace so far."""

    def __init__(self) -> None:
        super().__init__()
        self.began = time.monotonic()

    def render(self, task: Task) -> Text:
        share, elapsed = task.fields.get("share"), time.monotonic() - self.began
        if share is None:  # a run's own bar
            return Text("")
        left = f", about {_clock(elapsed / share - elapsed)} left" if share else ""
        return Text(f"{_clock(elapsed)}{left}")


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


class Display:
    """Reports of many runs. While it is open, the first Ctrl-C (or SIGTERM, SIGHUP) asks the runs to stop
    between two steps."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Clock())
        news = TextColumn("{task.fields[news]}")
        self.progress = Progress(
            *columns, news, console=self.console, disable=not self.console.is_terminal, transient=True
        )
        self.all = self.progress.add_task("all runs", total=len(names), share=0.0, news="")
        self.begun: dict[int, int] = {}  # the step before each run's first here: it may have been continued
        self.shares: dict[int, float] = {}  # how much of what was left of each run is done
        self.skipped = 0  # runs that were stored already
        self.rows: dict[int, TaskID] = {}
        self.finished: set[int] = set()
        self.interrupted = False
        self.lock = threading.Lock()

    def __enter__(self) -> Display:
        self.progress.start()
        self.signals = handled(self._interrupt)
        self.signals.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.signals.__exit__(None, None, None)
        self.progress.stop()

    def _interrupt(self) -> None:
        if self.interrupted:  # for the second time: at once
            raise KeyboardInterrupt
        self.interrupted = True
        self.console.print("stopping: each run saves its state after this step (again: stop at once)", highlight=False)

    def stop(self) -> bool:
        return self.interrupted

    def report(self, index: int, done: int, total: int, news: str = "") -> None:
        """Run `index` has done so many of its steps; 0 of 0 if it was stored already. `news`: task, loss, accuracy."""
        with self.lock:
            if done < total:
                if index not in self.rows:
                    name = f"  {escape(printable(self.names[index]))}"
                    self.rows[index] = self.progress.add_task(name, total=total, share=None, news="")
                self.progress.update(self.rows[index], completed=done, total=total, news=escape(news))
                first = self.begun.setdefault(index, max(0, done - 1))
                self.shares[index] = (done - first) / (total - first)
            elif index not in self.finished:
                self.finished.add(index)
                self.skipped += not total
                if total:
                    self.shares[index] = 1.0
                if index in self.rows:
                    self.progress.remove_task(self.rows.pop(index))
                self.progress.update(self.all, completed=len(self.finished))
                if not self.console.is_terminal and total:  # what was stored already is no news
                    name = printable(self.names[index])
                    line = f"{name}: done ({len(self.finished)} of {len(self.names)})"
                    self.console.print(line, markup=False, highlight=False)
            share = sum(self.shares.values()) / max(1, len(self.names) - self.skipped)
            self.progress.update(self.all, share=share)
