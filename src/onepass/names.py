"""Names of networks and augmentations, and code of your own by its path, MODULE:NAME.

Importing runs code: only what a person named is imported. This module imports no torch, so help texts are quick.
"""

from __future__ import annotations

import importlib
from typing import Any

from onepass.errors import UsageError

NET_NAMES = ("resnet18", "slim-resnet18", "small-cnn", "mlp", "linear")
AUGMENTATION_NAMES = ("colour", "digits", "noise", "none")


def is_own(name: str) -> bool:
    """Whether a name is the path of somebody's own code rather than one of ours."""
    return ":" in name and not name.startswith("onepass.")


def import_path(path: str, form: str = "MODULE:NAME") -> Any:
    """What is at MODULE:NAME."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"cannot load {path!r}: {error}; give {form}, both importable from here") from error


def path_of(value: Any) -> str:
    """The path by which a function or class is found again; empty if it is not."""
    path = f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', '')}"
    try:
        return path if import_path(path) is value else ""
    except UsageError:
        return ""
