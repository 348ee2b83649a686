"""`onepass reproduce`: a table or figure of the paper, with our figures beside the printed ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.cli.console import show
from onepass.cli.flags import Parser, add_execution, count
from onepass.data.catalog import STREAMS
from onepass.errors import RunError, UsageError
from onepass.paper.experiments import EXPERIMENTS, experiment

if TYPE_CHECKING:
    from onepass.bench.run_config import RunConfig
    from onepass.cli.session import Session
    from onepass.paper.experiments import Experiment
    from onepass.paper.tables import StoredResults
    from onepass.report.tables import Table

NAMES = {name: about for name, (about, _) in EXPERIMENTS.items()}
NAMES["table5"] = "computation and memory beside ER's (trains nothing)"
EXAMPLES = """
examples:
  onepass reproduce table3 --scale tiny                      digits, within a minute, no download
  onepass reproduce table1 --scale small --only cifar10 --memory 1000 --runs 3
  onepass reproduce table4 --scale small --stream cifar10    another stream in place of the paper's
  onepass reproduce figure5 --plan                           what there is to do, and how long it takes
"""


def reproduce(command: str, words: Sequence[str]) -> None:
    known = "\n".join(f"  {name:8} {about}" for name, about in NAMES.items())
    about = (
        f"The paper's tables and figures. Stored runs are not trained again; a stopped command continues.\n\n{known}"
    )
    parser = Parser(prog="onepass reproduce", description=about, epilog=EXAMPLES)
    add = parser.add_argument
    add("name", choices=list(NAMES), metavar="NAME", help=", ".join(NAMES))
    add(
        "--scale",
        default="",
        help="paper (the default): its protocol; slim: slim-resnet18; small: that, a fifth; digits: all of them; tiny "
        "(budget's default): a fifth of the digits, within minutes",
    )
    add("--stream", default="", help=f"in place of the paper's data sets: {', '.join(STREAMS)} or a path")
    add("--only", nargs="+", default=[], metavar="PART", help="these columns, panels or points alone")
    add(
        "--methods",
        nargs="+",
        default=[],
        metavar="METHOD",
        help="these rows alone (not of tables 3, 4, figures 2, 4, 6)",
    )
    add(
        "--memory",
        nargs="+",
        type=int,
        default=[],
        metavar="N",
        help="these of the paper's memories alone (table1, table2)",
    )
    add("--runs", type=count, default=0, metavar="N", help="runs for each figure (default: the scale's)")
    add("--plan", action="store_true", help="say what there is to do and how long it takes, and stop")
    add("--stored", action="store_true", help="show what is stored, and train nothing")
    add_execution(parser)
    add("--json", action="store_true", help="print one JSON document on stdout instead of tables")
    values = parser.parse(words)
    values.scale = values.scale or ("tiny" if values.name == "budget" else "paper")
    if values.name == "table5":
        _cost(values)
        return
    from onepass.paper.scales import Selection
    from onepass.paper.tables import check

    parts = (tuple(values.only), tuple(values.methods), tuple(values.memory))
    wanted = experiment(values.name, Selection(values.scale, values.stream, *parts, values.runs))
    from onepass.cli.session import Session

    session = Session(values)
    results = session.stored(wanted.runs)
    check(wanted, wanted.found(results))
    _say_plan(wanted, wanted.found(results), session)
    if values.plan:
        return
    if not values.stored:
        places = {run: f"{cell.row}, {cell.column}" for cell in wanted.cells for run in cell.runs}
        names = [f"{places[run]}, seed {run.seed}" for run in wanted.runs]
        try:
            results = [*session.execute(wanted.runs, names, results)]
        except RunError:  # the others are done
            with suppress(UsageError):
                _show(wanted, wanted.found(session.stored(wanted.runs, quiet=True)), values)
            raise
    _show(wanted, wanted.found(results), values)


def _say_plan(wanted: Experiment, found: StoredResults, session: Session) -> None:
    """Before anything is trained: how much is stored, how much is left, and how long that takes."""
    left: list[RunConfig] = [config for config in wanted.runs if config not in found]
    values = session.values
    rest = "not run" if values.stored else "to do"
    line = f"{wanted.title}: {len(wanted.runs)} runs, {len(found)} stored, {len(left)} {rest}"
    print(line + (f"; {_time(left, found, session)}" if left and not values.stored else ""), file=sys.stderr)
    print(wanted.note, file=sys.stderr)


def _time(left: Sequence[RunConfig], found: StoredResults, session: Session) -> str:
    from onepass.host import cores
    from onepass.paper.estimate import in_words, seconds

    values = session.values
    try:
        session.read(left)
    except UsageError as error:
        if values.plan:
            return f"how long that takes cannot be said without the data: {error}"
        raise
    side = 1 if values.on else min(values.jobs or cores(), len(left))
    time = in_words(seconds(left, found.values(), session.datasets) / side)
    return f"about {time}, " + (f"{side} side by side" if not values.on else "on one core")


def _show(wanted: Experiment, found: StoredResults, values: Any) -> None:
    """The table, the paper's claims and the figure: on the terminal and as files."""
    from onepass.files import write_text
    from onepass.paper import figures
    from onepass.paper.tables import table, verdicts
    from onepass.report import plots, tables

    shown = [part for part in (table(wanted, found), verdicts(wanted, found)) if part is not None]
    paths, document = _write(shown, values), _document(wanted, found, shown)
    if wanted.name in figures.FIGURES:
        figure = figures.draw(wanted, found)
        for suffix in ("png", "svg", "pdf"):
            paths.append(paths[0].with_suffix(f".{suffix}"))
            plots.save(figure, paths[-1])
        points = figures.points(figure)
        rows = [[tables.Cell(str(value)) for value in point.values()] for point in points]
        paths.append(paths[0].with_name(f"{paths[0].stem}-points.csv"))
        write_text(paths[-1], tables.csv_text(tables.Table("", [*figures.POINT], rows)))
        document["points"] = points
    _publish(shown, paths, document, values)


