"""`onepass data`: bring data sets here, and see what is there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onepass.cli.console import console
from onepass.cli.flags import Parser, add_bad_images
from onepass.data.catalog import STREAMS
from onepass.errors import RunError
from onepass.text import printable


def data(command: str, words: Sequence[str]) -> None:
    parser = Parser(prog="onepass data", description="Download data sets, and check what is there.")
    parser.add_argument("action", choices=["get", "check"], help="get: download, or say how to; check: read and verify")
    parser.add_argument("stream", metavar="NAME|PATH", help=", ".join(STREAMS) + "; check takes a path too")
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
    with Bar("reading, the first time only") as bar:
        facts = manage.check(values.stream, root, values.image_size, values.bad_images, bar.report)
    if values.json:
        print(json.dumps(facts))
    else:
        _show_data(facts)
    if facts["problems"]:
        raise RunError("; ".join(facts["problems"]))


def _show_data(facts: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    counts, shape = facts["classes"], facts["image_size"]
    samples = "images" if len(shape) == 3 else "vectors"
    table = Table(box=box.SIMPLE_HEAD, show_footer=True)
    totals = {split: sum(row[split] for row in counts.values()) for split in ("train", "test")}
    table.add_column(f"{len(counts)} classes", "all")
    for split, total in totals.items():
        table.add_column(f"{split} {samples}", f"{total:,}", justify="right")
    for name, row in counts.items():
        table.add_row(Text(printable(name)), f"{row['train']:,}", f"{row['test']:,}")
    console().print(table)
    print(printable(f"{facts['stream']}: {facts['form']}; {samples} of {' x '.join(map(str, shape))}"))
    if "domains" in facts:
        sizes = (f"{name} ({row['train']:,} and {row['test']:,})" for name, row in facts["domains"].items())
        print(printable(f"domains (training and test {samples}): {', '.join(sizes)}"))
    for note in facts.get("notes", []):
        print(printable(f"note: {note}"))
    skipped = any("do not decode" in note for note in facts.get("notes", []))
    right = "all else is whole" if skipped else "nothing is wrong"
    print(printable("wrong: " + "; ".join(facts["problems"])) if facts["problems"] else right)
