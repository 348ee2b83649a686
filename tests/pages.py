"""The code on the pages, run as a reader would: a folder for each page, its blocks one after the other.

- A `python` block runs. If its first line is a comment that names a file (`# mine.py`), it is part of that file.
- A `console` block is commands of `onepass`, each after a `$`; every one must end well.
- Blocks of no language are not run: they need data, a network or a server. Their flags are tried in `test_pages.py`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import traceback
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from PIL import Image

from forked import CONTEXT
from onepass.cli.main import main

BLOCK = re.compile(r"^```([\w{}-]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\w+\.py)\n")


def blocks(path: Path, *languages: str) -> list[tuple[str, str]]:
    """The code of a page or a notebook, each with its language."""
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text())["cells"]
        return [("python", "".join(cell["source"])) for cell in cells if cell["cell_type"] == "code"]
    return [(kind, code) for kind, code in BLOCK.findall(path.read_text()) if kind in languages]


def start(page: Path, folder: Path) -> ForkServerProcess:
    """A page's blocks, in a process of its own; what went wrong stands in `folder/log`."""
    for name, shade in (("photos/cat/1.jpg", 40), ("photos/dog/1.jpg", 200), ("new.jpg", 190)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (shade, shade, 255 - shade)).save(folder / name)
    process = CONTEXT.Process(target=_run, args=(page, folder), daemon=True)
    process.start()
    return process


def _run(page: Path, folder: Path) -> None:
    os.chdir(folder)
    sys.path.insert(0, "")
    sys.stdout = sys.stderr = (folder / "log").open("w")
    if hasattr(os, "sched_setaffinity"):  # one core: commands then start no workers, which would import torch again
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    names: dict[str, Any] = {"__name__": "__main__"}
    found = blocks(page, "python", "console")
    files = [(named[1], code) for _, code in found if (named := FILE.match(code))]
    for file in dict.fromkeys(file for file, _ in files):
        (folder / file).write_text("\n".join(code for to, code in files if to == file))
    try:
        for kind, code in found:
            if kind == "console":
                _commands(code)
            elif not FILE.match(code):
                exec(compile(code, page.name, "exec"), names)
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)  # no autosave thread of a page keeps it


def _commands(code: str) -> None:
    for line in code.splitlines():
        prompt, command, *words = shlex.split(line, comments=True)
        assert (prompt, command) == ("$", "onepass"), line
        assert main(words) == 0, line
