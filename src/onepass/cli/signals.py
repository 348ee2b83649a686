"""Ctrl-C, and what schedulers and closed terminals send: all of them stop a command in the same way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
received = signal.SIGINT  # the last one: what the command's exit code tells


@contextmanager
def handled(act: Callable[[], None]) -> Iterator[None]:
    """Inside, each of these signals calls `act`; one that is ignored (nohup) stays ignored."""
    if threading.current_thread() is not threading.main_thread():  # only there can they be handled
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        global received
        received = signal.Signals(number)
        act()

    numbers = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupt() -> None:
    raise KeyboardInterrupt
