"""What the command prints: tables as wide as the terminal, or as a file can bear."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console(width: int = 120) -> Console:
    """On stdout; `width` where nobody watches."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else width)
