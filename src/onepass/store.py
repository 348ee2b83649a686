"""Stored runs: one folder each, under a key of its config; a result appears whole or not at all."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from onepass.checkpoint import write_text
from onepass.results import Result, RunConfig


def key(config: RunConfig) -> str:
    """A name for everything but the seed: equal settings, equal key."""
    values = {name: value for name, value in config.to_json().items() if name != "seed"}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]


def folder(out: Path, config: RunConfig) -> Path:
    method = config.method.replace(":", ".")
    return out / f"{config.stream_label}-{method}-{key(config)}" / f"seed-{config.seed}"


def save_result(path: Path, result: Result) -> None:
    write_text(path / "result.json", json.dumps(result.to_json(), indent=1) + "\n")


def load_result(path: Path, config: RunConfig) -> Result | None:
    """The stored result, or None if there is none that can be trusted; a damaged one is named on stderr."""
    file = path / "result.json"
    try:
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        result = Result.from_json(values)
        if result.config != config:
            raise ValueError("it belongs to another config")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{file} is damaged ({error}); this run is trained again", file=sys.stderr)
        return None
    return result
