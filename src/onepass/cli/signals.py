"""Ctrl-C, and what schedulers and closed terminals send: all of them stop a command in the same way."""

from __future__ import annotations

import _thread
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

IMPORTING = "<frozen importlib"  # the file of Python's frames that import
LATER = 0.05  # seconds
LONGEST = 10.0  # seconds that an import may delay a signal
NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
received = signal.SIGINT  # the last one: what the command's exit code tells
stopping = False  # whether one came that ends the command; an import or a destructor may have swallowed what was raised


class Stopped(KeyboardInterrupt):
    """A class of its own: after a bare KeyboardInterrupt in what C runs Python ends the process by SIGINT, whatever the
    command made of it."""


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _again(number: int, handler: object) -> None:
    """The same signal a little later: what is raised in an import may be lost, or end the process there."""

    def send() -> None:
        time.sleep(LATER)
        if signal.getsignal(number) is handler:
            os.kill(os.getpid(), number)

    _thread.start_new_thread(send, ())  # takes no lock, of which the interrupted code may hold one


@contextmanager
def handled(act: Callable[[], None]) -> Iterator[None]:
    """Inside, each of these signals calls `act`; one that is ignored (nohup) stays ignored. `act` is called at once if
    one came before that should have ended the command."""
    if threading.current_thread() is not threading.main_thread():  # only there can they be handled
        yield
        return

    outside = set(_stack(sys._getframe(2)))  # which may be an import itself
    since: list[float] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        global received
        received = signal.Signals(number)
        inside = itertools.takewhile(lambda one: one not in outside, _stack(frame))
        if any(one.f_code.co_filename.startswith(IMPORTING) for one in inside):
            since.append(time.monotonic())
            if since[-1] - since[0] < LONGEST:
                _again(number, on_signal)
                return
        act()

    numbers = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, on_signal)
    try:
        if stopping:
            act()
        yield
    finally:
        outside.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupt() -> None:
    global stopping
    stopping = True
    raise Stopped


def from_now_on() -> None:
    """A command begins: what stopped the last one in this process is over."""
    global stopping
    stopping = False


def at_once() -> None:
    """The command has ended: what comes now ends the process, and needs no words."""
    if threading.current_thread() is threading.main_thread():
        for name in NAMES:
            if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is not signal.SIG_IGN:
                signal.signal(getattr(signal, name), signal.SIG_DFL)
