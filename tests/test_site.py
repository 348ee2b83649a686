"""The documents as a site: built without a warning, whole, and readable from disk."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.sync_api import sync_playwright

import commands
from browser import NoBrowserError, start
from onepass.cli.main import COMMANDS, main
from onepass.methods.registry import METHODS

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")  # a worker may do tests of other files between two of these
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    [line] = re.findall(r"\t\$\(BIN\)/python -m (sphinx.*)", (ROOT / "Makefile").read_text())
    assert " -W " in line
    out = tmp_path_factory.mktemp("site")
    words = line.replace("build/site", str(out / "html")).replace("build/doctrees", str(out / "trees")).split()
    done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return out / "html"


@pytest.mark.system
@pytest.mark.xdist_group("site")
def test_every_page_is_in_the_site_and_in_its_navigation(site: Path) -> None:
    pages = [path for place in ("docs", "studies") for path in (ROOT / place).rglob("*.md")]
    menu = (site / "docs/index.html").read_text()
    for path in pages:
        built = site / path.relative_to(ROOT).with_suffix(".html")
        assert built.exists(), f"{path.name} is not in the site"
        place = str(path.relative_to(ROOT / "docs").with_suffix(".html")) if path.is_relative_to(ROOT / "docs") else ""
        assert place in ("", "index.html") or f'href="{place}"' in menu, f"{path.name} is not in the navigation"


@pytest.mark.system
@pytest.mark.xdist_group("site")
def test_every_link_inside_the_site_leads_to_a_file_and_a_place_in_it(site: Path) -> None:
    places: dict[Path, set[str]] = {}
    for page in site.rglob("*.html"):
        for link in re.findall(r'(?:href|src)="([^"]*)"', page.read_text()):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, place = unquote(link).partition("#")
            target = (page.parent / name.partition("?")[0]).resolve() if name else page
            assert target.exists(), f"{page.name}: {link}"
            if place and target.suffix == ".html":
                known = places.setdefault(target, set(re.findall(r'id="([^"]*)"', target.read_text())))
                assert place in known, f"{page.name}: {link}"


@pytest.mark.system
@pytest.mark.xdist_group("site")
def test_the_site_needs_no_server_and_no_network(site: Path) -> None:
    assert "er-fsl" in (site / "searchindex.js").read_text()  # a script, so search works from disk
    for page in (site / "index.html", site / "docs/index.html", site / "search.html"):
        assert not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//', page.read_text())


@pytest.mark.system
@pytest.mark.xdist_group("site")
def test_from_disk_in_a_browser_search_finds_and_a_heading_sorts(site: Path) -> None:
    with sync_playwright() as play:
        try:
            browser = start(play)
        except NoBrowserError as error:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))
        with browser.new_page() as page:
            page.goto((site / "search.html").as_uri() + "?q=reservoir")
            page.wait_for_selector("#search-results li a")
            page.goto((site / "docs/leaderboard.html").as_uri())
            table = page.locator("section#digits table")
            names = table.locator("tbody tr td:nth-child(2)")
            assert names.first.inner_text() == "Patch-LDA"  # the most accurate
            table.locator("th button", has_text="FLOPs / ER").click()
            assert names.first.inner_text() == "OCM"  # the costliest
            table.locator("th button", has_text="method").click()
            table.locator("th button", has_text="method").click()
            assert names.first.inner_text() == "A-GEM"
        browser.close()


def test_the_reference_has_every_command_with_every_flag() -> None:
    text = (ROOT / "docs/reference/commands.md").read_text()
    for name in COMMANDS:
        assert f"\n## onepass {name}\n" in text
        for action in commands.parser_of(name)._actions:
            assert action.dest == "help" or not action.option_strings or f"`{action.option_strings[0]}" in text


def test_commands_still_work_once_their_parsers_were_read(capsys: pytest.CaptureFixture[str]) -> None:
    commands.parser_of("methods")
    assert main(["methods", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == set(METHODS)
