"""The command. Flags come from the settings' dataclasses; torch is imported only when something is to be run."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from onepass import __version__
from onepass.config import LearnerConfig, ReplayConfig, choices, plain
from onepass.data.catalog import STREAMS
from onepass.errors import BadCheckpoint, BadData, RunError, UsageError
from onepass.methods import METHODS, import_learner, method_class

EXAMPLES = """\
  onepass compare finetune er er-fsl --stream digits --memory 100 --runs 5
  onepass run er-fsl --stream digits --memory 100 --gamma 0.3 --subspace 20
  onepass run er-fsl --help        the settings of one method
  onepass check mymodule:MyLearner
"""


class Parser(argparse.ArgumentParser):
    """Misuse is an error like any other, with the nearest flag that exists."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} ({self.prog} --help shows what there is)")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        values, rest = self.parse_known_args(arguments)
        for flag in rest:
            known = [name for action in self._actions for name in action.option_strings]
            near = difflib.get_close_matches(flag.partition("=")[0], known, n=1)
            self.error(f"unknown argument {flag!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        return values


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    sys.path.insert(0, "")  # a learner of your own may lie where you are
    commands = {
        "run": _run,
        "compare": _run,
        "methods": _methods,
        "streams": _streams,
        "data": _data,
        "check": _check,
    }
    parser = Parser(prog="onepass", description="Online continual learning.", epilog="examples:\n" + EXAMPLES)
    parser.add_argument("--version", action="version", version=f"onepass {__version__}")
    parser.add_argument(
        "command",
        choices=list(commands),
        metavar="COMMAND",
        help="run: one method; compare: several, paired; methods, streams: what there is; "
        "data: get and check data sets; check: a learner of your own against the contract",
    )
    try:
        command = parser.parse(words[:1]).command
        commands[command](command, words[1:])
    except UsageError as error:
        print(f"onepass: {error}", file=sys.stderr)
        return 2
    except (RunError, BadCheckpoint, BadData) as error:
        print(f"onepass: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nonepass: stopped; the same command continues where it was", file=sys.stderr)
        return 130
    return 0


def _run(command: str, words: Sequence[str]) -> None:
    names = _method_names(words)
    configs = {name: method_class(name).Config for name in names}
    prog = " ".join(["onepass", command, *(names if command == "run" else [])])
    parser = Parser(prog=prog, description=_describe(command, names))
    parser.add_argument("methods", nargs=1 if command == "run" else "+", metavar="METHOD", help=", ".join(METHODS))
    _add_run_flags(parser)
    fields = _add_settings(parser, configs)
    values = parser.parse(words)
    given = {name: value for name in fields if (value := getattr(values, name)) is not None}
    for name in given:
        if configs and not any(name in _fields(config) for config in configs.values()):
            print(f"{', '.join(configs)}: without a memory, --{name} is not used", file=sys.stderr)
    _execute(values, configs, given)


def _execute(values: argparse.Namespace, configs: dict[str, type[LearnerConfig]], given: dict[str, Any]) -> None:
    from onepass.runner import RunConfig

    if values.runs < 1 or values.jobs < 0:
        raise UsageError(f"--runs {values.runs} --jobs {values.jobs}: at least one run, and no negative number of jobs")
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
            settings={name: value for name, value in given.items() if name in _fields(config)},
        )
        for method, config in configs.items()
        for number in range(values.runs)
    ]
    from onepass import report
    from onepass.data.catalog import load
    from onepass.executors import run_many
    from onepass.progress import Bar, Display

    with Bar("reading images, the first time only") as bar:
        load(runs[0].stream, root=values.data_dir, image_size=values.image_size, progress=bar.report)
    with Display([f"{run.method} seed {run.seed}" for run in runs]) as display:
        results = run_many(
            runs,
            values.out,
            jobs=values.jobs,
            data_dir=values.data_dir,
            device=values.device,
            checkpoint_seconds=values.checkpoint_seconds,
            report=display.report,
            stop=display.stop,
        )
    if values.json:
        print(json.dumps(report.document(results)))
        return
    from rich.console import Console

    paths = report.write(results, values.out)
    Console(width=None if sys.stdout.isatty() else 120).print(report.table(results))
    print(f"{report.NOTE}\n\ntable    {paths[0]}\npicture  {paths[1]}\nruns     {values.out}")


