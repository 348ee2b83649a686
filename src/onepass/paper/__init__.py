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
