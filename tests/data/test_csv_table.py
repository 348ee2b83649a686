"""Tables as text: which column is what, rows as the vectors that an .npz gives, bad cells by line and column."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from onepass.data import Dataset, Source, Split, csv_table, vectors
from onepass.data.catalog import Datasets
from onepass.errors import UsageError

Any = npt.NDArray[np.generic]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4)) * 10.0 ** RNG.integers(-6, 6, (30, 4))
WORDS = np.array(["cat", "dog", "cow"])[np.arange(30) % 3]


def table(path: Path, rows: list[list[object]], header: str, delimiter: str = ",", quoted: bool = False) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(header + "\n")
        csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=1 if quoted else 0).writerows(rows)
    return path


def numbers(place: int = 4) -> list[list[object]]:
    """All rows with their label at a place."""
    rows: list[list[object]] = [[repr(float(value)) for value in row] for row in X]
    for row, word in zip(rows, WORDS, strict=True):
        row.insert(place, word)
    return rows


def source(path: Path) -> Source:
    found = csv_table.find(path)
    assert found is not None
    assert found.files == (path,)
    return found.read()


def whole(split: Split) -> tuple[Any, list[int]]:
    blocks = list(split.blocks())
    return np.concatenate([x for x, _ in blocks]), np.concatenate([y for _, y in blocks]).tolist()


def loaded(path: Path) -> Dataset:
    return Datasets(path.parent / "data").load(str(path))


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        loaded(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def text(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.fixture
def reference(tmp_path: Path) -> Dataset:
    """The same rows in an .npz."""
    np.savez(tmp_path / "reference.npz", x=X, y=WORDS)
    return loaded(tmp_path / "reference.npz")


@pytest.mark.parametrize(
    ("header", "place"),
    [
        ("a,b,c,d,label", 4),
        ("label,a,b,c,d", 0),
        ("a,b,Class,c,d", 2),
        ("a, target ,b,c,d", 1),
        ("a,b,c,y,d", 3),
        ("x,y,z,w,label", 4),
        ("a,b,c,d,species", 4),
        ("0,1,2,3,label", 4),
    ],
)
def test_a_table_gives_what_an_npz_gives_wherever_its_label_is(
    tmp_path: Path, header: str, place: int, reference: Dataset
) -> None:
    data = loaded(table(tmp_path / "a.csv", numbers(place), header))
    assert (data.x.dtype, tuple(data.x.shape)) == (torch.float32, (24, 4))
    assert data.classes == ("cat", "cow", "dog")
    assert data.digest == reference.digest


@pytest.mark.parametrize("block", [64, 301, 1000, 10**6])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("quoted", [False, True])
def test_blocks_delimiters_and_quotes_change_nothing(
    tmp_path: Path, block: int, delimiter: str, quoted: bool, reference: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_table, "_BLOCK", block)
    path = table(tmp_path / "a.csv", numbers(), delimiter.join(["a", '"b"', "c", "d", "label"]), delimiter, quoted)
    assert loaded(path).digest == reference.digest


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.replace(b"\n", b"\r\n"),
        lambda content: b"\xef\xbb\xbf" + content,
        lambda content: content[:-1],
        lambda content: content + b"\n\n\n",
        lambda content: content + b"\r\n  \r\n",
        lambda content: content.replace(b",", b", "),
    ],
    ids=["crlf", "bom", "no-end", "empty-end", "spaces-end", "spaces"],
)
def test_how_programs_differ_in_writing_changes_nothing(
    tmp_path: Path, change: Callable[[bytes], bytes], reference: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = table(tmp_path / "a.csv", numbers(), "a,b,c,d,label")
    path.write_bytes(change(path.read_bytes()))
    assert loaded(path).digest == reference.digest
    monkeypatch.setattr(csv_table, "_BLOCK", 50)
    (tmp_path / "data" / "arrays").rename(tmp_path / "elsewhere")
    assert loaded(path).digest == reference.digest


def test_odd_names_of_classes_are_kept(tmp_path: Path) -> None:
    names = ['the "best", they say', "caf\xe9", "a;b", "\N{SNOWMAN}"]
    rows: list[list[object]] = [[i, -i, names[i % 4]] for i in range(12)]
    assert set(loaded(table(tmp_path / "a.csv", rows, "a,b,label")).classes) == set(names)


def test_whole_numbers_as_labels_are_sorted_by_value(tmp_path: Path) -> None:
    rows: list[list[object]] = [[i, (10, -1, 9)[i % 3]] for i in range(30)]
    assert loaded(table(tmp_path / "a.csv", rows, "a,y")).classes == ("-1", "9", "10")


def test_a_column_of_the_split_is_obeyed_and_is_no_number(tmp_path: Path) -> None:
    sides = ["Train", "test", "train "]
    rows: list[list[object]] = [[i, sides[i // 2 % 3], f"c{i % 2}"] for i in range(12)]
    data = source(table(tmp_path / "a.csv", rows, "a,Split,label"))
    (train, y), (test, y_test) = whole(data.train), whole(data.test)
    assert train.tolist() == [[0], [1], [4], [5], [6], [7], [10], [11]]
    assert test.tolist() == [[2], [3], [8], [9]]
    assert (y, y_test) == ([0, 1] * 4, [0, 1] * 2)
    assert data.notes == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty; expected a header, such as: width,height,label"),
        ("\n\n", "is empty; expected a header"),
        ("\na,label\n1,b\n", "line 1 is empty"),
        ("a\n1\n2\n", "expected 2 to 65,536 columns in the header, got 1; they are separated by comma"),
        ("a,,label\n1,2,b\n", "column 2 has no name; name it, or leave it out (pandas: index=False)"),
        (",a,label\n0,2,b\n", "column 1 has no name"),
        ("label,class\n1,2\n", "expected one column of the labels, got 'label' and 'class'; remove or rename"),
        ("a,split,Split,y\n1,train,test,3\n", "expected one column of the split, got 'split' and 'Split'"),
        ("split,label\ntrain,b\n", "expected columns of numbers beside the labels, got none"),
        ("5.1,3.5,setosa\n4.9,3,virginica\n", "expected names of columns in the first line, got numbers"),
        ("1,2,3\n4,5,6\n", "expected names of columns in the first line, got numbers"),
        ("a,label\n", "has no rows; a stream needs at least two"),
        ("a,label\n1,b\n2,b\n", "has only one class, 'b'; a stream needs at least two"),
        ("a,label\n1,b\n2,c\n3,c\n", "class 'b' has one row; it needs at least two"),
        ("a,label\n1,b\n2\n3,c\n", "line 3: expected 2 cells as in the header, got 1"),
        ("a,label\n1,b\n2,c,\n3,c\n", "line 3: expected 2 cells as in the header, got 3"),
        ("a,label\n1,b\n\n3,c\n", "line 3 is empty; remove it"),
        ("a,label\n1,b\n  \n3,c\n", "line 3: expected 2 cells as in the header, got 1"),
        ("a,label\n1,b\n2,\n3,c\n", "line 3 has no label; expected 1 to 1000 letters"),
        ("a,label\n1,b\n2, \n3,c\n", "line 3 has no label"),
        (f"a,label\n1,b\n2,{'c' * 1001}\n", "line 3 has a label of 1001 letters; expected 1 to 1000"),
        ('a,label\n1,b\n2,"c\n3,c\n', "line 3 has a quote that does not end on it; expected one row a line"),
        ("a,label\n1,b\n2,c\rd\n", "line 3: new-line character seen"),
        ("a,label\r1,b\r2,c\r", "its header cannot be read"),
        ("a,split,label\n1,train,b\n2,val,b\n", "line 3, column 'split': expected train or test, got 'val'"),
        ("a,split,label\n1,train,b\n2,test,c\n", "no train rows of class 'c'; every class needs both"),
        ("a,split,label\n1,train,b\n2,train,c\n", "no test rows of class 'b'; every class needs both"),
        (b"a,label\n1,b\n2,\xff\n", "line 3 is no UTF-8 text"),
        (b"\xff\xfea\0,\0b\0", "line 1 is no UTF-8 text"),
        (b"PK\x03\x04 an .xlsx", "this is a zip archive; expected a text of columns"),
        ("<html>404</html>", "this is an HTML page"),
    ],
)
def test_what_is_no_such_table_is_said_with_its_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    said = refused(text(tmp_path / "a.csv", content))
    assert message in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("", "line 14, column 'b' is empty; fill it in, or remove the row"),
        (" ", "line 14, column 'b' is empty"),
        ("NA", "line 14, column 'b': expected a number, got 'NA'; fill in what is missing, and write words as numbers"),
        ("1_000", "line 14, column 'b': expected a number, got '1_000'"),
        ("1.5.2", "expected a number, got '1.5.2'"),
        ("0x10", "expected a number, got '0x10'"),
        ("\u0661", r"expected a number, got '\\u0661'"),
        ("True", "expected a number, got 'True'"),
        ("\x1b[2J", r"expected a number, got '\\x1b[2J'"),
        ("nan", "line 14, column 'b' is nan, which is no number to learn from"),
        ("-Infinity", "line 14, column 'b' is -inf, which is no number to learn from"),
        ("1e999", "line 14, column 'b' is inf, which is no number to learn from"),
        ("1e39", "line 14, column 'b' is 1e+39, larger than 1e+15"),
    ],
)
@pytest.mark.parametrize("quoted", [False, True])
@pytest.mark.parametrize("block", [60, 10**6])
def test_a_bad_cell_is_named_by_line_and_column(
    tmp_path: Path, cell: str, message: str, quoted: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_table, "_BLOCK", block)
    rows = numbers()
    rows[12][1] = cell
    assert message in refused(table(tmp_path / "a.csv", rows, "a,b,c,d,label", quoted=quoted))


def test_a_decimal_comma_is_named(tmp_path: Path) -> None:
    said = refused(table(tmp_path / "a.csv", [["1,5", "b"], ["1,5", "c"]] * 4, "a;label", ";"))
    assert "column 'a': expected a number, got '1,5'" in said


def test_a_cell_with_a_separator_inside_moves_no_other(tmp_path: Path) -> None:
    rows: list[list[object]] = [["1,5", 7, "b"], ["1,5", 8, "c"]] * 4
    said = refused(table(tmp_path / "a.csv", rows, "a,b,label", quoted=True))
    assert "column 'a': expected a number, got '1,5'" in said
    rows = [["1\x1f5", 7, "b"], ["1\x1f5", 8, "c"]] * 4
    said = refused(table(tmp_path / "a.csv", rows, "a,b,label", quoted=True))
    assert "line 2 has the control character U+001F" in said


def test_continuous_targets_are_no_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "MAX_CLASSES", 10)
    rows: list[list[object]] = [[i, i / 7] for i in range(20)]
    said = refused(table(tmp_path / "a.csv", rows, "a,price"))
    assert "its labels have more than 10 different values; is it a number to predict, or an identifier?" in said


def test_lines_columns_and_rows_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path / "a.csv", numbers(), "a,b,c,d,label")
    monkeypatch.setattr(csv_table, "_BLOCK", 50)
    monkeypatch.setattr(csv_table, "MAX_LINE", 200)
    long = table(tmp_path / "long.csv", [["1" * 400, "b"]], "a,label")
    assert "long.csv, line 2 has more than the 200 bytes that are read" in refused(long)
    monkeypatch.setattr(csv_table, "MAX_COLUMNS", 4)
    assert "expected 2 to 4 columns in the header, got 5" in refused(path)
    monkeypatch.setattr(csv_table, "MAX_COLUMNS", 5)
    monkeypatch.setattr(vectors, "MAX_ROWS", 29)
    assert "has more than the 29 rows that are read; save it as .npy or .npz" in refused(path)
    monkeypatch.setattr(vectors, "MAX_ROWS", 30)
    assert len(loaded(path).y) == 24


@pytest.mark.parametrize("change", [-1, 1])
def test_a_table_that_changes_between_the_passes_is_refused(tmp_path: Path, change: int) -> None:
    path = table(tmp_path / "a.csv", numbers(), "a,b,c,d,label")
    read = source(path)
    rows = numbers()
    table(path, rows[:-1] if change < 0 else [*rows, rows[0]], "a,b,c,d,label")
    with pytest.raises(UsageError, match=r"a\.csv changed while it was read; run again"):
        whole(read.train)


def test_a_table_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", numbers(), "a,b,c,d,label")
    before = loaded(path).digest
    rows = numbers()
    rows[0][0] = 0
    table(path, rows, "a,b,c,d,label")
    assert loaded(path).digest != before


def test_no_file_is_not_found(tmp_path: Path) -> None:
    assert csv_table.find(tmp_path / "a.csv") is None
    assert csv_table.find(tmp_path) is None