def _method_names(words: Sequence[str]) -> list[str]:
    """The methods named on the command line: the words before the first flag, else those that are known."""
    leading = []
    for word in words:
        if word.startswith("-"):
            break
        leading.append(word)
    return list(dict.fromkeys(leading or [word for word in words if word in METHODS]))


def _describe(command: str, names: Sequence[str]) -> str:
    known = "\n".join(f"  {name:10} {method.about}" for name, method in METHODS.items() if not names or name in names)
    what = "Train and measure a method over several runs." if command == "run" else "Several methods on equal streams."
    more = "" if names else f"\n\nA method's own settings: onepass {command} METHOD --help"
    return f"{what} Stored runs are not trained again; a stopped command continues.\n\n{known}{more}"


def _add_run_flags(parser: Parser) -> None:
    add = parser.add_argument
    names = ", ".join(STREAMS)
    add("--stream", default="digits", help=f"{names}, or a path to a folder of images or an .npz (default: digits)")
    add("--tasks", type=int, default=0, metavar="N", help="number of tasks (default: the stream's, as in the paper)")
    add(
        "--scenario",
        default="",
        help="class-incremental, task-free, iid, iid++ or i-blurry-N-M, such as i-blurry-50-10 (default: the method's)",
    )
    add(
        "--class-order",
        default="shuffled",
        help="shuffled (by the seed), fixed, or every class as a,b,c",
    )
    add("--fraction", type=float, default=1.0, metavar="F", help="share of every class's training images (default: 1)")
    add("--image-size", type=int, default=0, metavar="N", help="side of the images (default: as they come)")
    add(
        "--validate",
        action="store_true",
        help="measure on a tenth of the training images, held back",
    )
    add(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="where data sets are (default: $ONEPASS_DATA, else ~/.cache)",
    )
    add("--runs", type=int, default=1, metavar="N", help="runs, with seeds SEED, SEED+1, ... (default: 1)")
    add("--seed", type=int, default=0, help="first seed; equal seeds mean equal streams (default: 0)")
    add("--net", default="", help="resnet18, slim-resnet18 or small-cnn (default: the stream's)")
    add("--batch", type=int, default=10, metavar="N", help="new samples in each step (default: 10)")
    add("--jobs", type=int, default=0, metavar="N", help="runs side by side (default: one for each core)")
    add("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    add("--out", type=Path, default=Path("onepass-runs"), metavar="DIR", help="store of runs (default: %(default)s)")
    add(
        "--checkpoint-seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="a killed run loses at most so many seconds of work (default: 30)",
    )
    add("--json", action="store_true", help="print one JSON document on stdout instead of the table")


def _fields(config: type[LearnerConfig]) -> dict[str, dataclasses.Field[Any]]:
    return {entry.name: entry for entry in dataclasses.fields(config)}


def _add_settings(parser: Parser, configs: dict[str, type[LearnerConfig]]) -> list[str]:
    """A flag for each setting of the named methods, and those that all replay methods share."""
    flags: dict[str, tuple[type[LearnerConfig], dataclasses.Field[Any]]] = {}
    known: list[type[LearnerConfig]] = [ReplayConfig, *configs.values()]
    for config in known:
        for name, entry in _fields(config).items():
            flags.setdefault(name, (config, entry))
    group = parser.add_argument_group("settings" if configs else "settings of every method")
    for name, (config, entry) in flags.items():
        kind = typing.get_type_hints(config)[name]
        default = "" if entry.default is None else f" (default: {entry.default})"
        group.add_argument(
            "--" + name.replace("_", "-"),
            dest=name,
            type=plain(kind),
            choices=choices(kind) or None,
            metavar=None if choices(kind) else plain(kind).__name__.upper(),
            help=(entry.metadata["help"] + default).replace("%", "%%"),
        )
    return list(flags)


def _list(command: str, words: Sequence[str], rows: dict[str, dict[str, Any]]) -> None:
    parser = Parser(prog=f"onepass {command}", description=f"The {command} there are.")
    parser.add_argument("--json", action="store_true", help="as one JSON document")
    if parser.parse(words).json:
        print(json.dumps(rows))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("name", *next(iter(rows.values()))):
        table.add_column(heading, overflow="fold")
    for name, row in rows.items():
        table.add_row(name, *(str(value) for value in row.values()))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _methods(command: str, words: Sequence[str]) -> None:
    rows = {
        name: {"in the paper": method.title, "published": method.venue, "what it does": method.about}
        for name, method in METHODS.items()
    }
    _list(command, words, rows)


def _streams(command: str, words: Sequence[str]) -> None:
    rows = {
        name: {"tasks": stream.n_tasks, "network": stream.net, "views": stream.views, "what it is": stream.about}
        for name, stream in STREAMS.items()
    }
    _list(command, words, rows)


def _data(command: str, words: Sequence[str]) -> None:
    parser = Parser(prog="onepass data", description="Bring data sets here, and see what is there.")
    parser.add_argument("action", choices=["get", "check"], help="get: download, or say how to; check: look and verify")
    parser.add_argument("stream", metavar="NAME|PATH", help=", ".join(STREAMS) + "; check takes a folder or .npz too")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="default: $ONEPASS_DATA, else ~/.cache/onepass")
    parser.add_argument("--url", default="", help="get: another address of the same file, by checksum")
    parser.add_argument("--image-size", type=int, default=0, metavar="N", help="check: side of the images")
    parser.add_argument("--json", action="store_true", help="check: one JSON document")
    values = parser.parse(words)
    from onepass.data import catalog, manage
    from onepass.progress import Bar

    root = catalog.data_dir(values.data_dir)
    if values.action == "get":
        with Bar("downloading") as bar:
            print(manage.get(values.stream, root, values.url, bar.report))
        return
    with Bar("reading images, the first time only") as bar:
        facts = manage.check(values.stream, root, values.image_size, bar.report)
    if values.json:
        print(json.dumps(facts))
    else:
        _show_data(facts)
    if facts["problems"]:
        raise RunError("; ".join(facts["problems"]))


