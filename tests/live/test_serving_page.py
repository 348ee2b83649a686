"""The page of a served model in a real browser: ask, teach, correct, watch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect, sync_playwright

from browser import NoBrowserError, start
from onepass.data.digits import load
from onepass.live.model import Model
from onepass.live.state import save_model
from serving_helpers import Served, image, png, served

DIGITS = load()
expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as play:
        try:
            found = start(play)
        except NoBrowserError as error:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))
        yield found
        found.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("served") / "m.onepass"
    model = Model.create((1, 8, 8), method="er-ace", memory=100)
    rows = [row for row, y in enumerate(DIGITS.y.tolist()) if y in (0, 1)][:200]
    model.learn(DIGITS.x[rows], [DIGITS.classes[y] for y in DIGITS.y[rows].tolist()])
    save_model(model, path)
    with served(path) as found:
        yield found


@pytest.fixture
def tab(browser: Any, server: Served) -> Iterator[Any]:
    """The page; at the end nothing may have gone wrong in it, and nobody else may have been asked."""
    wrong: list[str] = []
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(60_000)
    found = context.new_page()
    found.on("console", lambda message: wrong.append(f"console: {message.text}"))
    found.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    ours = server.address.partition("#")[0]
    found.on("request", lambda asked: None if asked.url.startswith((ours, "data:")) else wrong.append(asked.url))
    found.goto(server.address)
    yield found
    context.close()
    assert wrong == []


def draw(tab: Any, points: list[tuple[int, int]]) -> None:
    box = tab.locator("#pad").bounding_box()
    tab.mouse.move(box["x"] + points[0][0], box["y"] + points[0][1])
    tab.mouse.down()
    for x, y in points[1:]:
        tab.mouse.move(box["x"] + x, box["y"] + y, steps=6)
    tab.mouse.up()


ONE = [(140, 40), (140, 240)]
ZERO = [(140, 40), (200, 80), (210, 140), (200, 200), (140, 240), (80, 200), (70, 140), (80, 80), (140, 40)]


@pytest.mark.system
def test_a_picture_of_a_digit_is_answered_as_over_http(tab: Any, server: Served) -> None:
    row = int((DIGITS.y_test == 0).nonzero()[0])
    tab.set_input_files("#file", {"name": "0.png", "mimeType": "image/png", "buffer": png(DIGITS.x_test[row])})
    expect(tab.locator("#verdict")).to_contain_text("0,")
    expect(tab.locator("#odds li")).to_have_count(2)
    assert server.predict([image(DIGITS.x_test[row])]) == ["0"]


@pytest.mark.system
def test_a_drawing_is_answered_corrected_and_a_new_class_is_learned(tab: Any, server: Served) -> None:
    before = server.client.get("/v1/classes").json()
    draw(tab, ZERO)
    expect(tab.locator("#odds li").first).to_be_visible()
    tab.fill("#label", "ring")
    tab.click("#learn")
    expect(tab.locator("#taught")).to_have_text("Learned as ring")
    expect(tab.locator("#known")).to_contain_text("ring")
    expect(tab.locator("#odds")).to_contain_text("ring")
    expect(tab.locator("#events li b").first).to_have_text("ring")
    state = server.knows(before["samples"] + 1)
    assert [row["name"] for row in state["classes"]] == [*[row["name"] for row in before["classes"]], "ring"]
    # Said to be something else, the same picture is corrected: there is no new sample.
    tab.fill("#label", "0")
    tab.click("#learn")
    expect(tab.locator("#taught")).to_have_text("Learned as 0")
    counts = {row["name"]: row["samples"] for row in server.knows(before["samples"] + 1)["classes"]}
    assert counts == {**{row["name"]: row["samples"] for row in before["classes"]}, "0": counts["0"], "ring": 0}


@pytest.mark.system
def test_a_sample_in_memory_is_forgotten_by_its_button(tab: Any, server: Served) -> None:
    expect(tab.locator("#held img").first).to_be_visible()
    before = server.client.get("/v1/memory").json()["held"]
    tab.locator("#held button").first.click()
    expect(tab.locator("#memory-note")).to_contain_text(f"{before - 1} of 100 places")
    assert server.client.get("/v1/memory").json()["held"] == before - 1


@pytest.mark.system
def test_without_the_token_the_page_says_what_to_do(browser: Any, server: Served) -> None:
    with browser.new_page() as tab:
        tab.goto(server.address.partition("#")[0])
        expect(tab.locator("#notice")).to_contain_text("it holds the token")


@pytest.mark.system
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_is_wider_than_the_window(browser: Any, server: Served, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    tab = context.new_page()
    tab.goto(server.address)
    expect(tab.locator("#known li").first).to_be_visible()
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 384) == (scheme == "dark")
    context.close()


def test_the_page_is_in_one_piece(tmp_path: Path) -> None:
    from onepass.live.serving.page import page

    html, policy = page()
    assert "/* live." not in html
    assert "http://" not in html
    assert "https://" not in html
    assert "default-src 'none'" in policy
