"""Words for people: from files and paths, and to stderr."""

from __future__ import annotations

import contextlib
import sys


def printable(text: str) -> str:
    """Without control characters, which could move a terminal's cursor or change its colours: they become escapes.

    Lines stay lines; names that are not UTF-8 show the bytes that are not.
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def warn(text: str) -> None:
    """A line on stderr, if it can be written: a log on a full disk must not end what goes on."""
    with contextlib.suppress(OSError, ValueError):
        print(f"onepass: {text}", file=sys.stderr, flush=True)
