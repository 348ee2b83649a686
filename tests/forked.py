"""Commands in processes that start at once: forks of one that has imported torch, which takes longer than most runs.

They are processes like others, to be killed and sent signals to.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from onepass.cli.main import main

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch._dynamo", "onepass.cli.main", "onepass.executors", "onepass.tuning.search"])


def _onepass(words: list[str], cwd: str) -> None:
    os.chdir(cwd)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        sys.exit(main(words))


def start(words: list[str], cwd: Path) -> ForkServerProcess:
    """`onepass` with these words, started in this folder; it says nothing."""
    process = CONTEXT.Process(target=_onepass, args=(words, str(cwd)), daemon=True)
    process.start()
    return process


def code(process: ForkServerProcess) -> int | None:
    """Its exit code, once it has ended; nothing if it never does."""
    process.join(600)
    return process.exitcode
