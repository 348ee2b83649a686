"""Files that appear whole or not at all, and leave nothing behind, whenever a process is killed."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from onepass.errors import RunError

UMASK = os.umask(0)
os.umask(UMASK)  # it can only be read by setting it
ENDING = ".onepass-tmp"
UNSUPPORTED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)  # what disks say that know no files without a name


def atomic(path: Path, write: Callable[[IO[bytes]], None], *, private: bool = False) -> None:
    """Let `write` fill a temporary file, then put it in place at once: readers see the old file or the new one.

    A file that is there keeps its mode, and a link keeps pointing to where it points; a new file that is private is
    for its owner alone.
    """
    try:
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(target) as (file, temporary):
            write(file)
            file.flush()
            os.fsync(file.fileno())
            temporary.chmod(_mode(target, private))
            name = _named(temporary, target)
            try:
                os.replace(name, target)
            except OSError:
                name.unlink(missing_ok=True)
                raise
        sync_folder(target.parent)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error}; what was there before is untouched") from error


def write_bytes(path: Path, content: bytes) -> None:
    def write(file: IO[bytes]) -> None:
        file.write(content)

    atomic(path, write)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode(errors="backslashreplace"))  # names of files need not be UTF-8


def sync_folder(folder: Path) -> None:
    """Make sure that a new name in a folder survives a loss of power, where folders can be synced."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _mode(path: Path, private: bool) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return 0o600 if private else 0o666 & ~UMASK


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A file to write to, and its path: one without a name where there can be, which is gone with its process."""
    _sweep(path)
    handle = _nameless(path.parent)
    if handle is not None:
        name = f"/proc/self/fd/{handle}"
    else:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=ENDING)
    try:
        with os.fdopen(handle, "wb") as file:
            lock(handle)  # so that nobody sweeps it
            yield file, Path(name)
    finally:
        if name.endswith(ENDING):
            Path(name).unlink(missing_ok=True)


def _nameless(folder: Path) -> int | None:
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return None
        raise


def _named(temporary: Path, path: Path) -> Path:
    """The temporary file by a name beside the path."""
    if temporary.parent == path.parent:
        return temporary
    name = path.with_name(f".{path.name}.{secrets.token_hex(4)}{ENDING}")
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.link(temporary, name, src_dir_fd=folder)  # given a folder, Python follows the link of /proc
    finally:
        os.close(folder)
    return name


def _sweep(path: Path) -> None:
    """Remove what a killed process left of this file."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{ENDING}"):
        with contextlib.suppress(OSError):
            handle = os.open(left, os.O_RDONLY)
            try:
                if lock(handle):  # nobody is writing it
                    left.unlink(missing_ok=True)
            finally:
                os.close(handle)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process is in this block with the same folder, where folders can be locked."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def lock(handle: int) -> bool:
    """Whether the file is ours from now on, until the handle is closed; where files cannot be locked it never is."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True
