"""Which samples were learned: a digest of 16 bytes and a class for each, 36 bytes in memory, 20 in a file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

DIGEST = 16  # bytes
RECENT = 4096  # entries that are looked up in a dict before they are sorted in
ERASED = -1  # the class of an entry that was forgotten


def digest_of(name: str) -> bytes:
    """The digest of an id that was given; an id that is a digest's own hexadecimal form stands for that."""
    if re.fullmatch(r"[0-9a-fA-F]{32}", name):  # bytes.fromhex would also take spaces
        return bytes.fromhex(name)
    return hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=DIGEST, person=b"onepass-id").digest()


def content_digests(x: Tensor) -> list[bytes]:
    """A digest of each sample's values."""
    rows = x.contiguous().numpy()
    return [hashlib.blake2b(row.data, digest_size=DIGEST, person=b"onepass-x").digest() for row in rows]


class Journal:
    """Entries are numbered in the order they were learned. A number is never used twice."""

    def __init__(self) -> None:
        self._digests: NDArray[np.uint8] = np.zeros((0, DIGEST), np.uint8)
        self._classes: NDArray[np.int32] = np.zeros(0, np.int32)
        self._n = 0
        self._keys: NDArray[np.uint64] = np.zeros(0, np.uint64)  # first halves of the digests, sorted
        self._order: NDArray[np.int64] = np.zeros(0, np.int64)  # their numbers
        self._recent: dict[bytes, int] = {}
        self.erased = 0  # entries that this process erased

    def __len__(self) -> int:
        """Entries ever made: the next number."""
        return self._n

    def add(self, digests: Sequence[bytes], classes: Sequence[int]) -> None:
        more = len(digests)
        if self._n + more > len(self._classes):
            room = max(1024, 2 * (self._n + more))
            self._digests, self._classes = (
                np.concatenate([old[: self._n], np.zeros((room - self._n, *old.shape[1:]), old.dtype)])
                for old in (self._digests, self._classes)
            )
        end = self._n + more
        if more:
            self._digests[self._n : end] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST)
        self._classes[self._n : end] = classes
        self._recent.update(zip(digests, range(self._n, end), strict=True))
        self._n = end
        if len(self._recent) > max(RECENT, self._n // 8):
            self._sort()

    def _sort(self) -> None:
        keys = self._first_halves(self._digests[: self._n])
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        self._recent = {}

    @staticmethod
    def _first_halves(digests: NDArray[np.uint8]) -> NDArray[np.uint64]:
        return np.ascontiguousarray(digests[:, :8]).view(np.uint64).ravel()

    def find(self, digest: bytes) -> int | None:
        """The number of a sample; None: it is not known, or was forgotten."""
        number = self._recent.get(digest)
        if number is not None:
            return number if self._classes[number] >= 0 else None
        if not len(self._keys):
            return None
        wanted = np.frombuffer(digest, np.uint8)
        key = self._first_halves(wanted[None])[0]
        place = int(np.searchsorted(self._keys, key))
        while place < len(self._keys) and self._keys[place] == key:
            number = int(self._order[place])
            if self._classes[number] >= 0 and np.array_equal(self._digests[number], wanted):
                return number
            place += 1
        return None

    def class_of(self, number: int) -> int:
        return int(self._classes[number])

    def id_of(self, number: int) -> str:
        """A digest as people see it."""
        return bytes(self._digests[number]).hex()

    def relabel(self, number: int, to: int) -> None:
        self._classes[number] = to

    def erase(self, numbers: Iterable[int]) -> None:
        """Nothing of these is kept but that there was something."""
        for number in numbers:
            self._recent.pop(self._digests[number].tobytes(), None)
            self._digests[number] = 0
            self._classes[number] = ERASED
            self.erased += 1

    @property
    def known(self) -> int:
        """Entries that were not erased."""
        return int((self._classes[: self._n] >= 0).sum())

    def to_tree(self) -> dict[str, Any]:
        n = self._n
        return {
            "digests": torch.from_numpy(self._digests[:n].copy()),
            "classes": torch.from_numpy(self._classes[:n].copy()),
        }

    @classmethod
    def from_tree(cls, tree: Any, n_classes: int) -> Journal:
        digests, classes = tree["digests"].numpy(), tree["classes"].numpy()
        if digests.dtype != np.uint8 or classes.dtype != np.int32 or digests.shape != (len(classes), DIGEST):
            raise ValueError("its journal is none")
        if len(classes) and not (classes.min() >= ERASED and classes.max() < n_classes):
            raise ValueError("its journal names classes that there are not")
        journal = cls()
        journal._digests, journal._classes, journal._n = digests.copy(), classes.copy(), len(classes)
        journal._sort()
        return journal
