"""Commands in processes that start at once: forks of one that has imported torch, which takes longer than most runs.

They are processes like others, to be killed and sent signals to.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from onepass import files
from onepass.cli.main import main
from onepass.learner.checkpoint import save_tree

PATIENCE = 600.0
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "torch._dynamo",
        "onepass.cli.main",
        "onepass.executors",
        "onepass.live.program",
        "onepass.live.folder",
        "onepass.live.serving.app",
        "onepass.live.serving.run",
        "onepass.tuning.search",
    ]
)


def _onepass(words: list[str], cwd: str, out: str, err: str, env: dict[str, str]) -> None:
    os.chdir(cwd)
    os.environ.update(env)
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.exit(main(words))


def start(words: Sequence[str], cwd: Path) -> ForkServerProcess:
    """`onepass` with these words, started in this folder; it says nothing."""
    return _started(words, cwd, os.devnull, os.devnull, {})


def _started(words: Sequence[str], cwd: Path, out: str, err: str, env: Mapping[str, str]) -> ForkServerProcess:
    process = CONTEXT.Process(target=_onepass, args=(list(words), str(cwd), out, err, dict(env)), daemon=True)
    process.start()
    return process


def code(process: ForkServerProcess) -> int | None:
    """Its exit code, once it has ended; nothing if it never does."""
    process.join(PATIENCE)
    return process.exitcode


def saving(path: Path, ready: Path, kind: str) -> ForkServerProcess:
    """A process that saves for ever, once `ready` is there."""
    process = CONTEXT.Process(target=_save, args=(path, ready, kind), daemon=True)
    process.start()
    return process


def _save(path: Path, ready: Path, kind: str) -> None:
    if kind == "named":
        files._nameless = lambda folder: None  # as on a disk that knows no files without a name
    tree: dict[str, Any] = {"x": torch.zeros(1_000_000), "n": 0}
    ready.touch()
    while True:
        save_tree(path, tree)
        tree["n"] += 1


class Command:
    """`onepass` with these words, and what it says, under the names that `subprocess.Popen` has for them."""

    def __init__(self, words: Sequence[str], cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._out, self._err = (Path(self._folder.name, name) for name in ("out", "err"))
        self.process = _started(words, cwd or Path.cwd(), str(self._out), str(self._err), env or {})

    def line(self) -> str:
        """The first line it says; what there is if it ends before."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            over = self.poll() is not None
            said = self._out.read_text() if self._out.exists() else ""
            if over or "\n" in said:
                return said.partition("\n")[0]
            time.sleep(0.01)
        raise TimeoutError("it says nothing")

    @property
    def err(self) -> str:
        return self._err.read_text() if self._err.exists() else ""

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float = PATIENCE) -> int:
        self.process.join(timeout)
        if (found := self.process.exitcode) is None:
            raise TimeoutError("it does not end")
        return found

    def communicate(self) -> tuple[str, str]:
        self.wait()
        return self._out.read_text(), self.err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            assert self.process.pid is not None
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
