"""What readers of vectors share: float32 within limits, which column is the label, which rows test, and bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onepass.data import Source, Split, images
from onepass.data.archive import shown
from onepass.errors import UsageError
from onepass.limits import LARGEST_VALUE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from onepass.data import Blocks

    Rows = Callable[[NDArray[np.bool_]], Iterator[NDArray[np.float32]]]  # the vectors of the rows that are chosen

TEST_SHARE = 0.2
LABEL_NAMES = ("label", "class", "target", "y")
SPLIT = "split"
MAX_COLUMNS = 1 << 16
MAX_ROWS = 1 << 24
MAX_CLASSES = 1 << 16
MAX_LABEL = 1000  # letters of a name
BLOCK_BYTES = 4 << 20


def floats(block: NDArray[Any], where: Callable[[int, int], str]) -> NDArray[np.float32]:
    """Rows as float32, all within the limits; `where` names a cell that is not, by its place in the block."""
    with np.errstate(over="ignore", invalid="ignore"):
        x = block.astype(np.float32, copy=False)
        good = np.abs(x) <= LARGEST_VALUE  # which a NaN is not
    if not good.all():
        row, column = (int(place) for place in np.argwhere(~good)[0])
        value = block[row, column]
        problem = "which is no number to learn from; fill it in, or remove the row"
        if np.isfinite(value):
            problem = f"larger than {LARGEST_VALUE:g} in size; scale its column, or remove the row"
        raise UsageError(f"{where(row, column)} is {value}, {problem}")
    return x


def label_column(path: Path, names: Sequence[str]) -> tuple[int, int | None]:
    """Which column holds the labels, and which tells the split if one does."""
    spelled = [name.strip().lower() for name in names]
    labels = [place for place, name in enumerate(spelled) if name in LABEL_NAMES]
    if len(labels) > 1:  # beside another, y is a coordinate
        labels = [place for place in labels if spelled[place] != "y"] or labels
    splits = [place for place, name in enumerate(spelled) if name == SPLIT]
    for places in (labels, splits):
        if len(places) > 1:
            both = " and ".join(repr(shown(names[place])) for place in places[:5])
            what = "labels" if places is labels else "split"
            raise UsageError(f"{path}: expected one column of the {what}, got {both}; remove or rename the others")
    split = splits[0] if splits else None
    if labels:
        return labels[0], split
    rest = [place for place in range(len(names)) if place != split]
    if not rest:
        raise UsageError(f"{path}: expected a column of labels ({', '.join(LABEL_NAMES)}, or the last one), got none")
    return rest[-1], split


@dataclass
class Labels:
    """Labels as they are read, some rows at a time: a number for each name, in the order of their arrival."""

    path: Path
    index: dict[str, int] = field(default_factory=dict)
    parts: list[NDArray[np.int32]] = field(default_factory=lambda: [np.zeros(0, dtype=np.int32)])
    n: int = 0

    def add(self, names: Sequence[str], where: Callable[[int], str]) -> None:
        """`where` names one of these rows, for messages."""
        known = len(self.index)
        index = self.index
        ids = np.array([index.setdefault(name, len(index)) for name in names], dtype=np.int32)
        for name in list(index)[known:] if len(index) > known else ():
            if not name or len(name) > MAX_LABEL:
                row = names.index(name)
                problem = f"a label of {len(name)} letters" if name else "no label"
                raise UsageError(f"{where(row)} has {problem}; expected 1 to {MAX_LABEL} letters")
        if len(index) > MAX_CLASSES:
            hint = "is it a number to predict, or an identifier?"
            raise UsageError(f"{self.path}: its labels have more than {MAX_CLASSES:,} different values; {hint}")
        self.parts.append(ids)
        self.n += len(ids)
        if self.n > MAX_ROWS:
            raise UsageError(f"{self.path} has more than the {MAX_ROWS:,} rows that are read; save it as .npy or .npz")


def ordered(names: Sequence[str]) -> list[str]:
    """Names of classes in order: by value if all are whole numbers, else as `by_numbers` sorts."""
    try:
        return sorted(names, key=lambda name: (int(name), name))
    except ValueError:
        return sorted(names, key=images.by_numbers)


def source(
    path: Path,
    labels: Labels,
    is_test: NDArray[np.bool_] | None,
    width: int,
    rows: Rows,
    called: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> Source:
    """A table as a source: a fifth of each class is held out for testing, unless a column told the split.

    `called` are the names of classes where the file has names for its labels.
    """
    found = ordered(list(labels.index))
    names = tuple((called or {}).get(label, label) for label in found)
    if len(labels.index) < 2:
        only = "".join(f", {shown(name)!r}" for name in labels.index)
        raise UsageError(f"{path} has {'only one class' if only else 'no rows'}{only}; a stream needs at least two")
    rank = {label: place for place, label in enumerate(found)}
    y = np.array([rank[label] for label in labels.index], dtype=np.int64)[np.concatenate(labels.parts)]
    if is_test is None:
        is_test = images.held_out(y, names, TEST_SHARE, "npz", path, "row")
        share = f"{TEST_SHARE:.0%} of each class were held out for testing (seed {images.SEED})"
        notes = (*notes, f"no column {SPLIT}: {share}")
    for side, chosen in (("train", ~is_test), ("test", is_test)):
        missing = np.flatnonzero(np.bincount(y[chosen], minlength=len(names)) == 0)
        if len(missing):
            raise UsageError(f"{path}: no {side} rows of class {shown(names[missing[0]])!r}; every class needs both")
    train, test = (
        Split(int(chosen.sum()), (width,), partial(_blocks, path, rows, y, chosen), dtype="float32")
        for chosen in (~is_test, is_test)
    )
    return Source(names, train, test, tuple(notes))


def _blocks(path: Path, rows: Rows, y: NDArray[np.int64], chosen: NDArray[np.bool_]) -> Blocks:
    labels, start = y[chosen], 0
    for x in rows(chosen):
        end = start + len(x)
        if end > len(labels):
            break
        yield x, labels[start:end]
        start = end
    else:
        if start == len(labels):
            return
    raise UsageError(f"{path} changed while it was read; run again")
