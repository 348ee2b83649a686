"""The commands that train nothing: what there is, what data is here, does a learner keep its promises."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onepass.bench.presets import PRESETS
from onepass.cli.flags import Parser, add_bad_images, fields
from onepass.data.catalog import STREAMS
from onepass.errors import RunError, UsageError
from onepass.methods.registry import BOUNDARIES, METHODS, canonical, method_class


def _list(
    command: str, words: Sequence[str], rows: dict[str, dict[str, Any]], headings: Mapping[str, str], about: str
) -> None:
    parser = Parser(prog=f"onepass {command}", description=about)
    parser.add_argument("--json", action="store_true", help="as one JSON document")
    if parser.parse(words).json:
        print(json.dumps(rows))
    else:
        heads = [headings.get(name, name) for name in next(iter(rows.values()))]
        _show({name: [str(value) for value in row.values()] for name, row in rows.items()}, heads)


def _show(rows: dict[str, list[str]], headings: Iterable[str], first: str = "name") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for heading in (first, *headings):
        table.add_column(heading, overflow="fold")
    for name, row in rows.items():
        table.add_row(name, *row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def methods(command: str, words: Sequence[str]) -> None:
    if words and not words[0].startswith("-"):
        return _method(canonical(words[0]), words[1:])
    rows = {
        name: {
            "published": method.venue,
            "cost": f"{method.cost:g}",
            "boundaries": "used" if method.boundaries else "-",
            "keeps beyond network and memory": method.keeps,
            "what it does": method.about,
        }
        for name, method in METHODS.items()
    }
    more = "The methods there are; onepass methods METHOD shows one: its idea, its equation, its settings."
    return _list(command, words, rows, {"cost": "FLOPs / ER on cifar10"}, more)


def _method(name: str, words: Sequence[str]) -> None:
    """A method's idea, equation, needs and settings."""
    parser = Parser(prog=f"onepass methods {name}", description="What a method does, needs and costs.")
    parser.add_argument("--json", action="store_true", help="as one JSON document")
    as_json = parser.parse(words).json
    cls = method_class(name)
    method = METHODS.get(name)
    settings = {
        setting: {
            "default": entry.default,
            "presets": {stream: row[name][setting] for stream, row in PRESETS.items() if setting in row.get(name, {})},
            "help": entry.metadata["help"],
        }
        for setting, entry in fields(cls.Config).items()
    }
    facts = {
        "name": name,
        "title": method.title if method else name,
        "published": method.venue if method else "-",
        "idea": inspect.getdoc(cls) or "",
        "cost": method.cost if method else None,
        "keeps": method.keeps if method else "-",
        "boundaries": method.boundaries if method else "",
        "settings": settings,
    }
    if as_json:
        print(json.dumps(facts))
        return
    print(f"{facts['title']} ({name}), {facts['published']}\n\n{facts['idea']}\n")
    if method:
        told = f"used: {method.boundaries}; {BOUNDARIES}" if method.boundaries else "not needed"
        print(f"keeps       {'nothing' if method.keeps == '-' else method.keeps} beyond the network and the memory")
        print(f"boundaries  {told}")
        print(f"cost        {method.cost:g} times ER's training FLOPs on cifar10")
    rows = {}
    for setting, values in settings.items():
        presets = [f"{value} on {stream}" for stream, value in values["presets"].items()]
        rows["--" + setting.replace("_", "-")] = [", ".join([str(values["default"]), *presets]), values["help"]]
    _show(rows, ["default", "what it is"], "setting")


def cost(command: str, words: Sequence[str]) -> None:
    about = "Training FLOPs a step and bytes, as ratios to ER's, beside the paper's table 5. Needs no data."
    parser = Parser(prog="onepass cost", description=about)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="default: all; " + ", ".join(METHODS))
    parser.add_argument("--stream", default="cifar10", help=f"{', '.join(STREAMS)} or a path (default: cifar10)")
    parser.add_argument("--net", default="", help="resnet18, slim-resnet18 or small-cnn (default: the stream's)")
    parser.add_argument("--memory", type=int, default=1000, metavar="N", help="samples in the memory (default: 1000)")
    parser.add_argument("--average", type=float, metavar="DECAY", help="with an average of the weights beside each")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="where a path's array cache is")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    values = parser.parse(words)
    from onepass.bench.cost import counted
    from onepass.report import tables

    facts, table = counted(values.methods, values.stream, values.net, values.memory, values.average, values.data_dir)
    if values.json:
        print(json.dumps(facts))
        return
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 120).print(tables.rich_table(table))
    print("\n".join(table.notes))


