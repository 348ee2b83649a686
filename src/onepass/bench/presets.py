"""What settings are when nothing else is said: by data set, or from a file of chosen ones.

A method's own defaults are those for CIFAR-10. Where each number comes from stands on the method's page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from onepass.config import Settings
from onepass.errors import UsageError
from onepass.files import write_text
from onepass.methods.registry import canonical, method_class

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "cifar100": {
        "derpp": {"alpha": 0.1, "beta": 1.0},
        "aser": {"per_class": 2},
        "er-dvc": {"dl_weight": 4.0},
        "ocm": {"scale": 1.0},
        "er-lode": {"rho": 0.05},
        "er-cba": {"adaptor_lr": 0.01},
        "onpro": {"scale": 1.0, "mix": 0.2, "at_random": 0.9},
    },
    "mini-imagenet": {
        "derpp": {"alpha": 0.1, "beta": 1.0},
        "gmed": {"stride": 0.025},
        "aser": {"per_class": 3},
        "er-dvc": {"dl_weight": 4.0},
        "ocm": {"scale": 1.0},
        "er-lode": {"rho": 0.05},
        "er-cba": {"adaptor_lr": 0.01},
        "onpro": {"scale": 1.0, "mix": 0.2, "at_random": 0.9},
    },
}


def configured(method: str, stream: str, given: Mapping[str, Any]) -> Settings:
    """A method's settings on a stream: its defaults, what is special to the stream, and what was given."""
    preset = PRESETS.get(stream, {}).get(method, {})
    return method_class(method).Config.from_json({**preset, **given})


def write_preset(path: Path, facts: dict[str, Any]) -> None:
    """A file of chosen settings: `facts` are at least its method, stream and settings."""
    write_text(path, json.dumps(facts, indent=1) + "\n")


def read_presets(paths: Iterable[Path], methods: Collection[str], stream: str) -> dict[str, dict[str, Any]]:
    """By method the settings in such files, checked; methods and stream by their canonical names."""
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        method, settings = _read(path, methods, stream)
        if method in found:
            raise UsageError(f"{path} is a second preset of {method}; give one")
        found[method] = settings
    return found


def _read(path: Path, methods: Collection[str], stream: str) -> tuple[str, dict[str, Any]]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        method, chosen_on, settings = canonical(str(facts["method"])), facts["stream"], dict(facts["settings"])
        if method not in methods:  # and so it is not imported either
            raise UsageError(f"it is a preset of {method}, not of {' or '.join(methods)}")
        method_class(method).Config.from_json(settings)
    except FileNotFoundError:
        raise UsageError(f"no preset at {path}; onepass tune METHOD --save NAME writes one") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path}: expected a preset, JSON with method, stream and settings; got {error!r}") from None
    if chosen_on != stream:
        print(f"{path}: its settings were chosen on {chosen_on}, not on {stream}", file=sys.stderr)
    return method, settings
