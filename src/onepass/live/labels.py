"""Names of classes, of whatever kind people have, and their numbers from 0."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from onepass.errors import UsageError

Label: TypeAlias = str | int | float | bool
LONGEST = 1000  # letters
UNKNOWN = "unknown"


def plain_label(value: Any) -> Label:
    """A label as Python has it, that a file can hold."""
    if isinstance(value, np.generic) or (hasattr(value, "item") and getattr(value, "ndim", 1) == 0):
        value = value.item()
    if not isinstance(value, (str, int, float)):
        raise UsageError(f"Expected a label that is a word or a number, got {type(value).__name__}. Give str or int.")
    if isinstance(value, str) and len(value) > LONGEST:
        raise UsageError(f"Expected a label of at most {LONGEST} letters, got {len(value)}. Give a shorter name.")
    if isinstance(value, str) and "\0" in value:  # where NumPy ends a word
        raise UsageError("Expected a label without a null character, got one with it. Give another name.")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"Expected a label, got {value}. Leave out samples without one.")
    return value


class Labels:
    """Numbers in the order in which names came."""

    def __init__(self, names: Iterable[Label] = ()) -> None:
        self.names: list[Label] = []
        self._numbers: dict[Label, int] = {}
        self.add(names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    def check(self, names: Sequence[Label]) -> None:
        """Refuse words among numbers and numbers among words: they have no order."""
        words = {isinstance(name, str) for name in (*self.names[:1], *names)}
        if len(words) > 1:
            raise UsageError("Expected labels of one kind, got words and numbers. Give all as words.")

    def add(self, names: Iterable[Label]) -> None:
        for name in names:
            if name not in self._numbers:
                self._numbers[name] = len(self.names)
                self.names.append(name)

    def number(self, name: Label) -> int:
        return self._numbers[name]

    def unknown(self, wanted: Label | None = None) -> Label:
        """What is answered where no class is probable enough: `unknown` among words, -1 among numbers."""
        answer: Label = wanted if wanted is not None else UNKNOWN if self._words else -1
        if answer in self._numbers or isinstance(answer, str) != self._words:
            raise UsageError(
                f"Expected an answer for unknown samples that is no class but of the kind of the classes, "
                f"got {answer!r}. Give unknown=..."
            )
        return answer

    @property
    def _words(self) -> bool:
        return isinstance(self.names[0], str) if self.names else True
