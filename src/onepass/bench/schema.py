"""Whether plain data from a file is of the types that a dataclass declares."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from typing import Any

LARGEST = 2.0**63
DEEPEST = 20  # lists in lists


@functools.cache
def kinds(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def check_fields(cls: Any, values: Mapping[str, Any], names: typing.Collection[str]) -> None:
    """Refuse values of another type than the fields of these names have; ValueError says which."""
    for name in names:
        if name in values and not conforms(values[name], kinds(cls)[name]):
            raise ValueError(f"its {name} is not {_said(kinds(cls)[name])}")
    for entry in dataclasses.fields(cls):
        required = entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
        if required and entry.name in names and entry.name not in values:
            raise ValueError(f"it has no {entry.name}")


def check_depth(value: Any) -> None:
    """Refuse what is nested deeper than anything we store: whoever shows it would have to follow."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for item in level
            if isinstance(item, (dict, list))
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    if level:
        raise ValueError("it is nested too deeply")


def conforms(value: Any, kind: Any) -> bool:
    """Whether a JSON value is of a type made of list, dict, float, int, bool, str, None and Any; 1 is a float too.

    Numbers are finite, and no larger than any count.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True
    if origin is list:
        return isinstance(value, list) and all(conforms(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            conforms(key, inner[0]) and conforms(item, inner[1]) for key, item in value.items()
        )
    if kind in (int, float):
        number = isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
        return number and abs(value) <= LARGEST  # which NaN is not either
    return isinstance(value, kind)


def _said(kind: Any) -> str:
    return str(kind).replace("typing.", "") if typing.get_origin(kind) else str(kind.__name__)
