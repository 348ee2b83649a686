"""A person's own table as text: a header, a column of labels, columns of numbers, separated by comma, ; or tab.

It is read twice, a megabyte at a time: for the labels, which decide who is tested on, and then for the numbers.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onepass.data import BadImages, LocatedFiles, Source
from onepass.data.archive import shown, sniff
from onepass.data.vectors import LABEL_NAMES, MAX_COLUMNS, Labels, floats, label_column, source
from onepass.errors import UNREADABLE, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_LINE = 1 << 22  # bytes
_BLOCK = 1 << 20
_DELIMITERS = ",;\t"
_UNIT = "\x1f"  # between cells whose quotes were taken off
_BOM = b"\xef\xbb\xbf"
_EXAMPLE = "such as: width,height,label"


@dataclass(frozen=True)
class Layout:
    """What the header tells."""

    path: Path
    names: tuple[str, ...]
    delimiter: str
    label: int
    split: int | None

    @property
    def numbers(self) -> list[int]:
        return [place for place in range(len(self.names)) if place not in (self.label, self.split)]

    def line(self, number: int) -> str:
        return f"{self.path}, line {number}"

    def cell(self, number: int, column: int) -> str:
        return f"{self.line(number)}, column {shown(self.names[column])!r}"


def find(path: Path, image_size: int = 0, bad_images: BadImages = "skip") -> LocatedFiles | None:
    """The file as it is."""
    return LocatedFiles("csv", (path,), partial(_read, path)) if path.is_file() else None


def _read(path: Path) -> Source:
    layout = _layout(path)
    labels = Labels(path)
    tested = [np.zeros(0, dtype=np.bool_)]
    for number, lines in _data(path):
        rows = _cells(layout, lines, number)
        wrong = next((place for place, row in enumerate(rows) if len(row) != len(layout.names)), None)
        if wrong is not None:
            counts = f"expected {len(layout.names)} cells as in the header, got {len(rows[wrong])}"
            raise UsageError(f"{layout.line(number + wrong)}: {counts}")
        labels.add([row[layout.label].strip() for row in rows], partial(_line, layout, number))
        if layout.split is not None:
            tested.append(_tested(layout, [row[layout.split] for row in rows], number))
    is_test = None if layout.split is None else np.concatenate(tested)
    return source(path, labels, is_test, len(layout.numbers), partial(_numbers, layout))


def _tested(layout: Layout, words: Sequence[str], number: int) -> NDArray[np.bool_]:
    assert layout.split is not None
    sides = {"train": False, "test": True}
    spelled = [word.strip().lower() for word in words]
    for place, word in enumerate(spelled):
        if word not in sides:
            cell = layout.cell(number + place, layout.split)
            raise UsageError(f"{cell}: expected train or test, got {shown(words[place])!r}")
    return np.array([sides[word] for word in spelled], dtype=np.bool_)


def _layout(path: Path) -> Layout:
    with _explained(path), path.open("rb") as file:
        kind = sniff(file.read(1024))
    if kind:
        raise UsageError(f"{path}: this is {kind}; expected a text of columns with a header, {_EXAMPLE}")
    _, lines = next(_lines(path), (1, []))
    if not lines:
        raise UsageError(f"{path} is empty; expected a header, {_EXAMPLE}")
    delimiter = max(_DELIMITERS, key=lines[0].count)
    with _explained(path):
        [cells] = csv.reader(lines[:1], delimiter=delimiter)
    names = tuple(cell.strip() for cell in cells)
    if not 2 <= len(names) <= MAX_COLUMNS:
        raise UsageError(
            f"{path}: expected 2 to {MAX_COLUMNS:,} columns in the header, got {len(names):,}; "
            f"they are separated by comma, semicolon or tab, {_EXAMPLE}"
        )
    if "" in names:
        raise UsageError(
            f"{path}: column {names.index('') + 1} has no name; name it, or leave it out (pandas: index=False)"
        )
    layout = Layout(path, names, delimiter, *label_column(path, names))
    if not layout.numbers:
        raise UsageError(f"{path}: expected columns of numbers beside the labels, got none")
    if names[layout.label].lower() not in LABEL_NAMES and all(map(_is_number, (names[i] for i in layout.numbers))):
        raise UsageError(f"{path}: expected names of columns in the first line, got numbers; add a header, {_EXAMPLE}")
    return layout


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _data(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines after the header."""
    for number, lines in _lines(path):
        body = lines[1:] if number == 1 else lines
        if body:
            yield number + len(lines) - len(body), body


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Some lines at a time and the number of the first. None is too long, and none is empty but at the end."""
    number, rest, empty = 1, b"", 0
    with _explained(path), path.open("rb") as file:
        while True:
            content = file.read(_BLOCK)
            whole, end, left = (rest + content).rpartition(b"\n")
            if not content:
                whole, left = left, b""  # the last line need not end
            if len(left) > MAX_LINE:
                place = number + whole.count(b"\n") + bool(end)
                raise UsageError(f"{path}, line {place} has more than the {MAX_LINE:,} bytes that are read")
            rest = left
            if whole or end:
                lines = _decoded(path, whole.removeprefix(_BOM) if number == 1 else whole, number)
                count = len(lines)
                while lines and not lines[-1].strip():
                    lines.pop()
                if lines:
                    if "" in lines:
                        empty = empty or number + lines.index("")
                    if empty:
                        raise UsageError(f"{path}, line {empty} is empty; remove it")
                    yield number, lines
                if len(lines) < count:
                    empty = empty or number + len(lines)
                number += count
            if not content:
                return


def _decoded(path: Path, content: bytes, number: int) -> list[str]:
    try:
        lines = content.decode("utf-8").replace("\r\n", "\n").removesuffix("\r").split("\n")
    except UnicodeDecodeError as error:
        place = number + content.count(b"\n", 0, error.start)
        raise UsageError(f"{path}, line {place} is no UTF-8 text; save the table with that encoding") from error
    for place, line in enumerate(lines) if b'"' in content else ():
        if line.count('"') % 2 or _UNIT in line:
            problem = "the control character U+001F" if _UNIT in line else "a quote that does not end on it"
            raise UsageError(f"{path}, line {number + place} has {problem}; expected one row a line")
    return lines


def _cells(layout: Layout, lines: Sequence[str], number: int) -> list[list[str]]:
    rows = csv.reader(lines, delimiter=layout.delimiter)
    try:
        return list(rows)
    except csv.Error as error:
        raise UsageError(f"{layout.line(number + max(0, rows.line_num - 1))}: {error}") from error


def _numbers(layout: Layout, chosen: NDArray[np.bool_]) -> Iterator[NDArray[np.float32]]:
    start = 0
    for number, lines in _data(layout.path):
        places = np.flatnonzero(chosen[start : start + len(lines)])
        start += len(lines)
        if len(places):
            picked, at = [lines[place] for place in places], number + places
            values = _parsed(layout, picked, at)
            yield floats(values, partial(_cell, layout, at))
    if start != len(chosen):
        raise UsageError(f"{layout.path} changed while it was read; run again")


def _line(layout: Layout, first: int, row: int) -> str:
    return layout.line(first + row)


def _cell(layout: Layout, at: NDArray[np.int64], row: int, column: int) -> str:
    return layout.cell(int(at[row]), layout.numbers[column])


def _parsed(layout: Layout, lines: list[str], at: NDArray[np.int64]) -> NDArray[np.float64]:
    delimiter = layout.delimiter
    if any('"' in line for line in lines):
        lines, delimiter = [_UNIT.join(cells) for cells in _cells(layout, lines, int(at[0]))], _UNIT
    try:
        return _loaded(lines, delimiter, layout.numbers)
    except ValueError:
        for line, number in zip(lines, at, strict=True):
            cells = line.split(delimiter)
            for column in layout.numbers:
                _check_cell(layout.cell(int(number), column), cells[column] if column < len(cells) else "")
        raise UsageError(f"{layout.path} changed while it was read; run again") from None


def _loaded(lines: Sequence[str], delimiter: str, columns: Sequence[int]) -> NDArray[np.float64]:
    """By numpy's parser, which is written in C: two to three times as fast as Python's floats."""
    loaded: Any = np.loadtxt(lines, np.float64, comments=None, delimiter=delimiter, usecols=columns, ndmin=2)
    return loaded  # type: ignore[no-any-return]


def _check_cell(where: str, cell: str) -> None:
    if not cell.strip():
        raise UsageError(f"{where} is empty; fill it in, or remove the row")
    try:
        _loaded([cell], _UNIT, [0])
    except ValueError:
        hint = "fill in what is missing, and write words as numbers"
        raise UsageError(f"{where}: expected a number, got {shown(cell.strip())!r}; {hint}") from None


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise UsageError(f"{path}: {UNREADABLE}") from error
    except csv.Error as error:
        raise UsageError(f"{path}: its header cannot be read: {error}") from error