def _write(shown: Sequence[Table], values: Any) -> list[Path]:
    """A table, and the claims about it, in every format."""
    from onepass.files import write_text
    from onepass.report import tables

    cut = ["part"] if values.only or values.methods or values.memory else []  # beside the whole table
    name = "-".join([values.name, values.scale, *([Path(values.stream).name] if values.stream else []), *cut])
    paths = []
    for part, end in zip(shown, ("", "-claims"), strict=False):
        for suffix, render in tables.FORMATS.items():
            paths.append(values.out / f"{name}{end}.{suffix}")
            write_text(paths[-1], render(part))
    return paths


def _publish(shown: Sequence[Table], paths: Sequence[Path], document: Any, values: Any) -> None:
    if values.json:
        print(json.dumps(document))
        return
    for part in shown:
        show(part, 200)
    print("\n" + "\n".join(map(str, paths)))


def _document(wanted: Experiment, found: StoredResults, shown: Sequence[Any]) -> dict[str, Any]:
    from onepass.paper.tables import by_seed

    cells = [
        {
            "row": cell.row,
            "column": cell.column,
            "printed": {name: list(value) for name, value in cell.printed.items()},
            "ours": {name: by_seed(cell, measure, found) for name, measure in wanted.measures.items()},
        }
        for cell in wanted.cells
    ]
    claims = [
        dict(zip(shown[1].heads, (cell.text for cell in row), strict=True)) for part in shown[1:] for row in part.rows
    ]
    return {"name": wanted.name, "title": wanted.title, "note": wanted.note, "cells": cells, "claims": claims}


def _cost(values: Any) -> None:
    from onepass.cli.progress import Bar
    from onepass.paper.scales import SCALES, Selection
    from onepass.paper.table5 import counted

    if values.only or values.memory or values.runs or values.plan or values.stored:
        given = "--only, --memory, --runs, --plan and --stored do not apply; --methods does"
        raise UsageError(f"table5 trains nothing: {given}")
    selection = Selection(values.scale, values.stream)
    [(_, stream)] = selection.streams(["cifar10"])
    methods = values.methods or ["er", "er-ace", "obc", "ocm", "pcr", "er-fsl"]
    with Bar("counting") as bar:
        facts, table = counted(
            methods, stream, SCALES[selection.scale].net, data_dir=values.data_dir, progress=bar.report
        )
    shown = [replace(table, title=f"Table 5: {table.title}")]
    _publish(shown, _write(shown, values), facts, values)
