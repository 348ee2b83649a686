"""A table as plain text cells, and what it looks like in Markdown, LaTeX, CSV and on a terminal."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from onepass.bench.metrics import FEWEST
from onepass.text import printable

if TYPE_CHECKING:
    import rich.table


@dataclass(frozen=True)
class Cell:
    text: str
    bold: bool = False
    numbers: Mapping[str, float | None] = field(default_factory=dict)  # behind the text, for CSV: "mean", "n", ...


class Spread(Protocol):
    """A summary or a difference."""

    @property
    def mean(self) -> float | None: ...
    @property
    def interval(self) -> float | None: ...
    @property
    def n(self) -> int: ...
    @property
    def values(self) -> tuple[float, ...]: ...


@dataclass(frozen=True)
class Table:
    """The first column names the row and stands left; the others are figures and stand right."""

    title: str
    heads: list[str]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)


def format_spread(found: Spread | None, sign: str = "", unit: float = 100, form: str = ".1f") -> str:
    """A share and its interval in per cent, or one or two runs as they are; `sign` is "+" for differences."""
    if found is None or found.mean is None:
        return "n/a"
    if found.n < FEWEST:
        return ", ".join(f"{unit * value:{sign}{form}}" for value in found.values or (found.mean,))
    half = "n/a" if found.interval is None else f"{unit * found.interval:{form}}"
    return f"{unit * found.mean:{sign}{form}} ± {half}"


def numbers(found: Spread | None = None) -> dict[str, float | None]:
    """The same as numbers; without a figure, empty ones in their places."""
    if found is None or found.mean is None:
        return {"mean": None, "±": None, "n": 0}
    return {"mean": 100 * found.mean, "±": None if found.interval is None else 100 * found.interval, "n": found.n}


def markdown(table: Table) -> str:
    def line(words: Sequence[str]) -> str:
        return "| " + " | ".join(words) + " |"

    def shown(cell: Cell) -> str:
        text = _for_markdown(cell.text)
        return f"**{text}**" if cell.bold else text

    lines = [line(list(map(_for_markdown, table.heads)))]
    lines.append(line(["---", *("---:" for _ in table.heads[1:])]))
    lines += [line([shown(cell) for cell in row]) for row in table.rows]
    return "\n\n".join([table.title, "\n".join(lines), *table.notes]) + "\n"


def _for_markdown(text: str) -> str:
    """As it is: no column, no markup and no control character of its own."""
    plain = printable(text).replace("\n", " ").replace("|", r"\|")
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", plain)


_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: "\\" + character for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "[": "{[}",  # at the beginning of a row it would be an option of the row's end before it
    "±": r"$\pm$",
    "<": "$<$",
    ">": "$>$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "×": r"$\times$",
    "−": "$-$",
    "γ": r"$\gamma$",
}
_MINUS = r"(?<![\w-])-(?=\d)"
_DASHES = "-(?=-)"  # two of them would be drawn as one long one
_SPECIAL = re.compile("|".join([_MINUS, _DASHES, f"[{re.escape(''.join(_LATEX))}]"]))


def escaped(text: str) -> str:
    """Text as LaTeX shows it."""

    def instead(match: re.Match[str]) -> str:
        if match[0] != "-":
            return _LATEX[match[0]]
        return "-{}" if match.string[match.end()] == "-" else "$-$"

    return _SPECIAL.sub(instead, printable(text))


def latex(table: Table) -> str:
    """A table environment; its document needs the package booktabs."""

    def line(words: Sequence[str]) -> str:
        return " & ".join(words) + r" \\"

    def shown(cell: Cell) -> str:
        return rf"\textbf{{{escaped(cell.text)}}}" if cell.bold else escaped(cell.text)

    notes = [rf"\par\smallskip{{\footnotesize {escaped(note)}}}" for note in table.notes]
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escaped(table.title)}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.heads) - 1)}}}",
        r"\toprule",
        line([escaped(head) for head in table.heads]),
        r"\midrule",
        *(line([shown(cell) for cell in row]) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        *notes,
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def csv_text(table: Table) -> str:
    """Heads and rows alone; a column of figures becomes one for each of the numbers behind them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [list(dict.fromkeys(name for cell in cells for name in cell.numbers)) for cells in _columns(table)]
    heads = [[f"{head} {name}".strip() for name in part] for head, part in zip(table.heads, names, strict=True)]
    writer.writerow(word for head, part in zip(table.heads, heads, strict=True) for word in part or [head])
    for row in table.rows:
        found = [[_plain(cell.numbers.get(name)) for name in part] for cell, part in zip(row, names, strict=True)]
        writer.writerow(word for cell, part in zip(row, found, strict=True) for word in part or [cell.text])
    return text.getvalue()


def _columns(table: Table) -> list[list[Cell]]:
    return [[row[place] for row in table.rows] for place in range(len(table.heads))]


def _plain(number: float | None) -> str:
    return "" if number is None else f"{number:.6g}"


def rich_table(table: Table) -> rich.table.Table:
    """For a terminal. Notes are not part of it: they are wider than most tables, and read better below it."""
    import rich.table
    from rich import box
    from rich.text import Text

    title = Text(printable(table.title), style="table.title")
    shown = rich.table.Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    for number, head in enumerate(table.heads):
        justify: Literal["left", "right"] = "right" if number else "left"
        longest = max(map(len, head.split()), default=0)  # narrow, but nothing hidden and no head broken in a word
        shown.add_column(Text(printable(head)), justify=justify, no_wrap=not number, overflow="fold", min_width=longest)
    for row in table.rows:
        shown.add_row(*(Text(printable(cell.text), style="bold" if cell.bold else "") for cell in row))
    return shown


FORMATS: dict[str, Callable[[Table], str]] = {"md": markdown, "tex": latex, "csv": csv_text}
