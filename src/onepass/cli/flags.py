"""Flags from the settings' dataclasses, and errors that name the nearest flag."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import sys
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from onepass.bench.presets import PRESETS
from onepass.config import ReplayConfig, Settings, check_limits, choices, kinds_of, options, plain
from onepass.errors import UsageError
from onepass.methods.registry import METHODS, method_class


class Parser(argparse.ArgumentParser):
    """Misuse is an error like any other, with the nearest flag that exists."""

    settings = False  # whether it has methods' settings among its flags

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} ({self.prog} --help shows what there is)")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        values, rest = self.parse_known_args(arguments)
        for flag in rest:
            known = [name for action in self._actions for name in action.option_strings]
            near = difflib.get_close_matches(flag.partition("=")[0], known, n=1, cutoff=0.7)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            if self.settings and (owners := having(flag)):
                hint = f"; it is a setting of {', '.join(owners)}"
            self.error(f"unknown argument {flag!r}{hint}")
        return values


def having(flag: str) -> list[str]:
    """The methods that have this setting."""
    name = flag.partition("=")[0].removeprefix("--").replace("-", "_")
    return [method for method in METHODS if flag.startswith("--") and name in options(method_class(method).Config)]


def truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r}: allowed are true and false")
    return text.lower() == "true"


def add_settings(parser: Parser, configs: Mapping[str, type[Settings]]) -> list[str]:
    """A flag for each setting of the named methods, and those that all replay methods share."""
    parser.settings = True
    flags: dict[str, tuple[type[Settings], dataclasses.Field[Any]]] = {}
    known: list[type[Settings]] = [ReplayConfig, *configs.values()]
    for config in known:
        for name, entry in options(config).items():
            flags.setdefault(name, (config, entry))
    group = parser.add_argument_group(
        "settings"
        if configs
        else "settings that most methods share; METHOD --help shows all of one, with its own defaults"
    )
    for name, (config, entry) in flags.items():
        kind = typing.get_type_hints(config)[name]
        default = _defaults(name, {m: c for m, c in configs.items() if name in options(c)} or {"": config})
        _add(group, entry, kind, entry.metadata["help"] + default, plain(kind).__name__.upper())
    return list(flags)


def _defaults(name: str, configs: Mapping[str, type[Settings]]) -> str:
    """The default, of each method where they differ, and what it is on streams with a preset."""
    found = {method: options(config)[name].default for method, config in configs.items()}
    if len(set(found.values())) > 1:
        text = ", ".join(f"{method} {value}" for method, value in found.items())
    else:
        text = next(str(value) for value in found.values())
    presets = [
        f"{'' if len(found) == 1 else method + ' '}{values[method][name]} on {stream}"
        for stream, values in PRESETS.items()
        for method in found
        if name in values.get(method, {})
    ]
    return f" (default: {', '.join([text, *presets])})" if text != "None" else ""


def add_options(parser: Parser, config: Any, names: Iterable[str], **defaults: Any) -> None:
    """A flag for each of these options of a run; what is not given is not set. `defaults` are those of this command."""
    kinds = kinds_of(config)
    for name in names:
        entry = options(config)[name]
        default = defaults.get(name, entry.default)
        shown = f" (default: {default:g})" if isinstance(default, float) else f" (default: {default})"
        text = entry.metadata["help"] + (shown if default else "")
        if plain(kinds[name]) is bool:
            parser.add_argument(_flag(name), dest=name, action="store_const", const=True, help=text)
        else:
            metavar = {int: "N", float: "F"}.get(plain(kinds[name]), name.rpartition("_")[2].upper())
            _add(parser, entry, kinds[name], text, metavar)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def given(values: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Of these flags, those that were given."""
    return {name: value for name in names if (value := getattr(values, name)) is not None}


def _add(parser: argparse._ActionsContainer, entry: dataclasses.Field[Any], kind: Any, text: str, metavar: str) -> None:
    """A flag for an option, of its type and within its limits."""

    def value(word: str) -> Any:
        try:
            found = plain(kind)(word)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected {plain(kind).__name__}, got {word!r}") from None
        if found in entry.metadata["before"]:
            found = entry.metadata["before"][found]
            print(f"{_flag(entry.name)} {word} is called {found} now", file=sys.stderr)
        if isinstance(found, (int, float)):
            try:
                check_limits(entry, found)
            except UsageError as error:
                raise argparse.ArgumentTypeError(str(error)) from None
        return found

    truths = plain(kind) is bool
    parser.add_argument(
        _flag(entry.name),
        dest=entry.name,
        type=truth if truths else value,
        choices=choices(kind) or None,
        metavar=None if choices(kind) else "{true,false}" if truths else metavar,
        help=text.replace("%", "%%"),
    )


def count(word: str) -> int:
    """A whole number from 1 on."""
    if not word.isdecimal() or not int(word):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {word!r}")
    return int(word)


def count_or_none(word: str) -> int:
    """A whole number; 0 means that none is given."""
    if not word.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 on, got {word!r}")
    return int(word)


def add_execution(parser: Parser) -> None:
    """Where runs are done, from which data, and where they are stored."""
    add = parser.add_argument
    add_place(parser)
    add("--out", type=Path, default=Path("onepass-runs"), metavar="DIR", help="store of runs (default: %(default)s)")
    add("--jobs", type=count_or_none, default=0, metavar="N", help="runs side by side (default: one for each core)")
    add("--on", default="", metavar="slurm|ray|[ray://]HOST:PORT", help="do the runs on a cluster (default: here)")
    add(
        "--log",
        default="",
        metavar="csv|tensorboard|wandb",
        help="curves of every run, in its folder",
    )


def add_place(parser: Parser) -> None:
    """From which data and on which device a run is made, and how often it is saved."""
    add = parser.add_argument
    where = "where data sets are (default: $ONEPASS_DATA, else ~/.cache/onepass)"
    add("--data-dir", type=Path, metavar="DIR", help=where)
    add_bad_images(parser)
    add("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    often = "a killed run loses at most so many seconds of work (default: 30)"
    add("--checkpoint-seconds", type=float, default=30.0, metavar="S", help=often)


def add_bad_images(parser: Parser) -> None:
    what = "images that do not decode: skip and count them, or stop (default: skip)"
    parser.add_argument("--bad-images", choices=["skip", "error"], default="skip", help=what)