def report(command: str, words: Sequence[str]) -> None:
    """Stored runs as one page."""
    parser = Parser(prog="onepass report", description="All stored runs as one self-contained page. Trains nothing.")
    parser.add_argument(
        "folders", nargs="*", type=Path, default=[Path("onepass-runs")], help="stores of runs (default: onepass-runs)"
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("report.html"), metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument("--baseline", default="", metavar="METHOD", help="also show paired differences to this method")
    values = parser.parse(words)
    from onepass.bench import store
    from onepass.files import write_text
    from onepass.report import page

    for folder in values.folders:
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder: give one that onepass run, compare or reproduce stored runs in")
    results = [result for folder in values.folders for result in store.load_all(folder)]
    if not results:
        raise UsageError(f"no stored runs in {', '.join(map(str, values.folders))}")
    write_text(values.output, page.render(results, values.baseline and canonical(values.baseline)))
    print(f"{len(results)} {'run' if len(results) == 1 else 'runs'} in {values.output}")


def streams(command: str, words: Sequence[str]) -> None:
    rows = {
        name: {
            "tasks": stream.n_tasks,
            "network": stream.net,
            "augmentation": stream.augment,
            "what it is": stream.about,
        }
        for name, stream in STREAMS.items()
    }
    _list(command, words, rows, {}, "The streams there are; a path to a folder of images or an .npz is one too.")


def data(command: str, words: Sequence[str]) -> None:
    parser = Parser(prog="onepass data", description="Bring data sets here, and see what is there.")
    parser.add_argument("action", choices=["get", "check"], help="get: download, or say how to; check: look and verify")
    parser.add_argument("stream", metavar="NAME|PATH", help=", ".join(STREAMS) + "; check takes a folder or .npz too")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="default: $ONEPASS_DATA, else ~/.cache/onepass")
    parser.add_argument("--url", default="", help="get: another address of the same file, by checksum")
    parser.add_argument("--image-size", type=int, default=0, metavar="N", help="check: side of the images")
    add_bad_images(parser)
    parser.add_argument("--json", action="store_true", help="check: one JSON document")
    values = parser.parse(words)
    from onepass.cli.progress import Bar
    from onepass.data import catalog, manage

    root = catalog.data_dir(values.data_dir)
    if values.action == "get":
        with Bar("downloading") as bar:
            print(manage.get(values.stream, root, values.url, bar.report))
        return
    with Bar("reading images, the first time only") as bar:
        facts = manage.check(values.stream, root, values.image_size, values.bad_images, bar.report)
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
    skipped = any("do not decode" in note for note in facts.get("notes", []))
    right = "all else is whole" if skipped else "nothing is wrong"
    console.print("wrong: " + "; ".join(facts["problems"]) if facts["problems"] else right)


def check(command: str, words: Sequence[str]) -> None:
    parser = Parser(prog="onepass check", description="Test a learner against every promise of the contract.")
    parser.add_argument("learner", metavar="MODULE:CLASS", help="a subclass of onepass.Learner, or a method's name")
    name = parser.parse(words).learner
    cls = method_class(name)
    from onepass.learner.checks import PROMISES, failures

    broken = 0
    for promise, problem in failures(cls):
        broken += bool(problem)
        print(f"{'broken' if problem else 'kept  '}  {promise}" + (f": {problem}" if problem else ""))
    print(f"{cls.__name__} keeps {len(PROMISES) - broken} of {len(PROMISES)} promises")
    if broken:
        raise RunError(f"{cls.__name__} breaks the contract")
