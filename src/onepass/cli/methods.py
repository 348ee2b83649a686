"""`onepass methods` and `onepass streams`: what there is."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onepass.bench.presets import PRESETS
from onepass.bench.scenarios import SCENARIOS
from onepass.cli.console import console
from onepass.cli.flags import Parser
from onepass.config import options
from onepass.data.catalog import PATHS, STREAMS
from onepass.methods.registry import BOUNDARIES, METHODS, canonical, method_class
from onepass.text import printable


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
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for heading in (first, *headings):
        table.add_column(heading, overflow="fold")
    for name, row in rows.items():
        table.add_row(*(Text(printable(cell)) for cell in (name, *row)))
    console().print(table)


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
        for setting, entry in options(cls.Config).items()
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
        use = f"used: {method.boundaries}; {BOUNDARIES}" if method.boundaries else "not needed"
        print(f"keeps       {'nothing' if method.keeps == '-' else method.keeps} beyond the network and the memory")
        print(f"boundaries  {use}")
        print(f"cost        {method.cost:g} times ER's training FLOPs on cifar10")
    rows = {}
    for setting, values in settings.items():
        presets = [f"{value} on {stream}" for stream, value in values["presets"].items()]
        rows["--" + setting.replace("_", "-")] = [", ".join([str(values["default"]), *presets]), values["help"]]
    _show(rows, ["default", "what it is"], "setting")


def streams(command: str, words: Sequence[str]) -> None:
    rows = {
        name: {
            "tasks": stream.n_tasks,
            "scenario": stream.scenario,
            "network": stream.net,
            "augmentation": stream.augment,
            "what it is": stream.about,
        }
        for name, stream in STREAMS.items()
    }
    scenarios = "\n".join(f"  {name:20}{about}" for name, about in SCENARIOS.items())
    about = f"The streams there are; a path to {PATHS} is one too."
    _list(command, words, rows, {}, f"{about}\n\nWhat --scenario makes of them:\n\n{scenarios}")
