"""What settings are when nothing else is said: by data set, from a file of chosen ones; and where they are searched.

A method's own defaults are those for CIFAR-10. Where each number comes from stands on the method's page.
"""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from onepass.config import LearnerConfig, choices, plain, unknown
from onepass.errors import UsageError

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "cifar100": {
        "derpp": {"alpha": 0.1, "beta": 1.0},
        "aser": {"per_class": 2},
        "er-dvc": {"dl_weight": 4.0},
        "ocm": {"scale": 1.0},
        "er-lode": {"rho": 0.05},
        "er-cba": {"adaptor_lr": 0.01},
    },
    "mini-imagenet": {
        "derpp": {"alpha": 0.1, "beta": 1.0},
        "aser": {"per_class": 3},
        "er-dvc": {"dl_weight": 4.0},
        "ocm": {"scale": 1.0},
        "er-lode": {"rho": 0.05},
        "er-cba": {"adaptor_lr": 0.01},
    },
}


def preset(stream: str, method: str) -> dict[str, Any]:
    """The settings of a method that are special to a stream; both by their canonical names."""
    return PRESETS.get(stream, {}).get(method, {})


def write_preset(path: Path, facts: dict[str, Any]) -> None:
    """A file of chosen settings: `facts` are at least its method, stream and settings."""
    from onepass.checkpoint import write_text

    write_text(path, json.dumps(facts, indent=1) + "\n")


def read_preset(path: Path, method: str, stream: str) -> dict[str, Any]:
    """The settings in such a file, checked; both names as a person writes them."""
    from onepass.data.catalog import canonical as stream_name
    from onepass.methods import canonical, method_class

    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        made_for, chosen_on, settings = facts["method"], facts["stream"], dict(facts["settings"])
    except FileNotFoundError:
        raise UsageError(f"no preset at {path}; onepass tune METHOD --save NAME writes one") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no preset ({error!r}): needed is JSON with method, stream and settings") from None
    if made_for != canonical(method):
        raise UsageError(f"{path} is a preset of {made_for}, not of {canonical(method)}")
    if chosen_on != stream_name(stream):
        print(f"{path}: its settings were chosen on {chosen_on}, not on {stream_name(stream)}", file=sys.stderr)
    try:
        method_class(method).Config.from_json(settings)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return settings


CONDITIONS = ("memory", "replay", "scope")  # what a comparison holds equal; searched only if named


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, drawn evenly or by their logarithm; whole ones if its ends are."""

    low: float
    high: float
    log: bool = False

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high


Space = dict[str, Range | tuple[Any, ...]]  # of each setting that is searched, a range or its choices


def own_range(config: LearnerConfig, name: str) -> Range | tuple[Any, ...] | None:
    """Where a setting is searched if nothing else is said; None where its default suggests no range."""
    [limits] = [entry.metadata for entry in fields(config) if entry.name == name]
    low, high, value, kind = limits["low"], limits["high"], getattr(config, name), _kind(config, name)
    if choices(kind) or isinstance(value, bool):
        return choices(kind) or (False, True)
    if isinstance(value, float) and low is not None and high is not None:
        return Range(float(low), float(high))
    if not isinstance(value, int | float) or value <= 0:
        return None
    bottom, top = (max(1, value // 4), value * 4) if isinstance(value, int) else (value / 10, value * 10)
    return Range(bottom if low is None else max(bottom, low), top if high is None else min(top, high), log=True)


def default_space(config: LearnerConfig, fixed: Collection[str] = ()) -> Space:
    """The learning rate and the method's own settings, but for those that were given a value."""
    names = [entry.name for entry in fields(config) if entry.name not in (*CONDITIONS, *fixed)]
    return {name: part for name in names if (part := own_range(config, name)) is not None}


def parse_search(words: Sequence[str], config: LearnerConfig, fixed: Collection[str] = ()) -> Space:
    """Exactly the settings that are named: NAME, NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=A,B,C."""
    known = [entry.name for entry in fields(config)]
    space: Space = {}
    for word in words:
        name = word.partition("=")[0].replace("-", "_")
        if name not in known:
            raise unknown("setting", name, known, "its settings")
        if name in fixed or name in space:
            raise UsageError(f"--search {word}: {name} is given twice; give it a value or one range")
        space[name] = _parse(word, name, config)
    return space


def _parse(word: str, name: str, config: LearnerConfig) -> Range | tuple[Any, ...]:
    kind, text = plain(_kind(config, name)), word.partition("=")[2]
    numbers, ranged, log = kind in (int, float), ":" in text, text.endswith(":log")
    wrong = f"--search {word}: allowed are {name}=A,B,C with values that differ"
    if numbers:
        wrong += f", {name}=LOW:HIGH, and {name}=LOW:HIGH:log with LOW above 0"
    if "=" not in word:
        if (own := own_range(config, name)) is None:
            raise UsageError(f"{wrong}; its default {getattr(config, name)} suggests no range")
        return own
    try:
        parts = text.removesuffix(":log").split(":") if ranged else text.split(",")
        values = [{"true": True, "false": False}[part] if kind is bool else kind(part) for part in parts]
    except (ValueError, KeyError):
        raise UsageError(wrong) from None
    for value in values:
        type(config).from_json({**config.to_json(), name: value})  # refuses what the setting cannot be
    if len(values) < 2 or len(set(values)) < len(values):
        raise UsageError(f"{wrong}; to fix it: --{name.replace('_', '-')} VALUE")
    if not ranged:
        return tuple(values)
    if not numbers or len(values) > 2 or values[0] > values[1] or (log and values[0] <= 0):
        raise UsageError(wrong)
    return Range(values[0], values[1], log)


def _kind(config: LearnerConfig, name: str) -> Any:
    return typing.get_type_hints(type(config))[name]
