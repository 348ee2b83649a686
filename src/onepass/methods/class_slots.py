"""Which slots of a memory hold which class: found without looking at all of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onepass.learner.memory import Memory

BLOCK = 1024  # slots that are looked at one by one


class ClassSlots:
    """A memory's labels in NumPy, whose calls cost a third of torch's here, and counts of classes in blocks of slots.

    They follow what is announced by `put`, and are made anew when anybody else has written labels.
    """

    def __init__(self, memory: Memory, n_classes: int) -> None:
        self.memory = memory
        self.labels: NDArray[np.int64] = memory.field("y").to("cpu", copy=True).numpy()
        self.blocks = np.zeros((n_classes, -(-memory.capacity // BLOCK)), dtype=np.int64)
        filled = self.labels[: len(memory)]
        np.add.at(self.blocks, (filled, np.arange(len(filled)) // BLOCK), 1)
        self.counts = self.blocks.sum(axis=1)
        self.accept()

    def accept(self) -> None:
        """The memory now holds what was put here."""
        self._state: tuple[int, int, int] | None = self._now()

    def current(self, n_classes: int) -> bool:
        return self._state == self._now() and len(self.counts) == n_classes

    def _now(self) -> tuple[int, int, int]:
        column = self.memory.field("y")
        return column.data_ptr(), column._version, len(self.memory)  # torch counts what is written to a tensor

    def put(self, slot: int, label: int, *, empty: bool) -> None:
        """This slot, which was empty or not, holds this class."""
        block, self._state = slot // BLOCK, None
        if not empty:
            self.blocks[self.labels[slot], block] -= 1
            self.counts[self.labels[slot]] -= 1
        self.blocks[label, block] += 1
        self.counts[label] += 1
        self.labels[slot] = label

    def find(self, classes: NDArray[np.bool_], place: int) -> int:
        """The slot with so many before it that hold one of these classes too, in a memory that is full."""
        ends = self.blocks[classes].sum(axis=0).cumsum()
        block = int(np.searchsorted(ends, place, side="right"))
        first = block * BLOCK
        among = np.flatnonzero(classes[self.labels[first : first + BLOCK]])
        return first + int(among[place - (ends[block - 1] if block else 0)])
