"""Requests that were learned, by their Idempotency-Key. They lie in the model's cursor: saved with what was learned."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from onepass.live.model import Model

KEPT = 4096  # the last ones
DIGEST = 16  # bytes, of a key and of the request that came with it
NAME = "requests"  # in the cursor


def request_digest(*parts: bytes) -> bytes:
    """One digest of all parts; their lengths count."""
    found = hashlib.blake2b(digest_size=DIGEST, person=b"onepass-req")
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.digest()


class Keys:
    """The last requests with a key. Changed only in the model's turn."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._rows = np.zeros((KEPT, 2 * DIGEST), np.uint8)
        self._next = 0
        self._known: dict[bytes, bytes] = {}
        if NAME in model.cursor.tree:
            self._read(model.cursor.tree[NAME])

    def _read(self, tree: Any) -> None:
        rows, following = tree["rows"].numpy(), tree["next"]
        if rows.shape != self._rows.shape or rows.dtype != np.uint8 or type(following) is not int or following < 0:
            raise ValueError("its requests are none")
        self._rows[:], self._next = rows, following
        for place in range(max(0, following - KEPT), following):
            row = self._rows[place % KEPT].tobytes()
            self._known[row[:DIGEST]] = row[DIGEST:]

    def find(self, key: bytes) -> bytes | None:
        """The request that was learned with a key."""
        return self._known.get(key)

    def note(self, key: bytes, request: bytes) -> None:
        place = self._next % KEPT
        if self._next >= KEPT:
            self._known.pop(self._rows[place].tobytes()[:DIGEST], None)
        self._rows[place] = np.frombuffer(key + request, np.uint8)
        self._known[key] = request
        self._next += 1
        tree = {"rows": torch.from_numpy(self._rows.copy()), "next": self._next}  # a save may be reading the last one
        self.model.cursor.tree = {**self.model.cursor.tree, NAME: tree}
        self.model.changed()
