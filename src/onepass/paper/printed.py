"""What the paper prints, as data."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def printed() -> dict[str, Any]:
    """Every number of the paper that is compared with ours."""
    text = files("onepass.paper").joinpath("printed.json").read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(text)
    return values


def table1(method: str, stream: str, memory: int) -> tuple[float, float] | None:
    """Mean and interval of a method's final accuracy in the paper's table 1, in per cent; None: not printed."""
    cells = printed()["table1"]["rows"].get(method, {}).get(stream, {})
    found = cells.get(str(memory) if memory else "any")
    return None if found is None else (found[0], found[1])
