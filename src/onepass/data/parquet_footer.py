"""How many rows and values a parquet file declares, read from its footer by ourselves.

pyarrow gives these numbers too, but some damaged footers end its process when it is asked for them (26.0.1).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

MAX_FOOTER = 1 << 22  # bytes
_MAX_DEPTH = 16
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_ROW_GROUPS, _COLUMNS, _ROWS, _META, _PATH, _VALUES = 4, 1, 3, 3, 3, 5  # numbers of fields in parquet.thrift


def list_lengths(path: Path, column: str) -> list[tuple[int, int]]:
    """For each group of rows, how many rows and how many values a column of lists has. A ValueError tells of damage."""
    return [_counts(group, column) for group in _list(_footer(path), _ROW_GROUPS)]


def _counts(group: Any, column: str) -> tuple[int, int]:
    for chunk in _list(group, _COLUMNS):
        meta: Any = chunk.get(_META) if isinstance(chunk, dict) else None
        names = _list(meta, _PATH)
        if names and names[0] == column.encode(errors="surrogatepass"):
            counts = group.get(_ROWS), meta.get(_VALUES)
            if not all(isinstance(count, int) and count >= 0 for count in counts):
                break
            return counts
    raise ValueError("its footer does not count the rows and values of all columns")


def _list(value: Any, field: int) -> list[Any]:
    found = value.get(field) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []


def _footer(path: Path) -> Any:
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - 8))
        end = file.read(8)
        if len(end) < 8 or end[4:] != b"PAR1":
            raise ValueError("it does not end as a parquet file")
        (length,) = struct.unpack("<I", end[:4])
        if not 0 < length <= min(MAX_FOOTER, size - 8):
            raise ValueError(f"its footer has {length:,} bytes; at most {MAX_FOOTER:,} are read")
        file.seek(size - 8 - length)
        return _Reader(file.read(length)).value(_STRUCT, 0)


class _Reader:
    """Thrift's compact protocol: structs become dicts by the numbers of their fields."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def take(self, n: int) -> bytes:
        if n > len(self.content) - self.at:
            raise ValueError("its footer breaks off")
        self.at += n
        return self.content[self.at - n : self.at]

    def varint(self) -> int:
        number = shift = 0
        while shift < 70:
            [byte] = self.take(1)
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
        raise ValueError("its footer has a number without end")

    def value(self, kind: int, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError("its footer is nested too deeply")
        if kind in (_I16, _I32, _I64):
            number = self.varint()
            return (number >> 1) ^ -(number & 1)
        if kind == _BINARY:
            return self.take(self.varint())
        if kind in (_LIST, _SET):
            return self.items(depth)
        if kind == _STRUCT:
            return self.fields(depth)
        if kind in (_TRUE, _FALSE, _BYTE):  # in a list; a field has its truth in its header
            return self.take(1)
        if kind == _DOUBLE:
            return self.take(8)
        if kind == _MAP and self.varint() == 0:  # parquet has no maps
            return {}
        raise ValueError(f"its footer has a value of kind {kind}")

    def items(self, depth: int) -> list[Any]:
        [head] = self.take(1)
        n = head >> 4 if head >> 4 < 15 else self.varint()
        if n > len(self.content) - self.at:  # each takes a byte at least
            raise ValueError("its footer breaks off")
        return [self.value(head & 15, depth + 1) for _ in range(n)]

    def fields(self, depth: int) -> dict[int, Any]:
        found: dict[int, Any] = {}
        number = 0
        while True:
            [head] = self.take(1)
            if not head:
                return found
            number = number + (head >> 4) if head >> 4 else self.value(_I16, depth)
            kind = head & 15
            found[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self.value(kind, depth + 1)
