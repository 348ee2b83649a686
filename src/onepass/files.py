"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from onepass.errors import RunError

UMASK = os.umask(0)
os.umask(UMASK)  # it can only be read by setting it


def atomic(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file, then put it in place at once: readers see the old file or the new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        temporary = Path(name)
        try:
            write(temporary)
            with temporary.open("r+b") as file:  # Windows syncs only what may be written
                os.fsync(file.fileno())
            temporary.chmod(0o666 & ~UMASK)  # mkstemp's are for their owner alone
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
    except OSError as error:
        raise RunError(f"cannot write {path}: {error}; what was there before is untouched") from error


def write_text(path: Path, text: str) -> None:
    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    atomic(path, write)
