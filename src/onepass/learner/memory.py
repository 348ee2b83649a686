"""The small memory of the past: numbered slots, and exact reservoir sampling over the whole stream."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from onepass.errors import UsageError
from onepass.learner.augment import decode, encode
from onepass.learner.batch import Batch
from onepass.seeds import generator


class Memory(nn.Module):
    """At most `capacity` samples. Storing draws from a generator of its own, so what a method replays
    never changes what is stored: for one seed, every reservoir method keeps the same samples."""

    def __init__(self, capacity: int, shape: tuple[int, ...], dtype: torch.dtype, *, seed: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.seen = 0
        self.filled = 0
        self.rng = generator(seed, "memory")
        self.fields: list[str] = []
        self.add_field("x", shape, dtype)
        self.add_field("y", (), torch.int64)

    def add_field(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """One more value per slot. Unwritten slots are never read, so they cost no resident memory."""
        self.fields.append(name)
        column = _column(self.capacity, shape, dtype)
        self.register_buffer(f"field_{name}", column, persistent=False)

    def widen_field(self, name: str, width: int) -> None:
        """More numbers at the end of each row of a float field: NaN, since nobody wrote them."""
        column = self.field(name)
        wider = column.new_full((*column.shape[:-1], width), torch.nan)
        wider[..., : column.shape[-1]] = column
        self._buffers[f"field_{name}"] = wider

    def field(self, name: str) -> Tensor:
        """The whole column, filled or not."""
        column: Tensor = self._buffers[f"field_{name}"]  # type: ignore[assignment]  # never None
        return column

    def __len__(self) -> int:
        return self.filled

    def read(self, slots: Tensor) -> Batch:
        slots = slots.to(self.field("y").device)
        rows = {name: self.field(name).index_select(0, slots) for name in self.fields}
        return Batch(rows.pop("x"), rows.pop("y"), slots, rows)

    def write(self, slots: Tensor, batch: Batch) -> None:
        """Store row i in slots[i]; -1 drops the row; of two rows that claim one slot the later stays."""
        # Over ten slot numbers a dict is quicker than any tensor operation, and its last claim wins by definition.
        claims = {slot: row for row, slot in enumerate(slots.tolist()) if slot >= 0}
        if not claims:
            return
        if max(claims) >= self.capacity:
            raise IndexError(f"slot {max(claims)} in a memory of {self.capacity}")
        device = self.field("y").device
        target, rows = torch.tensor([list(claims), list(claims.values())], device=device)
        values = {name: self._values(name, batch) for name in self.fields}  # all of them, before any is written
        for name, value in values.items():
            column = self.field(name)
            column.index_copy_(0, target, value.index_select(0, rows).to(column.dtype))
        self.filled = max(self.filled, max(claims) + 1)

    def _values(self, name: str, batch: Batch) -> Tensor:
        if name == "y":
            return batch.y
        if name == "x":
            return encode(batch.x) if self.field("x").dtype == torch.uint8 else decode(batch.x)
        if name not in batch.extra:
            raise KeyError(f"the batch carries no {name!r}, a field of the memory: call batch.keep({name}=...)")
        return batch.extra[name]

    def sample(self, n: int, rng: torch.Generator) -> Batch:
        """min(n, filled) different slots, every set of them equally likely."""
        filled = self.filled
        if n >= filled or n * n > filled:
            return self.read(torch.randperm(filled, generator=rng)[:n])
        while True:  # draws afresh until all differ: uniform, and the cost does not grow with the memory
            slots = torch.randint(filled, (n,), generator=rng)
            if len(set(slots.tolist())) == n:
                return self.read(slots)

    def reservoir(self, n: int) -> Tensor:
        """Slots for the next n stream samples (algorithm R): each sample so far is kept equally likely."""
        position = torch.arange(self.seen, self.seen + n)
        self.seen += n
        if self.seen <= self.capacity:
            return self._without_gaps(position)
        # Each sample draws against its own position, not against the batch's first, as published code does.
        draw = (torch.rand(n, generator=self.rng, dtype=torch.float64) * (position + 1)).long()
        slots = torch.where(position < self.capacity, position, draw)
        return self._without_gaps(slots.masked_fill_(slots >= self.capacity, -1))

    def _without_gaps(self, slots: Tensor) -> Tensor:
        """Where samples were forgotten or room was added: of the slots that are free, the next one."""
        if self.filled == min(self.seen - len(slots), self.capacity):
            return slots
        end, taken = self.filled, []
        for slot in slots.tolist():
            taken.append(min(slot, end))
            end += slot >= end
        return torch.tensor(taken)

    def forget(self, slots: Tensor) -> None:
        """Erase the rows of these slots; later rows move up, so that the order is as if they had never been there."""
        gone = set(slots.tolist())
        first, left = min(gone, default=0), self.filled - len(gone)
        kept = [slot for slot in range(first, self.filled) if slot not in gone]
        for name in self.fields if gone else ():
            column = self.field(name)
            column[first:left] = column[kept]
            column[left : self.filled] = 0
        self.seen, self.filled = max(left, self.seen - len(gone)), left

    def resize(self, capacity: int) -> None:
        """Room for more samples, or for fewer: then a random part of them stays."""
        olds = {name: self.field(name) for name in self.fields}
        columns = {name: _column(capacity, old.shape[1:], old.dtype, old.device) for name, old in olds.items()}
        if capacity < self.filled:
            self.forget(torch.randperm(self.filled, generator=self.rng)[capacity:])
        for name, column in columns.items():
            column[: self.filled] = self.field(name)[: self.filled]
            self._buffers[f"field_{name}"] = column
        self.capacity = capacity

    def get_extra_state(self) -> dict[str, Any]:
        rows = {name: self.field(name)[: self.filled] for name in self.fields}
        counts = {"capacity": self.capacity, "seen": self.seen, "filled": self.filled}
        return {**counts, "rng": self.rng.get_state(), "rows": rows}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        filled, rows = state["filled"], state["rows"]
        if sorted(rows) != sorted(self.fields) or state["capacity"] != self.capacity:
            given = f"a memory of capacity {state['capacity']} with fields {sorted(rows)}"
            raise ValueError(f"{given} does not fit one of {self.extra_repr()}")
        for name, value in rows.items():
            self.field(name)[:filled] = value
        self.seen, self.filled = state["seen"], filled
        self.rng.set_state(state["rng"].cpu())

    def extra_repr(self) -> str:
        return f"capacity {self.capacity}, {self.filled} filled, fields {sorted(self.fields)}"


def _column(capacity: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    try:
        return torch.empty((capacity, *shape), dtype=dtype, device=device)
    except RuntimeError as error:  # torch's word for no memory, and for numbers that are too large for it
        what = "x".join(map(str, shape))
        raise UsageError(f"no room for a memory of {capacity:,} samples of {what}: choose a smaller one") from error
