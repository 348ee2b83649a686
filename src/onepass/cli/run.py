"""`onepass run` and `onepass compare`: train, measure and compare methods."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onepass.bench.presets import read_presets
from onepass.cli.flags import Parser, add_execution, add_settings, add_stream, fields
from onepass.config import LearnerConfig, unknown
from onepass.data.catalog import STREAMS
from onepass.data.catalog import canonical as stream_name
from onepass.errors import UsageError
from onepass.methods.registry import METHODS, canonical, method_class


def run(command: str, words: Sequence[str]) -> None:
    names = _method_names(words)
    configs = {name: method_class(name).Config for name in names}
    prog = " ".join(["onepass", command, *(names if command == "run" else [])])
    parser = Parser(prog=prog, description=_describe(command, names))
    parser.add_argument("methods", nargs=1 if command == "run" else "+", metavar="METHOD", help=", ".join(METHODS))
    _add_run_flags(parser)
    settings = add_settings(parser, configs)
    values = parser.parse(words)
    given = {name: value for name in settings if (value := getattr(values, name)) is not None}
    for name in given:
        if configs and not any(name in fields(config) for config in configs.values()):
            print(f"{', '.join(configs)}: without a memory, --{name} is not used", file=sys.stderr)
    _execute(values, configs, given)


def _execute(values: argparse.Namespace, configs: dict[str, type[LearnerConfig]], given: dict[str, Any]) -> None:
    from onepass.bench.run_config import RunConfig

    if values.runs < 1 or values.jobs < 0:
        raise UsageError(f"--runs {values.runs} --jobs {values.jobs}: at least one run, and no negative number of jobs")
    chosen = read_presets(values.preset, configs, stream_name(values.stream))
    runs = [
        RunConfig(
            method,
            stream=values.stream,
            seed=values.seed + number,
            net=values.net,
            batch=values.batch,
            tasks=values.tasks,
            scenario=values.scenario,
            class_order=values.class_order,
            fraction=values.fraction,
            image_size=values.image_size,
            validate=values.validate,
            anytime=values.anytime,
            prequential=values.prequential,
            settings={
                **chosen.get(method, {}),
                **{name: value for name, value in given.items() if name in fields(config)},
            },
        )
        for method, config in configs.items()
        for number in range(values.runs)
    ]
    from onepass.cli.session import execute
    from onepass.report import grouping
    from onepass.report import summary as report

    rivals = [method for method in configs if not grouping.reference(method)]
    if values.baseline and canonical(values.baseline) not in rivals:
        raise unknown("baseline", values.baseline, rivals, "methods that can be compared here")
    results = execute(runs, values)
    if values.json:
        print(json.dumps(report.document(results, values.baseline)))
        return
    from rich.console import Console

    from onepass.report import tables

    kinds = [kind for kind in values.format if kind in tables.FORMATS]
    paths = report.write(results, values.out, kinds, [kind for kind in values.format if kind not in kinds])
    console = Console(width=None if sys.stdout.isatty() else 120)
    shown = [report.overview(results), *([report.comparison(results, values.baseline)] if values.baseline else [])]
    for table in shown:
        console.print(tables.rich_table(table))
        print("\n".join(table.notes))
    print()
    for path in paths:
        print(f"{'table' if path.suffix[1:] in tables.FORMATS else 'picture':9}{path}")
    print(f"{'runs':9}{values.out}")


def _method_names(words: Sequence[str]) -> list[str]:
    """The methods named on the command line: the words before the first flag, else those that are known."""
    leading = []
    for word in words:
        if word.startswith("-"):
            break
        leading.append(word)
    return list(dict.fromkeys(map(canonical, leading or [word for word in words if word in METHODS])))


def _describe(command: str, names: Sequence[str]) -> str:
    known = "\n".join(f"  {name:10} {method.about}" for name, method in METHODS.items() if not names or name in names)
    what = "Train and measure a method over several runs." if command == "run" else "Several methods on equal streams."
    more = "" if names else f"\n\nA method's own settings: onepass {command} METHOD --help"
    return f"{what} Stored runs are not trained again; a stopped command continues.\n\n{known}{more}"


def _add_run_flags(parser: Parser) -> None:
    add = parser.add_argument
    names = ", ".join(STREAMS)
    add("--stream", default="digits", help=f"{names}, or a path to a folder of images or an .npz (default: digits)")
    add_stream(parser)
    add(
        "--validate",
        action="store_true",
        help="measure on a tenth of the training images, held back",
    )
    add("--runs", type=int, default=1, metavar="N", help="runs, with seeds SEED, SEED+1, ... (default: 1)")
    add("--seed", type=int, default=0, help="first seed; equal seeds mean equal streams (default: 0)")
    add(
        "--anytime",
        type=int,
        default=0,
        metavar="K",
        help="also measure every K steps, on the first 100 test images of each class (default: after tasks only)",
    )
    add("--prequential", action="store_true", help="also predict each batch before it is learned")
    wrote = "settings that onepass tune --save wrote, once for each method; flags win over them"
    add("--preset", type=Path, action="append", default=[], metavar="FILE", help=wrote)
    add("--baseline", default="", metavar="METHOD", help="also each method's paired difference to this one")
    add(
        "--format",
        nargs="+",
        default=["md", "png"],
        choices=["md", "tex", "csv", "png", "svg", "pdf"],
        metavar="F",
        help="tables as md, tex, csv; pictures as png, svg, pdf (default: md png)",
    )
    add_execution(parser)
    add("--json", action="store_true", help="print one JSON document on stdout instead of the table")
