"""An exponential average of whatever predicts, beside the last weights. Training never sees it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

WARMUP = 10  # n steps later than the first the decay is at most n / (n + WARMUP): early weights are soon forgotten


class Average(nn.Module):
    """Copies of the modules that predict; after each step they follow the originals.

    average <- d average + (1 - d) last, weights and batch-norm statistics; d = min(decay, (n - 1) / (n + 9)) at step n
    Whole numbers have no average: they are the last ones.
    """

    def __init__(self, modules: Iterable[nn.Module], decay: float, warmup: float = WARMUP) -> None:
        super().__init__()
        self._last = list(modules)  # a plain list: they are saved as part of the learner
        self.copies = nn.ModuleList(copy.deepcopy(module).requires_grad_(False) for module in self._last)
        self.decay, self.warmup = decay, warmup
        self._placed = False

    @torch.no_grad()
    def follow(self, steps: int) -> None:
        """Move a little towards the weights after so many steps."""
        decay = min(self.decay, (steps - 1) / (steps - 1 + self.warmup))
        pairs = self._pairs()
        real = [(ours, last.detach()) for ours, last in pairs if ours.is_floating_point()]
        whole = [(ours, last) for ours, last in pairs if not ours.is_floating_point()]
        if real:
            torch._foreach_lerp_([ours for ours, _ in real], [last for _, last in real], 1 - decay)
        if whole:
            torch._foreach_copy_([ours for ours, _ in whole], [last for _, last in whole])

    @contextmanager
    def in_place(self, wanted: bool = True) -> Iterator[None]:
        """Inside, the modules hold the average; what is written to them there is written to the average.

        Not wanted: inside, they hold the last weights, also where the average was in place.
        """
        if self._placed == wanted:
            yield
            return
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def put_in_place(self) -> None:
        """For good: in a copy that only predicts."""
        if not self._placed:
            self._exchange()

    def _exchange(self) -> None:
        pairs = self._pairs()
        for ours, last in reversed(pairs) if self._placed else pairs:  # a module may be part of another
            ours.data, last.data = last.data, ours.data
        self._placed = not self._placed

    @torch.no_grad()
    def grow(self) -> None:
        """Take over rows that the originals have gained."""
        for ours, last in self._pairs():
            if ours.shape != last.shape:
                ours.data = torch.cat([ours.data, last.data[len(ours) :]])
        for copied, module in zip(self.copies, self._last, strict=True):
            for layer, other in zip(copied.modules(), module.modules(), strict=True):
                if isinstance(layer, nn.Linear) and isinstance(other, nn.Linear):
                    layer.out_features = other.out_features

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        return [
            pair
            for ours, last in zip(self.copies, self._last, strict=True)
            for pair in zip([*ours.parameters(), *ours.buffers()], [*last.parameters(), *last.buffers()], strict=True)
        ]
