"""A person's own table in a .parquet: columns of numbers, or one column of lists of equal length, and the labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onepass.data import BadImages, LocatedFiles, Source
from onepass.data.archive import shown
from onepass.data.parquet import arrow, class_names, explained
from onepass.data.parquet_footer import list_lengths
from onepass.data.vectors import BLOCK_BYTES, MAX_COLUMNS, MAX_LABEL, MAX_ROWS, Labels, floats, label_column, source
from onepass.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_RATIO = 1040  # bytes of vectors for each byte of the file, as an .npz may have
FREE_BYTES = 1 << 28  # that any file may unpack to
_BUFFER = 1 << 20  # bytes of a column read at a time
_ROWS = 1 << 16  # labels read at a time
_INDEX = "__index_level_"  # pandas' own


@dataclass(frozen=True)
class Layout:
    """What the schema tells."""

    path: Path
    columns: tuple[str, ...]  # of numbers, or one of lists
    width: int
    lists: bool
    label: str
    split: str
    unused: tuple[str, ...]

    def cell(self, start: int, row: int, column: int) -> str:
        name = self.columns[0 if self.lists else column]
        return f"{self.path}, row {start + row} (from 0), column {shown(name)!r}"


def find(path: Path, image_size: int = 0, bad_images: BadImages = "skip") -> LocatedFiles | None:
    """The file as it is."""
    return LocatedFiles("parquet", (path,), partial(_read, path)) if path.is_file() else None


def _read(path: Path) -> Source:
    with explained(path), _opened(path) as file:
        layout = _layout(path, file)
        _check_size(layout, file.metadata)
        names = class_names(file.schema_arrow.metadata or {}, layout.label)
        columns = [name for name in (layout.label, layout.split) if name]
        types, kinds = arrow("pyarrow").types, file.schema_arrow
        texts = [name for name in columns if _is_text(types, kinds.field(name).type)]
    labels, tested = Labels(path), [np.zeros(0, dtype=np.bool_)]
    with explained(path), _opened(path, texts) as file:
        for batch in file.iter_batches(batch_size=_ROWS, columns=columns):
            start = labels.n
            labels.add(_words(layout, batch, layout.label, start), partial(_row, path, start))
            if layout.split:
                tested.append(_tested(layout, _words(layout, batch, layout.split, start), start))
    fit = len(set(names)) == len(names) and all(len(name) <= MAX_LABEL for name in names)
    called = {str(place): name for place, name in enumerate(names)} if fit else {}
    notes = [f"not used: the columns {', '.join(map(shown, layout.unused[:10]))}"] if layout.unused else []
    is_test = np.concatenate(tested) if layout.split else None
    return source(path, labels, is_test, layout.width, partial(_vectors, layout), called, notes)


def _opened(path: Path, texts: Sequence[str] = ()) -> Any:
    """Without a buffer a column would be read whole; without a dictionary a long word would be copied for each row."""
    return arrow().ParquetFile(path, buffer_size=_BUFFER, read_dictionary=list(texts))


def _row(path: Path, start: int, row: int) -> str:
    return f"{path}, row {start + row} (from 0)"


def _layout(path: Path, file: Any) -> Layout:
    schema, types = file.schema_arrow, arrow("pyarrow").types
    kinds = {name: kind for name, kind in zip(schema.names, schema.types, strict=True) if not name.startswith(_INDEX)}
    index = tuple(name for name in schema.names if name.startswith(_INDEX))
    if len(kinds) + len(index) < len(schema.names):
        raise UsageError(f"{path} has two columns of one name; rename one")
    if not 2 <= len(schema.names) <= MAX_COLUMNS:
        raise UsageError(f"{path}: expected 2 to {MAX_COLUMNS:,} columns, got {len(schema.names):,}")
    lists = [name for name, kind in kinds.items() if _is_list(types, kind)]
    plain = [name for name in kinds if name not in lists]
    label, split = label_column(path, plain)
    side = "" if split is None else plain[split]
    numbers = [name for name in plain if name not in (plain[label], side)]
    if len(lists) > 1:
        raise UsageError(f"{path}: expected one column of lists, got {' and '.join(map(shown, lists[:5]))}")
    for name in lists or numbers:
        kind = kinds[name].value_type if lists else kinds[name]
        if not (types.is_integer(kind) or types.is_floating(kind)):
            raise UsageError(f"{path}: column {shown(name)!r} holds {shown(str(kinds[name]))}; expected numbers")
    if not (lists or numbers):
        raise UsageError(f"{path}: expected columns of numbers beside the labels, got none")
    width = _list_width(path, lists[0]) if lists else len(numbers)
    columns, unused = (lists, (*numbers, *index)) if lists else (numbers, index)
    return Layout(path, tuple(columns), width, bool(lists), plain[label], side, tuple(unused))


def _is_list(types: Any, kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _list_width(path: Path, name: str) -> int:
    """How long all lists are, by the numbers of values and rows."""
    counts = list_lengths(path, name)
    width = next((values // rows for rows, values in counts if rows), 0)
    if not width or any(values != rows * width for rows, values in counts):
        raise UsageError(f"{path}: expected lists of one length in column {shown(name)!r}, got lists of several")
    if width > MAX_COLUMNS:
        raise UsageError(f"{path}: column {shown(name)!r} has lists of {width:,}; at most {MAX_COLUMNS:,} are read")
    return width


def _check_size(layout: Layout, metadata: Any) -> None:
    """Refuse what would fill memory or disk: a few bytes of a file can stand for a billion equal values."""
    if not 0 < metadata.num_rows <= MAX_ROWS:
        raise UsageError(f"{layout.path}: expected 1 to {MAX_ROWS:,} rows, got {metadata.num_rows:,}")
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    declared = max(4 * layout.width * metadata.num_rows, sum(max(0, group.total_byte_size) for group in groups))
    size = layout.path.stat().st_size
    if sum(group.num_rows for group in groups) != metadata.num_rows or declared > max(FREE_BYTES, MAX_RATIO * size):
        what = f"{metadata.num_rows:,} rows, {declared:,} bytes"
        raise UsageError(f"{layout.path} of {size:,} bytes declares {what}, more than is allowed; save it as .npy")


def _words(layout: Layout, batch: Any, name: str, start: int) -> list[str]:
    """Labels or sides as text."""
    compute, types = arrow("pyarrow.compute"), arrow("pyarrow").types
    column = batch.column(name)
    if column.null_count:
        row = compute.is_null(column).to_pylist().index(True)
        raise UsageError(f"{_row(layout.path, start, row)} has no {shown(name)}; fill it in, or remove the row")
    encoded = types.is_dictionary(column.type)
    kind, where = column.type.value_type if encoded else column.type, f"{layout.path}, column {shown(name)!r}"
    if not (_is_text(types, kind) or types.is_integer(kind)):
        raise UsageError(f"{where} holds {shown(str(kind))}; expected whole numbers or words")
    if not encoded:
        column = column.dictionary_encode()
    words = column.dictionary
    if _is_text(types, kind) and (longest := compute.max(compute.binary_length(words)).as_py() or 0) > 4 * MAX_LABEL:
        raise UsageError(f"{where} has a word of {longest:,} bytes; expected 1 to {MAX_LABEL} letters")
    known = [str(word).strip() for word in words.to_pylist()]
    return [known[place] for place in column.indices.to_pylist()]


def _is_text(types: Any, kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _tested(layout: Layout, words: list[str], start: int) -> NDArray[np.bool_]:
    spelled = [word.lower() for word in words]
    odd = next((place for place, word in enumerate(spelled) if word not in ("train", "test")), None)
    if odd is not None:
        where = f"{_row(layout.path, start, odd)}, column {shown(layout.split)!r}"
        raise UsageError(f"{where}: expected train or test, got {shown(words[odd])!r}")
    return np.array([word == "test" for word in spelled], dtype=np.bool_)


def _vectors(layout: Layout, chosen: NDArray[np.bool_]) -> Iterator[NDArray[np.float32]]:
    size = max(1, min(_ROWS, BLOCK_BYTES // (8 * layout.width)))
    start = 0
    with explained(layout.path), _opened(layout.path) as file:
        for batch in file.iter_batches(batch_size=size, columns=list(layout.columns)):
            values = _listed(layout, batch, start) if layout.lists else _columns(layout, batch, start)
            x = floats(values, partial(layout.cell, start))
            rows = chosen[start : start + len(x)]
            start += len(x)
            if start > len(chosen):
                break
            if rows.any():
                yield x[rows]
    if start != len(chosen):
        raise UsageError(f"{layout.path} changed while it was read; run again")


def _columns(layout: Layout, batch: Any, start: int) -> NDArray[Any]:
    columns = [batch.column(name) for name in layout.columns]
    for place, column in enumerate(columns):
        _no_nulls(column, partial(layout.cell, start, column=place))
    return np.column_stack([column.to_numpy(zero_copy_only=False) for column in columns])


def _listed(layout: Layout, batch: Any, start: int) -> NDArray[Any]:
    column = batch.column(layout.columns[0])
    _no_nulls(column, lambda row: layout.cell(start, row, 0))
    lengths = arrow("pyarrow.compute").list_value_length(column).to_numpy(zero_copy_only=False)
    if (lengths != layout.width).any():
        row = int(np.flatnonzero(lengths != layout.width)[0])
        length = f"expected a list of {layout.width}, got one of {lengths[row]}"
        raise UsageError(f"{layout.cell(start, row, 0)}: {length}")
    values = column.flatten()
    _no_nulls(values, lambda place: layout.cell(start, place // layout.width, 0))
    return values.to_numpy(zero_copy_only=False).reshape(-1, layout.width)  # type: ignore[no-any-return]


def _no_nulls(column: Any, where: Callable[[int], str]) -> None:
    if column.null_count:
        row = arrow("pyarrow.compute").is_null(column).to_pylist().index(True)
        raise UsageError(f"{where(row)} is empty; fill it in, or remove the row")
