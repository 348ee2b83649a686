"""Download a file so that what stands in its place is always whole and right, or not there at all.

Bytes go to NAME.part and are renamed to NAME once length and checksum agree. Beside it, NAME.part.json remembers which
version they belong to (ETag or Last-Modified), so that half of an old file is never completed with half of a new one.
Give size or checksum where they are known: without them, the length that the server announces is all there is to check.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from onepass.data.archive import shown, sniff
from onepass.errors import BadData

if sys.platform != "win32":
    import fcntl

_CHUNK = 1 << 18
_PAUSE, _LONGEST_PAUSE = 0.5, 8.0  # seconds; doubles with every failure in a row
_SLOWEST, _GRACE = 1000, 60.0  # bytes a second that must come, from so many seconds on
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
Progress = Callable[[int, "int | None"], None]  # bytes so far, and in all if that is known


class DownloadError(BadData):
    """Why a file could not be had, and how to get it by hand."""


class _Dropped(Exception):
    """An attempt failed in a way that another may not."""


class _Stale(_Dropped):
    """And the part that is there cannot be continued."""


class _Note(NamedTuple):
    """Of which file the part is."""

    url: str
    version: str = ""
    total: int | None = None


@dataclass(frozen=True)
class _Wanted:
    url: str
    to: Path
    sha256: str | None
    md5: str | None
    size: int | None

    @property
    def part(self) -> Path:
        return self.to.with_name(self.to.name + ".part")

    @property
    def note(self) -> Path:
        return self.to.with_name(self.to.name + ".part.json")

    def arrived(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def problem(self, path: Path) -> str:
        """What is wrong with a file that should be this one; "" if nothing, as far as size and checksums tell."""
        if self.size not in (None, path.stat().st_size):
            return f"its size is {path.stat().st_size:,} bytes, expected {self.size:,}"
        for name, expected in (("sha256", self.sha256), ("md5", self.md5)):
            if expected and (found := _digest(path, name)) != expected.lower():
                return f"its {name} is {found}, expected {expected.lower()}"
        return ""

    def error(self, reason: str) -> DownloadError:
        facts = {"size": self.size and f"{self.size:,} bytes", "sha256": self.sha256, "md5": self.md5}
        known = "".join(f", {name} {fact}" for name, fact in facts.items() if fact)
        by_hand = f"by hand: download {self.url} and put it as {self.to.name} into {self.to.parent.absolute()}{known}"
        return DownloadError(f"{self.to.name}: {reason}; {by_hand}")


def download(
    url: str,
    to: Path,
    *,
    sha256: str | None = None,
    md5: str | None = None,
    size: int | None = None,
    progress: Progress = lambda done, total: None,
    attempts: int = 5,
    timeout: float = 30,
) -> Path:
    """Fetch `url` to `to`, unless it is there and right; gives up after `attempts` in a row without progress."""
    wanted = _Wanted(url, to, sha256, md5, size)
    try:
        scheme = urlsplit(url).scheme
    except ValueError:  # such as a bracket that is never closed
        scheme = ""
    if scheme not in ("http", "https"):
        raise wanted.error(f"{shown(url)} is no http or https address")
    if to.exists() and not wanted.problem(to):
        return to
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with _alone(wanted):
            _fill(wanted, progress, attempts, timeout)
            if problem := wanted.problem(wanted.part):
                wanted.part.unlink()
                raise wanted.error(f"what the server sent is not the file: {problem}; it was removed")
            os.replace(wanted.part, to)
    except OSError as error:  # those of the network never come this far
        raise wanted.error(f"cannot write in {to.parent}: {error.strerror}; what has come is kept") from error
    return to


def _fill(wanted: _Wanted, progress: Progress, attempts: int, timeout: float) -> None:
    failures, best = 0, wanted.arrived()
    while True:
        try:
            return _attempt(wanted, progress, timeout)
        except _Dropped as dropped:
            if (wanted.sha256 or wanted.md5) and wanted.arrived() and not wanted.problem(wanted.part):
                return None  # whole all along: only the announced length was not true
            if isinstance(dropped, _Stale):
                wanted.part.unlink(missing_ok=True)
            failures = 0 if wanted.arrived() > best else failures + 1  # a restart that comes no further is a failure
            best = max(best, wanted.arrived())
            if failures >= attempts:
                raise wanted.error(f"{dropped} (attempt {attempts}); run again to continue") from None
            time.sleep(min(_PAUSE * 2**failures, _LONGEST_PAUSE))


def _attempt(wanted: _Wanted, progress: Progress, timeout: float) -> None:
    old = _remembered(wanted)
    have = wanted.arrived() if old.version else 0
    if have and have == old.total:  # stopped between the last byte and the renaming
        return
    with _ask(wanted, have, old, timeout) as response:
        start, new = _place(wanted, response, have, old)
        pieces, head = _pieces(wanted, response), b""
        while len(head) < 1024 and (piece := next(pieces, b"")):
            head += piece
        if not start and sniff(head) == "an HTML page" and not wanted.to.suffix.startswith(".htm"):
            raise wanted.error("the server sent an HTML page, not the file (a login, quota or error page)")
        done = _write(wanted, chain([head], pieces), start, new, progress)
    if new.total is not None and done < new.total:
        raise _Dropped(f"the connection ended after {done:,} of {new.total:,} bytes")


def _ask(wanted: _Wanted, have: int, old: _Note, timeout: float) -> http.client.HTTPResponse:
    headers = {"User-Agent": "onepass"} | ({"Range": f"bytes={have}-", "If-Range": old.version} if have else {})
    asked = request.Request(wanted.url, headers=headers)
    try:
        return cast(http.client.HTTPResponse, _within(_GRACE, partial(_open, asked, timeout)))
    except TimeoutError as error:
        raise _Dropped(f"cannot reach the server: {error or 'timed out'}") from None
    except HTTPError as error:
        error.close()
        reason = f"the server answers {error.code} {shown(error.reason)}"
        if error.code == 416 and have:  # it has nothing after what we have
            raise _Stale(reason) from None
        raise (_Dropped(reason) if error.code >= 500 or error.code in (408, 429) else wanted.error(reason)) from None
    except ValueError as error:  # an address that is none, to which the server led
        raise wanted.error(f"the server leads elsewhere, to no address: {shown(str(error))}") from None
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        raise _Dropped(f"cannot reach the server: {shown(str(getattr(error, 'reason', error)))}") from None


def _open(asked: request.Request, timeout: float) -> Any:
    return request.build_opener(_NoFTP).open(asked, timeout=timeout)


def _within(seconds: float, function: Callable[[], Any]) -> Any:
    """What a function gives, if it does in time: a server may send its headers a letter at a time."""
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def answer() -> None:
        try:
            answers.put((function(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=answer, daemon=True).start()
    try:
        value, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} seconds") from None
    if error is not None:
        raise error
    return value


def _place(wanted: _Wanted, response: http.client.HTTPResponse, have: int, old: _Note) -> tuple[int, _Note]:
    """Where in the file the answer begins, and what is to be remembered of it."""
    tag, start, total = response.headers.get("ETag", ""), 0, response.length
    total = wanted.size if total is None else total
    if not tag or tag.startswith("W/"):  # a weak one does not promise the same bytes
        tag = response.headers.get("Last-Modified", "")
    if response.status == 206:
        found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if not found or int(found[1]) != have or (have and tag != old.version):
            raise _Stale("the file on the server changed")
        start, total = have, int(found[2])
    if total is not None and (total == 0 or wanted.size not in (None, total)):
        raise wanted.error(f"the server announces {total:,} bytes, which cannot be the file")
    if total is None and not (response.chunked or wanted.sha256 or wanted.md5):
        raise wanted.error("the server gives no length and no checksum is known, so half a file would not be noticed")
    return start, _Note(wanted.url, tag, total)


def _write(wanted: _Wanted, pieces: Iterator[bytes], done: int, new: _Note, progress: Progress) -> int:
    """Append the pieces to the part, or begin it anew; how long it is then."""
    with wanted.part.open("ab" if done else "wb") as file:
        wanted.note.write_text(json.dumps(new))  # after the old bytes are gone, before new ones come
        for piece in pieces:
            file.write(piece)
            done += len(piece)
            if new.total is not None and done > new.total:
                raise _Stale(f"the server sends more than the {new.total:,} bytes of the file")
            progress(done, new.total)
        file.flush()
        os.fsync(file.fileno())
    return done


def _pieces(wanted: _Wanted, response: http.client.HTTPResponse) -> Iterator[bytes]:
    begin, come = time.monotonic(), 0
    try:
        while piece := response.read1(_CHUNK):
            yield piece
            come += len(piece)
            took = time.monotonic() - begin
            if took > _GRACE and come < _SLOWEST * took:
                raise wanted.error(f"the server sends {come / took:.0f} bytes a second; run again to continue")
    except (OSError, http.client.HTTPException) as error:
        raise _Dropped(f"the connection broke: {shown(str(error))}") from None


def _remembered(wanted: _Wanted) -> _Note:
    with suppress(ValueError, TypeError):  # none yet, or one cut off by a crash
        note = _Note(*json.loads(wanted.note.read_text()))
        if note.url == wanted.url:
            return note
    return _Note(wanted.url)


def _digest(path: Path, name: str) -> str:
    digest = hashlib.new(name, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


class _NoFTP(request.FTPHandler):
    def ftp_open(self, req: request.Request) -> NoReturn:  # urllib refuses redirects to the rest itself
        raise URLError(f"it leads to {shown(req.full_url)}, which is refused")


@contextmanager
def _alone(wanted: _Wanted) -> Iterator[None]:
    """Two processes must not write one part; Windows has no such lock, so there only the checksum tells."""
    with wanted.note.open("a") as file:
        if sys.platform != "win32":
            taken = True
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                taken = os.fstat(file.fileno()).st_nlink == 0  # by one that has finished just now
            if taken:
                raise wanted.error("another process is downloading it; wait for that, then run again")
        try:
            yield
        finally:
            if not wanted.part.exists():
                wanted.note.unlink(missing_ok=True)
