"""The commands that train nothing: what there is, what data is here, does a learner keep its promises."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onepass.data.catalog import STREAMS
from onepass.errors import RunError
from onepass.flags import Parser, add_bad_images
from onepass.methods import METHODS, import_learner, method_class


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


def methods(command: str, words: Sequence[str]) -> None:
    rows = {
        name: {"in the paper": method.title, "published": method.venue, "what it does": method.about}
        for name, method in METHODS.items()
    }
    _list(command, words, rows)


def streams(command: str, words: Sequence[str]) -> None:
    rows = {
        name: {"tasks": stream.n_tasks, "network": stream.net, "views": stream.views, "what it is": stream.about}
        for name, stream in STREAMS.items()
    }
    _list(command, words, rows)


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
    from onepass.data import catalog, manage
    from onepass.progress import Bar

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
    console.print("wrong: " + "; ".join(facts["problems"]) if facts["problems"] else "nothing is wrong")


def check(command: str, words: Sequence[str]) -> None:
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
