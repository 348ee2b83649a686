"""What a person sees while a model learns: images, speed, accuracy by class, memory. On stderr, on a terminal only."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from onepass.live.folder import Progress
from onepass.live.model import Model
from onepass.text import printable

ROWS = 20  # classes that are shown


class LiveView:
    def __init__(self, model: Model, path: Path) -> None:
        self.model, self.path = model, path
        self.console = Console(stderr=True)
        self.live = Live(console=self.console, auto_refresh=False, transient=True) if self.console.is_terminal else None
        self.begin, self.shown, self.first = time.monotonic(), 0.0, model.learned

    def __enter__(self) -> LiveView:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self, progress: Progress) -> None:
        """At most four times a second."""
        now = time.monotonic()
        if self.live is not None and now - self.shown > 0.25:
            self.live.update(table(self.model, progress, self.path, now - self.begin, self.first), refresh=True)
            self.shown = now


def table(model: Model, progress: Progress, path: Path, seconds: float, before: int) -> Table:
    held, room = model.memory
    speed = (model.learned - before) / max(seconds, 1e-9)
    accuracy = model.prequential.accuracy
    lines = [
        f"{model.learned} images of {len(model.labels)} classes, {speed:.0f} a second",
        f"{progress.read} of {progress.found} files, {progress.quarantined} not readable",
        "" if accuracy is None else f"{accuracy:.1%} right of {len(model.prequential.window)} before learning",
        f"memory {held} of {room}" if room else "",
    ]
    found = Table(title=escape(printable(str(path))), caption="\n".join(filter(None, lines)))
    for name in ("class", "images", "recent accuracy"):
        found.add_column(name, justify="left" if name == "class" else "right")
    tested = model.prequential.by_class()
    largest = sorted(range(len(model.counts)), key=lambda c: -model.counts[c])[:ROWS]
    for c in largest:
        right, total = tested.get(c, (0, 0))
        share = f"{right / total:.0%} of {total}" if total else "-"
        found.add_row(escape(printable(str(model.labels.names[c]))), str(model.counts[c]), share)
    return found
