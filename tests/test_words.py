"""How the pages are written: short sentences, short lines, and the field's words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LONGEST_LINE, LONGEST_SENTENCE = 120, 30
CODE = re.compile(r"^```.*?^```$|<!-- generated: .*?<!-- /generated -->", re.DOTALL | re.MULTILINE)
INSTEAD = {  # of a word that is ours alone, the field's
    r"(?<!Dual )views?": "augmentation",
    r"rivals?": "method, baseline",
    r"seams?": "hook method",
    r"promis(?:e|es|ed)": "contract check, guarantee",
    r"readings|our reading": "interpretation",
    r"needed is": "Expected X, got Y.",
}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """The page without code and generated blocks; `code` in a sentence counts as a word."""
    return re.sub(r"`[^`]*`", "X", CODE.sub("", page.read_text()))


def sentences(text: str) -> Iterator[str]:
    text = re.sub(r"^(?:\||#|!\[|<).*$", "", text, flags=re.MULTILINE)  # tables, headings, pictures
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for paragraph in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.)\s", text):
        yield from re.split(r"(?<=[.!?])\S*\s+(?=[A-Z\[*(\"])", " ".join(paragraph.split()))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_has_no_long_line_outside_of_tables_and_code(page: Path) -> None:
    lines = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE).splitlines()
    assert [line for line in lines if len(line) > LONGEST_LINE and not line.startswith("|")] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_has_no_long_sentence(page: Path) -> None:
    count = {one: len(re.findall(r"[\w%'’-]*[A-Za-z][\w%'’-]*", one)) for one in sentences(prose(page))}
    assert {one: words for one, words in count.items() if words > LONGEST_SENTENCE} == {}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_uses_the_words_of_the_field(page: Path) -> None:
    found = {ours: re.findall(rf"\b(?:{ours})\b.*", prose(page), re.IGNORECASE) for ours in INSTEAD}
    assert {INSTEAD[ours]: lines for ours, lines in found.items() if lines} == {}
