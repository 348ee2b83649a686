"""Where settings are searched: by their own limits, or as a person says."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any

from onepass.config import Settings, choices, kinds_of, plain, unknown
from onepass.errors import UsageError

# What a comparison holds equal; searched only if named.
CONDITIONS = (
    "memory",
    "replay",
    "scope",
    "optimizer",
    "momentum",
    "weight_decay",
    "updates",
    "expert",
    "precision",
    "compile",
)


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, drawn evenly or by their logarithm; whole ones if its ends are."""

    low: float
    high: float
    log: bool = False

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high


Space = dict[str, Range | tuple[Any, ...]]  # of each setting that is searched, a range or its choices


def own_range(config: Settings, name: str) -> Range | tuple[Any, ...] | None:
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


def default_space(config: Settings, fixed: Collection[str] = ()) -> Space:
    """The learning rate and the method's own settings, but for those that were given a value and for ablations."""
    left_out = {*CONDITIONS, *fixed, *(entry.name for entry in fields(config) if entry.metadata["ablation"])}
    names = [entry.name for entry in fields(config) if entry.name not in left_out]
    return {name: part for name in names if (part := own_range(config, name)) is not None}


def parse_search(words: Sequence[str], config: Settings, fixed: Collection[str] = ()) -> Space:
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


def _parse(word: str, name: str, config: Settings) -> Range | tuple[Any, ...]:
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


def _kind(config: Settings, name: str) -> Any:
    return kinds_of(type(config))[name]  # type: ignore[arg-type]  # as in config.py
