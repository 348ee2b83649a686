"""One process learns into a file at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onepass.errors import RunError, UsageError
from onepass.files import lock


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """The lock is a file beside it. It ends with its process, however that ends."""
    beside = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(beside, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise RunError(f"cannot write to {path.parent}: {error}") from error
    try:
        if not lock(handle) or not _is(beside, handle):
            raise UsageError(
                f"{path} is being learned into by another process or classifier: close that, or name another file."
            )
        yield
        beside.unlink(missing_ok=True)
    finally:
        os.close(handle)


def _is(path: Path, handle: int) -> bool:
    """Whether the file is still there by that name: who held it before may have removed it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
