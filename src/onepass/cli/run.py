"""`onepass run` and `onepass compare`: train, measure and compare methods."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.bench.presets import read_presets
from onepass.bench.run_config import RunConfig
from onepass.cli.console import show
from onepass.cli.flags import Parser, add_execution, add_options, add_settings, count, given
from onepass.config import Settings, options, unknown
from onepass.data.catalog import canonical as stream_name
from onepass.methods.registry import METHODS, canonical, is_reference, method_class
from onepass.text import printable

if TYPE_CHECKING:
    from onepass.bench.result import Result


def run(command: str, words: Sequence[str]) -> None:
    names = _method_names(words)
    configs = {name: method_class(name).Config for name in names}
    prog = " ".join(["onepass", command, *(names if command == "run" else [])])
    parser = Parser(prog=prog, description=_describe(command, names))
    parser.add_argument("methods", nargs=1 if command == "run" else "+", metavar="METHOD", help=", ".join(METHODS))
    _add_run_flags(parser)
    settings = add_settings(parser, configs)
    values = parser.parse(words)
    chosen = given(values, settings)
    for name in chosen:
        if configs and not any(name in options(config) for config in configs.values()):
            print(f"{', '.join(configs)}: without a memory, --{name} is not used", file=sys.stderr)
    _execute(values, configs, chosen)


def _execute(values: argparse.Namespace, configs: Mapping[str, type[Settings]], chosen: dict[str, Any]) -> None:
    asked = given(values, options(RunConfig))
    seed, stream = asked.pop("seed", 0), stream_name(asked.get("stream", "digits"))
    presets = read_presets(values.preset, configs, stream)
    runs = [
        RunConfig(
            method,
            seed=seed + number,
            **asked,
            settings={
                **presets.get(method, {}),
                **{name: value for name, value in chosen.items() if name in options(config)},
            },
        ).on(values.device)
        for method, config in configs.items()
        for number in range(values.runs)
    ]
    from onepass.cli.session import Session
    from onepass.report import summary as report

    rivals = [method for method in configs if not is_reference(method)]
    if values.baseline and canonical(values.baseline) not in rivals:
        raise unknown("baseline", values.baseline, rivals, "methods that can be compared here")
    results = Session(values).execute(runs)
    models = _keep(values, results) if values.keep else []
    if values.json:
        more = {"models": [str(path) for path in models]} if values.keep else {}
        print(json.dumps({**report.document(results, values.baseline), **more}))
        return

    from onepass.report import tables

    kinds = [kind for kind in values.format if kind in tables.FORMATS]
    paths = report.write(results, values.out, kinds, [kind for kind in values.format if kind not in kinds])
    shown = [report.overview(results), *([report.comparison(results, values.baseline)] if values.baseline else [])]
    for table in shown:
        show(table)
    print()
    for path in paths:
        print(f"{'table' if path.suffix[1:] in tables.FORMATS else 'picture':9}{printable(str(path))}")
    for path in models:
        print(f"{'model':9}{printable(str(path))}")
    print(f"{'runs':9}{printable(str(values.out))}")


def _keep(values: argparse.Namespace, results: Sequence[Result]) -> list[Path]:
    """The learners of these runs as models."""
    from onepass.bench.store import folder
    from onepass.live.kept import model_of_run

    return [model_of_run(folder(values.out, result.config), result.config.code) for result in results]


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
    add_options(parser, RunConfig, options(RunConfig))
    add("--runs", type=count, default=1, metavar="N", help="runs, with seeds SEED, SEED+1, ... (default: 1)")
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
    add("--keep", action="store_true", help="store each run's learner as a model to ask, serve and teach on")
    add("--json", action="store_true", help="print one JSON document on stdout instead of the table")
