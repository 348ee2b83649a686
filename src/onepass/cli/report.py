"""`onepass report`: stored runs as one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onepass.cli.flags import Parser
from onepass.errors import UsageError
from onepass.methods.registry import canonical


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
    from onepass.paper import stored
    from onepass.paper.printed import table1
    from onepass.report import page

    for folder in values.folders:
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder: give one that onepass run, compare or reproduce stored runs in")
    results = [result for folder in values.folders for result in store.load_all(folder)]
    if not results:
        raise UsageError(f"no stored runs in {', '.join(map(str, values.folders))}")
    compared, baseline = stored.others(results), values.baseline and canonical(values.baseline)
    write_text(values.output, page.render(compared or results, baseline, table1, stored.parts(results)))
    print(f"{len(results)} {'run' if len(results) == 1 else 'runs'} in {values.output}")
