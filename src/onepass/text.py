"""Words from files and paths, as people may see them."""

from __future__ import annotations


def printable(text: str) -> str:
    """Without control characters, which could move a terminal's cursor or change its colours: they become escapes.

    Lines stay lines; names that are not UTF-8 show the bytes that are not.
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
