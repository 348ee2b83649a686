"""How far a run is, as a line now and then: for logs of schedulers, where no bar can be drawn."""

from __future__ import annotations

import time

from onepass.bench.metrics import mean
from onepass.bench.result import Record


class Minutes:
    def __init__(self, seconds: float) -> None:
        self.seconds, self.began = seconds, time.monotonic()
        self.told, self.first = self.began, -1

    def due(self, done: int) -> bool:
        """Whether a line is due; a continued run begins at some step, from which its speed is counted."""
        if self.first < 0:
            self.first = done - 1
        if time.monotonic() - self.told < self.seconds:
            return False
        self.told = time.monotonic()
        return True

    def line(self, name: str, record: Record, done: int, total: int, n_tasks: int) -> str:
        """Step, task, the last loss that was written down, the last measured accuracy, and the time that is left."""
        task = min(len(record.accuracy_matrix) + 1, n_tasks)
        words = [f"step {done} of {total}", f"task {task} of {n_tasks}"]
        words += [f"loss {record.losses[-1]:.3g}"] if record.losses else []
        evaluations = [*record.accuracy_matrix[-1:], *(line["accuracy"] for line in record.anytime[-1:])]
        if evaluations:
            latest = max(evaluations, key=len)  # of the most tasks; on the way a running task counts
            words.append(f"accuracy {100 * mean(latest):.1f} %")
        left = (time.monotonic() - self.began) / max(1, done - self.first) * (total - done)
        return f"{name}: {', '.join(words)}, about {_in_words(left)} left"


def _in_words(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
