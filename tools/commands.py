"""Every command and its flags as Markdown, from the parsers that the command itself uses."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from onepass.cli.flags import Parser
from onepass.cli.main import COMMANDS


class _Made(Exception):
    """A command has made its parser, and is about to parse with it."""


@contextmanager
def _stopped_at_parsing() -> Iterator[list[Parser]]:
    """Commands build their parser and go on to work: here they stop in between, and the parser is kept."""
    made: list[Parser] = []

    def keep(parser: Parser, arguments: Any) -> NoReturn:
        made.append(parser)
        raise _Made

    parse = Parser.parse
    Parser.parse = keep  # type: ignore[assignment,method-assign]
    try:
        yield made
    finally:
        Parser.parse = parse  # type: ignore[method-assign]


def parser_of(command: str) -> Parser:
    with _stopped_at_parsing() as made:
        try:
            COMMANDS[command](command, [])
        except _Made:
            return made[0]
    raise AssertionError(f"{command} did not parse its arguments with onepass's parser")


def commands(_: str) -> str:
    """A section for each command; flags that an earlier command has too are told once."""
    told: dict[str, str] = {}
    return "\n\n".join(_section(name, parser_of(name), told) for name in COMMANDS)


def _section(name: str, parser: Parser, told: dict[str, str]) -> str:
    about = (parser.description or "").partition("\n\n")[0].replace("\n", " ")
    parts, own = [f"## onepass {name}", about], []
    for group in parser._action_groups:  # argparse has no public way to list them
        rows = [_row(parser, action) for action in group._group_actions if not isinstance(action, argparse._HelpAction)]
        if group.title in ("positional arguments", "options", "optional arguments"):  # 3.10 has the last
            own += rows
        elif rows:
            parts += [f"{str(group.title)[0].upper()}{str(group.title)[1:]}:", *_once("\n".join(rows), name, told)]
    return "\n\n".join([*parts[:2], *_once("\n".join(own), name, told), *parts[2:]])


def _once(rows: str, name: str, told: dict[str, str]) -> list[str]:
    """A table of these rows, or where it stands already. What a method's name may be does not tell tables apart."""
    same = rows.replace("`METHOD ...`", "`METHOD`")
    if same in told:
        return [f"As of [onepass {told[same]}](#onepass-{told[same]})."]
    told[same] = name
    return ["\n".join(["| argument | what it is |", "|---|---|", rows])]


def _row(parser: Parser, action: argparse.Action) -> str:
    text = (action.help or "") % {**vars(action), "prog": parser.prog}
    return f"| `{_written(action)}` | {_cell(text)} |".replace("``", "`")


def _written(action: argparse.Action) -> str:
    """A flag or a positional argument as one types it."""
    value = action.metavar or (",".join(map(str, action.choices)) if action.choices else action.dest.upper())
    value = f"{{{value}}}" if action.choices and not action.metavar else str(value)
    if not action.option_strings:
        return _cell(value + (" ..." if action.nargs in ("+", "*") else ""))
    takes = "" if action.nargs == 0 else f" {value}" + (" ..." if action.nargs in ("+", "*") else "")
    return _cell(", ".join(action.option_strings) + takes)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
