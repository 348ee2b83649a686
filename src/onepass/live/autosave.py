"""Save a model while it learns: every minute, on SIGTERM, and when the process ends."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from onepass.errors import RunError
from onepass.live.model import Model
from onepass.live.state import OLDER, remove_older, save_model
from onepass.text import warn

SECONDS = 60.0


class Autosave:
    """A thread that writes the file of a model whenever that has changed. What cannot be written is tried again.

    SIGTERM saves between two steps, and then does what it did before. Only the main thread can see to that; elsewhere
    the end of the process and the clock have to do.
    """

    def __init__(self, model: Model, path: Path | str, seconds: float = SECONDS, *, held: bool = False) -> None:
        """`held`: the file holds the model as it is now."""
        self.model, self.path, self.seconds = model, Path(path), seconds
        self.failure = ""  # why the last try failed
        self._saved = model.version if held else -1
        self._erasing = False  # whether older copies hold what was forgotten
        self._writing = threading.RLock()
        self._closing = threading.Event()
        self._before: Any = None
        atexit.register(self.close)
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is not None:
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
        self._thread = threading.Thread(target=self._run, name="onepass-autosave", daemon=True)
        self._thread.start()

    @property
    def saved(self) -> int:
        """The version of the model that the file holds; -1: none of this process."""
        return self._saved

    def erase(self) -> bool:
        """Write the file and remove its older copies: they may hold what was forgotten just now."""
        with self._writing:
            self._erasing = True
            return self.save()

    def save(self) -> bool:
        """Write what has changed. Whether it is written now."""
        with self._writing:
            if self.model.version == self._saved and not self._erasing:
                return True
            try:
                if self._erasing:
                    remove_older(self.path)  # first: killed in between, nobody would know what they hold
                self._saved = save_model(self.model, self.path, older=0 if self._erasing else OLDER)
                self._erasing = False
            except (RunError, OSError) as error:
                if str(error) != self.failure:
                    warn(f"{error}; it is tried again in {self.seconds:g} s")
                self.failure = str(error)
                return False
            self.failure = ""
            return True

    def _run(self) -> None:
        while not self._closing.wait(self.seconds):
            self.save()

    def close(self) -> None:
        """Save for the last time."""
        if self._closing.is_set():
            return
        self._closing.set()
        atexit.unregister(self.close)
        here = threading.current_thread() is threading.main_thread()
        if here and self._before is not None and signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, self._before)  # else somebody came after, who calls this, which passes it on
        self.save()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.model.busy_here:  # in mid-step: when it is over
            self.model.stopping = lambda: self._stop(number, frame)
        else:
            self._stop(number, frame)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.model.stopping = None
        before = self._before
        self.close()
        if callable(before):
            before(number, frame)
        elif before is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)  # of several, the one that ends the process
            os.kill(os.getpid(), number)
