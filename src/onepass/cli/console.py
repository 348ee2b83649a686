"""What the command prints: tables as wide as the terminal, or as a file can bear, in whatever letters it knows."""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from onepass.report.tables import Table


PLAIN = {
    "±": "+-",
    "×": "x",
    "−": "-",
    "–": "-",
    "’": "'",
    "“": '"',
    "”": '"',
    "…": "...",
    "†": "+",
    "≥": ">=",
    "≤": "<=",
}


def prepare_output() -> None:
    """Letters that a terminal or a file does not know are spelt in those it knows; to a closed stdout,
    writing fails, and what would go to a closed stderr is lost.
    """
    codecs.register_error("onepass", _spelt)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # Python found it closed
            handle = os.open(os.devnull, os.O_WRONLY)  # takes its number, so that no file of ours gets it
            setattr(sys, name, _Closed(name) if name == "stdout" else os.fdopen(handle, "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="onepass")


def _spelt(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(PLAIN.get(c, c.encode("unicode_escape").decode()) for c in letters), error.end


class _Closed(io.TextIOBase):
    def __init__(self, name: str) -> None:
        self.what = name

    def write(self, text: str) -> int:
        raise OSError(f"{self.what} is closed")


def console(width: int = 120) -> Console:
    """On stdout; `width` where nobody watches."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else width)


def show(table: Table, width: int = 120) -> None:
    """A table and its notes, which a terminal gets wrapped between words, and a file as they are."""
    from rich.text import Text

    from onepass.report.tables import rich_table

    output = console(width)
    output.print(rich_table(table))
    output.print(Text("\n".join(table.notes)), soft_wrap=not sys.stdout.isatty())
