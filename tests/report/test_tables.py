"""One small table in every form, character by character."""

from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from onepass.bench.metrics import Summary, summarise
from onepass.report.tables import FORMATS, Cell, Table, csv_text, escaped, format_spread, latex, markdown, rich_table

TABLE = Table(
    "digits, 5 tasks",
    ["method", "final accuracy %", "p"],
    [
        [Cell("ER_x & co"), Cell("66.2 ± 9.1"), Cell("< 0.001")],
        [Cell("ER-FSL"), Cell("83.3 ± 5.9", bold=True), Cell("a|b, c")],
    ],
    ["mean ± interval", "n = 5"],
)


def test_markdown_line_by_line() -> None:
    assert markdown(TABLE).splitlines() == [
        "digits, 5 tasks",
        "",
        "| method | final accuracy % | p |",
        "| --- | ---: | ---: |",
        "| ER_x & co | 66.2 ± 9.1 | < 0.001 |",
        r"| ER-FSL | **83.3 ± 5.9** | a\|b, c |",
        "",
        "mean ± interval",
        "",
        "n = 5",
    ]


def test_latex_line_by_line() -> None:
    assert latex(TABLE).splitlines() == [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        r"\caption{digits, 5 tasks}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"method & final accuracy \% & p \\",
        r"\midrule",
        r"ER\_x \& co & 66.2 $\pm$ 9.1 & $<$ 0.001 \\",
        r"ER-FSL & \textbf{83.3 $\pm$ 5.9} & a\textbar{}b, c \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\smallskip{\footnotesize mean $\pm$ interval}",
        r"\par\smallskip{\footnotesize n = 5}",
        r"\end{table}",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("50 % & #1_a", r"50 \% \& \#1\_a"),
        ("${x}^2~", r"\$\{x\}\textasciicircum{}2\textasciitilde{}"),
        ("a\\b", r"a\textbackslash{}b"),
        ("p < 0.05 > 0", "p $<$ 0.05 $>$ 0"),
        ("1 ± 2", r"1 $\pm$ 2"),
        ("-3.1 ± 0.2", r"$-$3.1 $\pm$ 0.2"),
        ("FINE-TUNE i-blurry-50-10 1e-05", "FINE-TUNE i-blurry-50-10 1e-05"),
        ("run --memory 100", "run -{}-memory 100"),
        ("[ER]", "{[}ER]"),
        ("IID++", "IID++"),
    ],
)
def test_latex_shows_what_the_text_says(text: str, expected: str) -> None:
    assert escaped(text) == expected


def test_csv_has_a_column_for_each_number_behind_a_figure() -> None:
    known = Cell("66.2 ± 9.1 (70.0)", numbers={"mean": 66.2, "±": 9.1, "n": 3, "printed": 70.0})
    table = Table("", ["", "CIFAR-10"], [[Cell("ER"), known], [Cell("MIR"), Cell("n/a")]])
    assert csv_text(table) == ",CIFAR-10 mean,CIFAR-10 ±,CIFAR-10 n,CIFAR-10 printed\nER,66.2,9.1,3,70\nMIR,,,,\n"


def test_csv_reads_back_as_the_cells() -> None:
    assert csv_text(TABLE) == ('method,final accuracy %,p\nER_x & co,66.2 ± 9.1,< 0.001\nER-FSL,83.3 ± 5.9,"a|b, c"\n')
    assert list(csv.reader(io.StringIO(csv_text(TABLE))))[2] == ["ER-FSL", "83.3 ± 5.9", "a|b, c"]


def test_a_terminal_shows_bold_cells_bold_and_brackets_as_they_are() -> None:
    out = io.StringIO()
    console = Console(width=100, file=out, force_terminal=True, color_system="standard")
    console.print(rich_table(Table("all [bold]", ["a", "b"], [[Cell("[red]x"), Cell("1 ± 2", bold=True)]])))
    shown = out.getvalue()
    assert "all [bold]" in shown
    assert "[red]x" in shown
    assert "\x1b[1m1 ± 2\x1b[0m" in shown
    assert "\x1b[1m[red]x" not in shown


def test_a_narrow_terminal_breaks_lines_but_hides_nothing() -> None:
    table = Table("t", ["method", "a long heading %", "runs"], [[Cell("FINE-TUNE"), Cell("12.3 ± 4.5"), Cell("17")]])
    out = io.StringIO()
    console = Console(width=30, file=out)
    console.print(rich_table(table))
    words = out.getvalue().split()
    assert {"FINE-TUNE", "12.3", "±", "4.5", "17", "runs"} <= set(words)


def test_names_are_no_markup_and_no_commands_to_a_terminal() -> None:
    hostile = Table("t", ["a", "b"], [[Cell("<img src=x>"), Cell("\x1b[31mred\nline")]])
    text = markdown(hostile)
    assert "| &lt;img src=x> | \\x1b[31mred line |" in text
    assert "\x1b" not in latex(hostile)


def test_figures_are_in_per_cent_with_a_sign_where_asked() -> None:
    assert format_spread(Summary(0.4567, 0.0123, 3)) == "45.7 ± 1.2"
    assert format_spread(Summary(0.5, None, 3)) == "50.0 ± n/a"
    assert format_spread(Summary(0.05, 0.01, 3), "+") == "+5.0 ± 1.0"
    assert format_spread(Summary(-0.05, 0.01, 3), "+") == "-5.0 ± 1.0"
    assert format_spread(None) == "n/a"


def test_one_and_two_runs_are_shown_as_they_are() -> None:
    assert format_spread(summarise([0.5])) == "50.0"
    assert format_spread(summarise([0.4, 0.5])) == "40.0, 50.0"
    assert format_spread(summarise([-0.1, 0.1]), "+") == "-10.0, +10.0"
    assert format_spread(summarise([0.4, 0.5, 0.6])) == "50.0 ± 24.8"


def test_the_forms_by_their_suffix() -> None:
    assert {kind: form(TABLE) for kind, form in FORMATS.items()} == {
        "md": markdown(TABLE),
        "tex": latex(TABLE),
        "csv": csv_text(TABLE),
    }


def test_a_comparison_fits_a_terminal_of_80_columns_with_every_column() -> None:
    heads = ["method", "final accuracy %", "forgetting %", "backward transfer %", "just after learning %"]
    heads += ["lowest class %", "MB held", "runs"]
    cells = ["FINE-TUNE", "17.9 ± 4.0", "93.0 ± 8.0", "-93.0 ± 8.0", "92.3 ± 7.9", "41.4 ± 31.5", "0.3", "5"]
    console = Console(width=80, file=io.StringIO())
    console.print(rich_table(Table("digits", heads, [[Cell(text) for text in cells]])))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "runs" in shown
    assert all(word in shown for cell in cells for word in cell.split(" "))