def _show_data(facts: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    counts = facts["classes"]
    table = Table(box=box.SIMPLE_HEAD, show_footer=True)
    totals = {split: sum(row[split] for row in counts.values()) for split in ("train", "test")}
    table.add_column(f"{len(counts)} classes", "all")
    for split, total in totals.items():
        table.add_column(f"{split} images", f"{total:,}", justify="right")
    for name, row in counts.items():
        table.add_row(name, f"{row['train']:,}", f"{row['test']:,}")
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    channels, height, width = facts["image_size"]
    console.print(f"{facts['stream']}: {facts['form']}; images of {channels} x {height} x {width}")
    for note in facts.get("notes", []):
        console.print(f"note: {note}")
    console.print("wrong: " + "; ".join(facts["problems"]) if facts["problems"] else "nothing is wrong")


def _check(command: str, words: Sequence[str]) -> None:
    parser = Parser(prog="onepass check", description="Test a learner against every promise of the contract.")
    parser.add_argument("learner", metavar="MODULE:CLASS", help="a subclass of onepass.Learner, or a method's name")
    name = parser.parse(words).learner
    cls = method_class(name) if name in METHODS else import_learner(name)
    from onepass.checks import PROMISES, failures

    broken = 0
    for promise, problem in failures(cls):
        broken += bool(problem)
        print(f"{'broken' if problem else 'kept  '}  {promise}" + (f": {problem}" if problem else ""))
    print(f"{cls.__name__} keeps {len(PROMISES) - broken} of {len(PROMISES)} promises")
    if broken:
        raise RunError(f"{cls.__name__} breaks the contract")


if __name__ == "__main__":
    sys.exit(main())
