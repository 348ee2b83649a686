"""What the pages tell a reader to type works."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

import forked
import pages
from onepass.cli.flags import Parser
from onepass.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = [page for page in PAGES if pages.blocks(page, "python", "console")]
RUN += sorted((ROOT / "docs").rglob("*.ipynb"))


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


class _Parsed(Exception):
    """The arguments are good; what would be done with them is not."""


def commands(page: Path) -> list[str]:
    text = "\n".join(code for _, code in pages.blocks(page, "", "bash")).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.startswith("onepass ") and line.split()[1] in COMMANDS]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name)
def test_every_command_on_a_page_has_arguments_that_exist(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parse = Parser.parse

    def parsed(self: Parser, arguments: Sequence[str]) -> argparse.Namespace:
        if "--help" not in arguments:
            parse(self, arguments)
        raise _Parsed

    monkeypatch.setattr(Parser, "parse", parsed)
    for line in commands(page):
        _, command, *words = shlex.split(line, comments=True)
        known = ["er" if re.fullmatch(r"\w+:[A-Z]\w*", word) else word for word in words]  # a class of the reader's
        with pytest.raises(_Parsed):
            COMMANDS[command](command, known)


@pytest.mark.system
@pytest.mark.parametrize("page", RUN, ids=name)
def test_every_code_block_of_a_page_runs_in_a_folder_of_its_own(page: Path, tmp_path: Path) -> None:
    code = forked.code(pages.start(page, tmp_path))
    assert code == 0, (tmp_path / "log").read_text()
