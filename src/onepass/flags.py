"""Flags from the settings' dataclasses, and errors that name the nearest flag."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import typing
from collections.abc import Sequence
from typing import Any, NoReturn

from onepass.config import LearnerConfig, ReplayConfig, choices, plain
from onepass.errors import UsageError
from onepass.presets import PRESETS


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


def fields(config: type[LearnerConfig]) -> dict[str, dataclasses.Field[Any]]:
    return {entry.name: entry for entry in dataclasses.fields(config)}


def add_settings(parser: Parser, configs: dict[str, type[LearnerConfig]]) -> list[str]:
    """A flag for each setting of the named methods, and those that all replay methods share."""
    flags: dict[str, tuple[type[LearnerConfig], dataclasses.Field[Any]]] = {}
    known: list[type[LearnerConfig]] = [ReplayConfig, *configs.values()]
    for config in known:
        for name, entry in fields(config).items():
            flags.setdefault(name, (config, entry))
    group = parser.add_argument_group("settings" if configs else "settings of every method")
    for name, (config, entry) in flags.items():
        kind = typing.get_type_hints(config)[name]
        default = _defaults(name, {m: c for m, c in configs.items() if name in fields(c)} or {"": config})
        group.add_argument(
            "--" + name.replace("_", "-"),
            dest=name,
            type=plain(kind),
            choices=choices(kind) or None,
            metavar=None if choices(kind) else plain(kind).__name__.upper(),
            help=(entry.metadata["help"] + default).replace("%", "%%"),
        )
    return list(flags)


def _defaults(name: str, configs: dict[str, type[LearnerConfig]]) -> str:
    """The default, of each method where they differ, and what it is on streams with a preset."""
    found = {method: fields(config)[name].default for method, config in configs.items()}
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


def add_bad_images(parser: Parser) -> None:
    what = "images that do not decode: skip and count them, or stop (default: skip)"
    parser.add_argument("--bad-images", choices=["skip", "error"], default="skip", help=what)
