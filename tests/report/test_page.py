"""The page of a store of results: its numbers against figures worked out by hand, and itself in a real browser."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from browser import NoBrowserError, start
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.errors import UsageError
from onepass.methods.registry import METHODS
from onepass.paper import stored
from onepass.paper.printed import table1
from onepass.report import page

T2 = 4.30265273  # Student's t for 95 % and three runs


def result(method: str, seed: int = 0, matrix: list[list[float]] | None = None, **given: Any) -> Result:
    run: dict[str, Any] = {"stream": "cifar10", "net": "slim-resnet18", "settings": {}}
    for name in ("stream", "net", "fraction", "batch", "anytime", "prequential", "class_order"):
        if name in given:
            run[name] = given.pop(name)
    told = {name: given.pop(name) for name in ("protocol", "looks", "stretches", "host", "confusion") if name in given}
    config = RunConfig(method, seed=seed, **{**run, "settings": given})
    return Result(
        config=config,
        accuracy_matrix=matrix or [[0.9], [0.5, 0.7]],
        steps=10,
        seconds=1.0,
        fingerprint="bits",
        data={},
        host=told.get("host", {}),
        protocol=told.get("protocol", {}),
        anytime=told.get("looks", []),
        prequential=told.get("stretches", []),
        confusion=told.get("confusion", []),
    )


def three(method: str = "er", **settings: Any) -> list[Result]:
    """Final accuracies 0.4, 0.5 and 0.6."""
    matrices = [[[0.8], [0.3, 0.5]], [[0.9], [0.3, 0.7]], [[1.0], [0.6, 0.6]]]
    return [result(method, seed, matrix, **settings) for seed, matrix in enumerate(matrices)]


def only(results: list[Result]) -> dict[str, Any]:
    [group] = page.document(results, printed=table1)["groups"]
    assert isinstance(group, dict)
    return group


# The numbers


def test_a_group_has_mean_interval_and_n() -> None:
    group = only(three())
    assert group["n"] == 3
    half = T2 * 0.1 / 3**0.5
    assert group["summary"]["final_accuracy"] == {
        "mean": 0.5,
        "interval": pytest.approx(half, abs=1e-6),
        "text": "50.0 ± 24.8",
    }
    assert group["summary"]["forgetting"]["mean"] == 0.5  # 0.5, 0.6 and 0.4
    assert group["summary"]["prequential"] is None


def test_curves_have_bands_from_three_runs_on_and_the_runs_below() -> None:
    curve = only(three())["curve"]
    assert (curve["x"], curve["mean"], curve["runs"]) == ([1, 2], [0.9, 0.5], [])
    assert curve["interval"] == pytest.approx([T2 * 0.1 / 3**0.5] * 2, abs=1e-6)
    curve = only(three()[:2])["curve"]
    assert (curve["mean"], curve["interval"], curve["runs"]) == ([0.85, 0.45], [], [[0.8, 0.4], [0.9, 0.5]])
    assert only(three()[:1])["curve"]["runs"] == []


def test_the_matrix_is_the_mean_over_seeds() -> None:
    assert only(three())["matrix"] == [[0.9], [0.4, 0.6]]


def test_forgetting_is_told_task_by_task() -> None:
    group = only([result("er", 0, [[0.9], [0.8, 0.6], [0.2, 0.7, 0.5]])])
    assert [drop["mean"] for drop in group["drops"]] == [0.7, -0.1]
    assert group["summary"]["forgetting"]["mean"] == 0.3  # their mean
    assert only([result("iid", 0, [[0.5]])])["drops"] == []


# Of class 0 three of four are right, of class 1 one of two; then all of class 0, and none of class 1; class 2 has none.
MIXED = [[[0, 3, 2, 1], [1, 1, 2, 1], []], [[0, 4], [0, 2], []]]


def came(*names: str, order: list[int]) -> dict[str, Any]:
    """Two tasks, the second of one class."""
    return {"class_order": order, "tasks": [list(names[:-1]), list(names[-1:])]}


def test_classes_have_their_mean_accuracy_over_runs_and_all_counts_together() -> None:
    """The runs met them in two orders, so they stand in that of the data."""
    protocols = [came("c", "a", "b", order=[2, 0, 1]), came("b", "a", "c", order=[1, 0, 2])]
    runs = [result("er", seed, confusion=MIXED[seed], protocol=protocols[seed]) for seed in (0, 1)]
    found = only(runs)["classes"]
    assert (found["names"], found["begins"]) == (["a", "b", "c"], [])
    assert found["confusion"] == [[0, 7, 2, 1], [0, 2, 1, 1, 2, 1], []]
    assert found["accuracy"] == [
        {"mean": 0.875, "interval": None, "text": "75.0, 100.0"},
        {"mean": 0.25, "interval": None, "text": "50.0, 0.0"},
        None,
    ]
    assert only(runs)["summary"]["lowest_class"]["mean"] == 0.25  # 0.5 and 0


def test_classes_stand_as_they_came_if_all_runs_met_them_so() -> None:
    protocol = came("c", "a", "b", order=[2, 0, 1])
    found = only([result("er", seed, confusion=MIXED[seed], protocol=protocol) for seed in (0, 1)])["classes"]
    assert (found["names"], found["begins"]) == (["c", "a", "b"], [2])
    assert found["confusion"] == [[], [0, 1, 1, 7], [0, 1, 1, 2, 2, 1]]
    assert [one and one["mean"] for one in found["accuracy"]] == [None, 0.875, 0.25]


@pytest.mark.parametrize(
    "protocol",
    [
        {},
        {"class_order": [0, 1], "tasks": [["a", "b", "c"]]},
        {"class_order": "abc", "tasks": None},
        {"class_order": [0, 1, 2], "tasks": [["a", "a", "b"]]},
        {"class_order": [0, 1, 7], "tasks": [["a", "b"], ["c"]]},
    ],
)
def test_classes_whose_names_cannot_be_told_have_numbers(protocol: dict[str, Any]) -> None:
    assert only([result("er", 0, confusion=MIXED[0], protocol=protocol)])["classes"]["names"] == ["0", "1", "2"]


def test_runs_of_older_versions_have_no_classes_and_do_not_count_among_those_that_have() -> None:
    assert only(three())["classes"] is None
    found = only([result("er", 0), result("er", 1, confusion=MIXED[0]), result("er", 2)])["classes"]
    assert found["accuracy"][0] == {"mean": 0.75, "interval": None, "text": "75.0"}


def test_what_was_measured_on_the_way_is_there() -> None:
    looks = [{"step": 5, "accuracy": [0.6]}, {"step": 10, "accuracy": [0.8]}, {"step": 15, "accuracy": [0.2, 0.4]}]
    matrix = [[0.8], [0.4, 0.6]]
    run = result("er", 0, matrix, anytime=5, prequential=True, looks=looks, stretches=[[3, 10], [5, 10]])
    document = page.document([replace(run, steps=18)])
    summary = document["groups"][0]["summary"]
    assert summary["average_anytime"]["mean"] == pytest.approx((0.6 + 0.8 + 0.3) / 3, abs=1e-6)
    assert summary["worst_case"]["mean"] == 0.4  # the old task's 0.2 and the last one's 0.6
    assert summary["prequential"]["mean"] == 0.4
    curve = document["groups"][0]["anytime"]
    assert (curve["x"], curve["mean"], curve["begins"]) == ([5, 10, 15], [0.6, 0.8, 0.3], [15])
    curve = document["groups"][0]["prequential"]
    assert (curve["x"], curve["mean"]) == ([10, 18], [0.3, 0.5]), "the last stretch ends with the stream"
    assert [name for name, _ in document["columns"]][-3:] == ["average_anytime", "worst_case", "prequential"]
    plain = page.document(three())["columns"]
    assert plain[:2] == [["final_accuracy", "final accuracy"], ["forgetting", "forgetting"]]
    assert "average_anytime" not in dict(plain)


def test_looks_count_at_steps_that_all_runs_have() -> None:
    looks = [[{"step": step, "accuracy": [0.2]} for step in (5, 10)], [{"step": 10, "accuracy": [0.4]}]]
    runs = [result("er", seed, anytime=5, looks=looks[seed]) for seed in (0, 1)]
    assert only(runs)["anytime"]["x"] == [10]
    assert only(runs)["anytime"]["mean"] == [0.3]


def test_costs_are_those_of_the_methods_and_unknown_for_ones_own() -> None:
    groups = page.document([result("er"), result("ocm"), result("onepass.methods.er:ER")])["groups"]
    assert [group["cost"] for group in groups] == [1.0, METHODS["ocm"].cost, None]


# What is compared with what


def test_one_setting_of_a_method_has_the_methods_name_and_several_say_what_differs() -> None:
    assert page.document([result("er"), result("er-fsl")])["series"] == ["ER", "ER-FSL"]
    several = [result("er-fsl", subspace=subspace) for subspace in (100, 16, 8)] + [result("er")]
    names = ["ER", "ER-FSL, k 8", "ER-FSL, k 16", "ER-FSL, k 100"]
    assert page.document(several)["series"] == names
    both = [result("er-fsl", gamma=0.3), result("er-fsl", gamma=0.5), result("er-fsl", gamma=0.3, stream="digits")]
    assert page.document(both)["series"] == ["ER-FSL", "ER-FSL, gamma 0.5"]


def test_memories_are_panels_and_methods_without_one_stand_in_each() -> None:
    document = page.document([result("finetune"), result("er", memory=100), result("er", memory=1000)])
    assert document["series"] == ["FINE-TUNE", "ER"]
    assert document["memories"] == [100, 1000]
    places = [sorted((g["series"], g["memory"]) for g in map(document["groups"].__getitem__, panel["groups"]))
              for panel in document["panels"]]  # fmt: skip
    assert places == [[(0, 0), (1, 100)], [(0, 0), (1, 1000)]]
    [alone] = page.document([result("finetune")])["panels"]
    assert (alone["memory"], alone["groups"]) == (0, [0])


def test_different_protocols_never_stand_in_one_panel() -> None:
    runs = [result("er", fraction=0.2), result("er-fsl"), result("er-fsl", fraction=0.2), result("iid")]
    document = page.document(runs)
    assert document["streams"] == ["cifar10, slim-resnet18, 20 % of the stream", "cifar10, slim-resnet18, whole stream"]
    assert document["series"] == ["IID", "ER", "ER-FSL"]
    assert [len(panel["groups"]) for panel in document["panels"]] == [2, 2]


def test_two_folders_of_one_name_are_two_streams() -> None:
    paths = ["/data/a/photos", "/data/b/photos"]
    usual = "slim-resnet18, whole stream"
    streams = page.document([result("er", stream=path) for path in paths])["streams"]
    assert streams == [f"{path}, {usual}" for path in paths]
    assert page.document([result("er", stream=paths[0])])["streams"] == [f"photos, {usual}"]


def test_a_run_that_is_stored_twice_counts_once() -> None:
    document = page.document([*three(), *three()])
    assert document["groups"][0]["n"] == 3
    assert document["about"][:2] == ["3 runs of 1 method on cifar10.", "Stored more than once, counted once: 3."]


def test_the_best_is_named_only_where_it_is_really_better() -> None:
    worse = [result("er", seed, [[0.3 + 0.01 * seed]]) for seed in range(4)]
    close = [result("er-ace", seed, [[0.3 + 0.01 * (3 - seed)]]) for seed in range(4)]
    better = [result("er-fsl", seed, [[0.5 + 0.011 * seed]]) for seed in range(4)]
    whole = [result("iid", seed, [[0.9]]) for seed in range(4)]
    document = page.document([*worse, *better, *whole])
    [panel] = document["panels"]
    assert document["series"][document["groups"][panel["best"]]["series"]] == "ER-FSL"
    assert page.document([*worse, *close])["panels"][0]["best"] is None


# The paper


def test_differences_to_a_baseline_are_paired_by_seed() -> None:
    runs = [*three("er"), *three("er-fsl"), *three("mir", memory=100)[:1], result("iid", 0, [[0.9]])]
    runs[3:6] = [replace(one, accuracy_matrix=[[1.0], [0.6, 0.6 + 0.1 * seed]]) for seed, one in enumerate(runs[3:6])]
    found = page.document(runs, "er")
    assert found["baseline"] == "ER"
    names = [group["series"] for group in found["groups"]]
    differences = {
        (panel["memory"], found["series"][names[int(place)]]): difference
        for panel in found["panels"]
        for place, difference in panel["differences"].items()
    }
    # 60, 65, 70 less 40, 50, 60: 20, 15, 10 points; their standard deviation is 5, so 4.303 * 5 / sqrt(3)
    assert differences == {
        (1000, "ER-FSL"): {"mean": pytest.approx(0.15), "text": "+15.0 ± 12.4 (3)", "real": True},
        (1000, "ER"): {"mean": 0.0, "text": "baseline", "real": False},
    }
    [alone] = page.document(three("er"), "er")["panels"]
    assert [difference["text"] for difference in alone["differences"].values()] == ["baseline"]
    twice = page.document([*three("er", lr=0.01), *three("er")], "er")
    [place] = [int(place) for place, one in twice["panels"][0]["differences"].items() if one["text"] == "baseline"]
    assert twice["series"][twice["groups"][place]["series"]] == "ER", "the one with nothing changed"
    with pytest.raises(UsageError, match=r"unknown baseline 'iid'.*: er, mir, er-fsl"):
        page.document(runs, "iid")


def test_runs_that_predict_by_an_average_are_a_row_of_their_own() -> None:
    runs = [result("er", seed, [[0.9], [0.6 + 0.01 * seed, 0.7]]) for seed in range(4)]
    kept = [result("er", seed, [[0.9], [0.8, 0.8]], average=0.9) for seed in range(4)]
    kept = [replace(one, accuracy_matrix_last=plain.accuracy_matrix) for one, plain in zip(kept, runs, strict=True)]
    found = page.document([*runs, *kept])
    assert sorted(found["series"]) == ["ER", "ER, avg 0.9"]
    last, by = (found["groups"][found["series"].index(name)] for name in sorted(found["series"]))
    assert by["summary"]["by_average"]["mean"] == 0.8
    assert by["summary"]["final_accuracy"] == last["summary"]["final_accuracy"], "all are compared by last weights"
    assert by["curve"] == last["curve"]
    assert last["summary"]["by_average"] is None
    assert found["columns"][:2] == [["final_accuracy", "by last weights"], ["by_average", "by average"]]
    assert any("curves are by last weights" in line for line in found["about"])


def test_an_average_whose_last_weights_were_not_measured_is_in_the_table_and_in_no_chart() -> None:
    found = page.document([*three("er-fsl+"), *three("er")])
    er, plus = found["groups"]
    assert (plus["summary"]["final_accuracy"], plus["summary"]["by_average"]["text"]) == (None, "50.0 ± 24.8")
    assert [plus[name] for name in ("curve", "anytime", "prequential", "cost")] == [None] * 4
    assert plus["drops"] == []
    assert er["curve"]["mean"] == [0.9, 0.5]
    assert found["panels"][0]["best"] is None, "one row is left to compare"


def test_a_page_of_averages_alone_says_so_and_what_all_rows_share_is_no_part_of_their_names() -> None:
    found = page.document([*three("er", average=0.9), *three("er-ace", average=0.9)])
    assert found["series"] == ["ER", "ER-ACE"]
    assert found["columns"][0] == ["final_accuracy", "by average"]
    assert "In all rows: avg 0.9." in found["about"]
    assert any("by average of the weights" in line for line in found["about"])


def test_the_papers_figure_stands_beside_ours_with_what_was_done_otherwise() -> None:
    found = only(three("er", memory=1000, fraction=0.2, combine="sum"))["printed"]
    assert (found["mean"], found["interval"], found["text"]) == (0.432, 0.056, "43.2 ± 5.6")
    assert found["differs"] == ["slim-resnet18", "20 % of the stream", "combine sum", "3 runs"]
    assert only(three("finetune"))["printed"]["text"] == "16.6 ± 1.4"


def test_the_papers_own_protocol_differs_in_nothing() -> None:
    runs = [result("er-fsl", seed, net="resnet18", memory=500, anytime=50) for seed in range(10)]
    assert only(runs)["printed"] == {"mean": 0.583, "interval": 0.015, "text": "58.3 ± 1.5", "differs": []}


@pytest.mark.parametrize("other", [{"memory": 300}, {"stream": "digits", "memory": 100}])
def test_what_the_paper_does_not_print_has_no_figure(other: dict[str, Any]) -> None:
    assert only([result("er", **other)])["printed"] is None


def test_the_protocol_tells_what_was_asked_and_what_was_done() -> None:
    runs = [
        result("er", seed, protocol={"tasks": [["cat", "dog"], [f"ship {seed}" * 20]], "features": 160}, memory=100)
        for seed in (0, 1)
    ]
    facts = dict(only(runs)["protocol"])
    assert (facts["memory"], facts["seed"], facts["features"]) == ("100", "0, 1", "160")
    assert (facts["tasks"], facts["tasks as run"]) == ("5", "differs between runs")
    assert dict(only(runs[:1])["protocol"])["tasks as run"].startswith("cat, dog | ship 0")


def test_nothing_to_show_is_said() -> None:
    with pytest.raises(UsageError, match="no stored runs"):
        page.document([])


# The file


HOSTILE = ["</script><b>bold</b>", "<img src=x onerror=window.hit=1>", "/* scripts */", "\u2028&amp;'\""]


def hostile() -> list[Result]:
    protocol = {"tasks": [HOSTILE], "class_order": [0, 1, 2, 3]}
    confusion = [[0, 2, 1, 3], [1, 5], [0, 4], [3, 1]]
    stream = "/data/<img src=y onerror=window.hit=1>"
    return [result("er", 0, protocol=protocol, confusion=confusion, stream=stream)]


def test_names_are_data_and_never_markup() -> None:
    text = page.render(hostile())
    assert text.count("</script>") == 2
    assert "<b>bold" not in text
    assert "<img" not in text
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert dict(json.loads(data[1])["groups"][0]["protocol"])["tasks as run"] == ", ".join(HOSTILE)


def many() -> list[Result]:
    """All methods, two streams, two memories, anytime looks: as real as made-up numbers get."""
    found = []
    for place, method in enumerate(METHODS):
        for stream, tasks in (("cifar10", 5), ("cifar100", 10)):
            for memory in (200, 1000) if "memory" in vars(RunConfig(method).settings) else (0,):
                for seed in range(3):
                    n = 1 if method.startswith("iid") else tasks
                    level = 0.2 + 0.03 * place + 0.01 * seed
                    matrix = [[max(0.05, level - 0.02 * (i - j)) for j in range(i + 1)] for i in range(n)]
                    looks = [{"step": 50 * k, "accuracy": [level] * (1 + k * n // 21)} for k in range(1, 21)]
                    settings = {"memory": memory} if memory else {}
                    found.append(result(method, seed, matrix, stream=stream, anytime=50, looks=looks, **settings))
    return found


def test_the_page_stays_small_and_asks_for_nothing() -> None:
    text = page.render(many())
    assert len(text) < 2_000_000
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(src|href)=(?!\"#)|@import|url\(", text.split('<script id="data"')[0])


def test_a_hundred_classes_add_less_than_the_images_they_tell_of() -> None:
    """100 images of each class, as different as they can be: a count for each."""
    spread = [[number for answer in range(100) for number in (answer, 1)] for _ in range(100)]
    plain, more = (len(page.render([result("er", 0, confusion=rows)])) for rows in ([], spread))
    assert more - plain < 10_000 * 6


# The browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as play:
        try:
            found = start(play)
        except NoBrowserError as error:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))
        yield found
        found.close()


Open = Callable[..., Any]
OWN = ("data:", "blob:")  # pictures that are inside of the page


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Open a page of results; at the end, nothing may have gone wrong in it and nothing may have been asked for."""
    wrong: list[str] = []
    contexts = []

    def open_page(results: list[Result], width: int = 1280, scheme: str = "light") -> Any:
        path = tmp_path / "report.html"
        path.write_text(page.render(results, printed=table1, paper=stored.parts(results)), encoding="utf-8")

        def requested(asked: Any) -> None:
            if asked.url.partition("#")[0] not in (path.as_uri(), "about:blank") and not asked.url.startswith(OWN):
                wrong.append(f"request: {asked.url}")

        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        context.set_default_timeout(120_000)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: wrong.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        tab.on("request", requested)
        tab.goto(path.as_uri())
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def rows(tab: Any) -> list[str]:
    return list(tab.locator("#summary tbody .name").all_inner_texts())


def few() -> list[Result]:
    return [
        *three("finetune"),
        *three("er", memory=100),
        *[result("er-fsl", seed, [[0.9], [0.8, 0.7 + 0.02 * seed]], memory=100) for seed in range(3)],
        *[result("er-fsl", seed, memory=1000) for seed in range(2)],
    ]


@pytest.mark.system
def test_every_section_is_drawn(opened: Open) -> None:
    tab = opened(many())
    assert tab.locator("#summary tbody").count() == 4
    assert len(rows(tab)) == 4 * len(METHODS)
    for section in ("curves", "anytime", "cost"):
        assert tab.locator(f"#{section} .plot svg").count() == 4
    bands = tab.locator("#curves .plot").first.locator(".band").count()  # of grey curves, shown when pointed at
    assert bands == len(METHODS) - 3  # IID and IID++ are single points; of ER-FSL+ there is only the average
    assert tab.locator("#forgetting table").count() == 4
    without = [method for method in METHODS if "memory" not in vars(RunConfig(method).settings)]  # in two panels
    assert tab.locator("#protocol details").count() == 4 * len(METHODS) - 2 * len(without)
    assert tab.locator("#matrix tbody td").count() == 15
    about = f"{len(many())} runs of {len(METHODS)} methods on cifar10, cifar100."
    assert tab.locator("#about").inner_text().startswith(about)


@pytest.mark.system
def test_figures_are_those_of_the_document(opened: Open) -> None:
    tab = opened(few())
    row = tab.locator("#summary tbody tr", has_text="FINE-TUNE").first
    assert "50.0 ± 24.8" in row.inner_text()
    assert "16.6 ± 1.4" in row.inner_text()
    assert "not the paper’s: slim-resnet18, 3 runs" in tab.locator("#summary .head").first.inner_text()
    assert tab.locator("#anytime").is_hidden()
    tab.select_option("#which", label="ER, cifar10, slim-resnet18, whole stream, memory 100")
    assert tab.locator("#matrix tbody td").all_inner_texts() == ["90.0", "40.0", "60.0"]


def crowd(n: int, seed: int = 0, **more: Any) -> Result:
    """Of each class ten images: seven are right, two pass for the next class and one for the one before."""
    rows = []
    for c in range(n):
        counts = {c: 7, (c + 1) % n: 2, (c - 1) % n: 1}
        rows.append([number for pair in sorted(counts.items()) for number in pair])
    names = [f"class {c}" for c in range(n)]
    protocol = {"class_order": list(range(n)), "tasks": [names[: n // 2], names[n // 2 :]]}
    return result("er", seed, confusion=rows, protocol=protocol, **more)


@pytest.mark.system
def test_few_classes_are_bars_and_a_table_of_shares(opened: Open) -> None:
    tab = opened([result("er", 0, confusion=MIXED[0], protocol=came("c", "a", "b", order=[2, 0, 1])), *three("mir")])
    section = tab.locator("#classes")
    assert tab.locator("#whose option").all_inner_texts() == [
        "ER, cifar10, slim-resnet18, whole stream, memory 1000"
    ], "MIR's runs have none"
    assert [text.split() for text in section.locator(".bars li").all_inner_texts()] == [["a", "75.0"], ["b", "50.0"]]
    assert section.locator("thead th").all_inner_texts() == ["c", "a", "b"]
    assert section.locator("tbody td").all_inner_texts() == ["", "", "", "25", "75", "", "50", "", "50"]
    assert section.locator("td.hit").all_inner_texts() == ["75", "50"]
    assert section.locator("thead .begins").all_inner_texts() == ["b"]
    tab.get_by_role("checkbox", name="ER", exact=True).uncheck()
    assert "Nothing is chosen" in section.inner_text()
    assert opened(three()).locator("#classes").is_hidden()


@pytest.mark.system
def test_many_classes_are_a_picture_that_the_keyboard_can_read(opened: Open) -> None:
    tab = opened([crowd(30)])
    section = tab.locator("#classes")
    assert section.locator("table").count() == 0
    assert section.locator(".bars li").count() == 30
    assert section.locator(".mistakes li").count() == 12
    assert section.locator(".mistakes li").first.inner_text() == "class 0 as class 1: 20.0 %"
    tip = tab.locator("#tip")
    section.locator(".plot").focus()
    assert tip.inner_text() == "class 0 right: 70.0 % (7 of 10)"
    tab.keyboard.press("ArrowRight")
    assert tip.inner_text() == "class 0 as class 1: 20.0 % (2 of 10)"
    tab.keyboard.press("ArrowDown")
    assert tip.inner_text() == "class 1 right: 70.0 % (7 of 10)"
    assert section.locator(".mark-cell").get_attribute("d") == "M1 1h1v1h-1z"
    tab.keyboard.press("Escape")
    assert tip.is_hidden()


@pytest.mark.system
@pytest.mark.parametrize("n", [10, 40, 100])
@pytest.mark.parametrize("width", [390, 1400])
def test_classes_stay_inside_of_the_page(n: int, width: int, opened: Open) -> None:
    tab = opened([crowd(n, seed) for seed in range(3)], width=width)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    inside = """box => [...box.querySelectorAll("li, figure, svg")].every((part) =>
      part.getBoundingClientRect().right <= box.getBoundingClientRect().right)"""
    assert tab.locator("#classes").evaluate(inside)
    if n == 10:
        assert tab.locator("#classes .scroll").evaluate("box => box.scrollWidth <= box.clientWidth"), "all in sight"


@pytest.mark.system
def test_filters_change_the_table_and_the_curves(opened: Open) -> None:
    tab = opened(few())
    assert rows(tab) == ["ER-FSL", "FINE-TUNE", "ER", "ER-FSL", "FINE-TUNE"]
    tab.get_by_label("1000", exact=True).uncheck()
    assert rows(tab) == ["ER-FSL", "FINE-TUNE", "ER"]
    assert tab.locator("#curves figure").count() == 1
    tab.get_by_role("checkbox", name="FINE-TUNE").uncheck()
    assert rows(tab) == ["ER-FSL", "ER"]
    assert tab.locator("#curves .band").count() == 2
    assert tab.locator("#shown").inner_text() == "2 of 5 rows shown"
    tab.get_by_role("button", name="None methods").click()
    assert rows(tab) == []
    assert "Nothing is chosen" in tab.locator("#curves").inner_text()
    tab.get_by_role("button", name="All methods").click()
    tab.get_by_role("button", name="All memories").click()
    assert len(rows(tab)) == 5


@pytest.mark.system
def test_columns_sort_inside_each_panel(opened: Open) -> None:
    tab = opened(few())
    assert tab.locator("th[aria-sort]").inner_text().startswith("final accuracy")
    tab.get_by_role("button", name="forgetting").click()
    assert rows(tab) == ["FINE-TUNE", "ER", "ER-FSL", "FINE-TUNE", "ER-FSL"]  # 50, 50, 10; 50, 40
    tab.get_by_role("button", name="final accuracy").click()
    assert rows(tab) == ["ER-FSL", "FINE-TUNE", "ER", "ER-FSL", "FINE-TUNE"]
    assert tab.locator("#summary .rank").all_inner_texts() == ["1", "2", "3", "1", "2"]
    assert tab.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
    tab.keyboard.press("Enter")  # the button kept the focus
    assert rows(tab) == ["FINE-TUNE", "ER", "ER-FSL", "FINE-TUNE", "ER-FSL"]
    assert tab.locator("th[aria-sort]").get_attribute("aria-sort") == "ascending"


@pytest.mark.system
def test_what_does_not_exist_is_sorted_last_both_ways(opened: Open) -> None:
    tab = opened([result("iid", 0, [[0.5]]), result("er"), result("er-fsl", 0, [[0.9], [0.8, 0.7]])])
    tab.get_by_role("button", name="forgetting").click()
    assert rows(tab) == ["ER", "ER-FSL", "IID"]
    tab.get_by_role("button", name="forgetting").click()
    assert rows(tab) == ["ER-FSL", "ER", "IID"]


FOCUSED = """() => {
  const found = document.activeElement;
  return [found.tagName, found.type || found.className, getComputedStyle(found).outlineStyle];
}"""


@pytest.mark.system
def test_the_keyboard_reaches_everything(opened: Open) -> None:
    tab = opened(few())
    reached: list[list[str]] = []
    while len(reached) < 100 and (not reached or reached[-1][0] != "BODY"):
        tab.keyboard.press("Tab")
        reached.append(tab.evaluate(FOCUSED))
    kinds = {(tag, kind) for tag, kind, _ in reached}
    assert {("A", "skip"), ("BUTTON", "button"), ("SUMMARY", ""), ("SELECT", "select-one")} <= kinds
    assert {("DIV", "scroll"), ("DIV", "plot")} <= kinds
    columns = tab.locator("#filter input[name=column]").count()
    assert sum(tag == "INPUT" for tag, _, _ in reached) == 6 + columns  # one stream, two memories, three methods
    assert {outline for tag, _, outline in reached if tag != "BODY"} == {"solid"}


@pytest.mark.system
def test_space_chooses_and_the_skip_link_skips(opened: Open) -> None:
    tab = opened(few())
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to the results"
    tab.keyboard.press("Enter")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.closest('#summary') !== null")
    tab.get_by_role("checkbox", name="FINE-TUNE").focus()
    tab.keyboard.press("Space")
    assert rows(tab) == ["ER-FSL", "ER", "ER-FSL"]


@pytest.mark.system
def test_tooltips_follow_the_arrow_keys_and_the_pointer(opened: Open) -> None:
    tab = opened(few())
    tip, plot = tab.locator("#tip"), tab.locator("#curves .plot").first
    assert tip.is_hidden()
    plot.focus()
    assert tip.inner_text() == "ER-FSL, after task 1: 90.0 ± 0.0"
    tab.keyboard.press("ArrowRight")
    assert tip.inner_text().startswith("ER-FSL, after task 2: 76.0")
    tab.keyboard.press("ArrowDown")
    assert tip.inner_text() == "FINE-TUNE, after task 2: 50.0 ± 24.8"
    tab.keyboard.press("Escape")
    assert tip.is_hidden()
    frame = plot.bounding_box()
    tab.mouse.move(frame["x"] + 42, frame["y"] + frame["height"] / 2)
    assert "after task 1" in tip.inner_text()


COLOURS = """() => {
  const share = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((v) => (text.startsWith("rgb") ? v / 255 : Number(v)));
  const light = (text) => share(text).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, place) => sum + v * [0.2126, 0.7152, 0.0722][place], 0);
  const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const cells = [...document.querySelectorAll(".heat tbody td")].map((cell) => getComputedStyle(cell));
  const body = getComputedStyle(document.body);
  return { ground: light(body.backgroundColor), least: Math.min(contrast(body.color, body.backgroundColor),
    ...cells.map((style) => contrast(style.color, style.backgroundColor))) };
}"""


@pytest.mark.system
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_modes_can_be_read_and_the_button_changes_them(opened: Open, scheme: str) -> None:
    full = [result("er", 0, [[1.0], [0.0, 1.0], [0.5, 0.25, 0.75]], confusion=[[0, 9], [0, 9], [0, 5, 2, 4]])]
    tab = opened(full, scheme=scheme)
    button = tab.get_by_role("button", name="Dark")
    assert button.get_attribute("aria-pressed") == ("true" if scheme == "dark" else "false")
    first = tab.evaluate(COLOURS)
    button.click()
    second = tab.evaluate(COLOURS)
    assert (first["ground"] > 0.5, second["ground"] > 0.5) == ((True, False) if scheme == "light" else (False, True))
    assert first["least"] >= 4.5
    assert second["least"] >= 4.5


@pytest.mark.system
def test_a_phone_scrolls_tables_in_their_boxes_and_never_the_page(opened: Open) -> None:
    long = [result("er-fsl", gamma=gamma, new_weight=0.123456) for gamma in (0.1, 0.2)]
    tab = opened([*many(), *long], width=390)
    tab.locator("#filter summary").click()
    tab.locator("#protocol summary").first.click()
    tab.locator("#curves .plot").first.focus()
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    box = tab.locator("#summary .scroll")
    assert box.evaluate("box => box.scrollWidth <= box.clientWidth"), "the columns of a phone"
    tab.get_by_role("button", name="All columns").click()
    assert box.evaluate("box => box.scrollWidth > box.clientWidth && box.clientWidth < 390")
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    assert tab.locator("#curves .key").count() > 0  # curves this narrow are named below


@pytest.mark.system
def test_the_first_columns_fit_and_others_can_be_chosen(opened: Open) -> None:
    tab = opened(many(), width=1400)
    box = tab.locator("#summary .scroll")
    assert box.evaluate("box => box.scrollWidth <= box.clientWidth")
    heads = tab.locator("#summary thead th").all_inner_texts()
    assert not any("anytime" in text for text in heads)
    tab.get_by_role("checkbox", name="average anytime").check()
    tab.get_by_role("checkbox", name="forgetting").uncheck()
    heads = tab.locator("#summary thead th").all_inner_texts()
    assert any("average anytime" in text for text in heads)
    assert not any("forgetting" in text for text in heads)


@pytest.mark.system
def test_the_first_five_and_references_are_in_colour_and_others_when_chosen(opened: Open) -> None:
    tab = opened(many())
    first = tab.locator("#summary tbody").first
    pressed = first.locator(".name[aria-pressed=true]")
    ranks = [text for text in first.locator("tr:has([aria-pressed=true]) .rank").all_inner_texts() if text]
    assert (pressed.count(), ranks) == (7, ["1", "2", "3", "4", "5"])  # IID and IID++ have no rank
    assert tab.locator("#curves .plot").first.locator("text.name").count() == 7
    sixth = first.locator(".name[aria-pressed=false]").first
    name = sixth.inner_text().removesuffix(" †")
    sixth.click()
    assert pressed.count() == 8
    assert name in tab.locator("#curves .plot").first.locator("text.name").all_text_contents()


OVERLAPS = """plot => {
  const boxes = [...plot.querySelectorAll("text.name")].map((name) => name.getBoundingClientRect());
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom - 3 && b.top < a.bottom - 3;
  return boxes.some((one, place) => boxes.slice(place + 1).some((other) => meet(one, other)));
}"""


@pytest.mark.system
@pytest.mark.parametrize("width", [390, 1400])
def test_names_in_charts_do_not_meet(opened: Open, width: int) -> None:
    tab = opened(many(), width=width)
    for section in ("curves", "cost"):
        assert not tab.locator(f"#{section} .plot").first.evaluate(OVERLAPS)


@pytest.mark.system
def test_a_link_keeps_what_is_chosen(opened: Open) -> None:
    tab = opened(few())
    tab.get_by_label("1000", exact=True).uncheck()
    tab.get_by_role("checkbox", name="forgetting").uncheck()
    tab.get_by_role("button", name="runs").click()
    tab.locator("#summary .name").first.click()
    before = tab.locator("#summary").inner_text()
    tab.goto("about:blank#" + (link := tab.url).split("#")[1])
    tab.goto(link)
    assert tab.locator("#summary").inner_text() == before
    assert tab.locator("#summary .name[aria-pressed=false]").count() == 1
    assert not tab.get_by_label("1000", exact=True).is_checked()


@pytest.mark.system
def test_what_rows_have_in_common_beside_the_paper_is_said_once_and_only_beside_its_column(opened: Open) -> None:
    settings: list[dict[str, Any]] = [{}, {"gamma": 0.5}, {"gamma": 0.7}]
    runs = [result("er-fsl", seed, memory=1000, fraction=0.2, **given) for given in settings for seed in range(3)]
    tab = opened([*runs, result("er", memory=1000, fraction=0.2)], width=1400)
    notes = tab.locator("#summary .head small")
    assert notes.all_inner_texts() == ["not the paper’s: slim-resnet18, 20 % of the stream", "a 1 run", "b 3 runs"]
    tab.get_by_role("checkbox", name="paper").uncheck()
    assert notes.count() == 0


LEVEL = """section => {
  const tops = (kind) => [...section.querySelectorAll(kind)].slice(0, 2).map((one) => one.getBoundingClientRect().top);
  const [[a, b], [c, d], [e, f]] = [tops("svg"), tops(".save"), tops("h3")];
  return a === b && c === d && e !== f;  // one title has two lines
}"""


@pytest.mark.system
def test_charts_beside_each_other_stand_level_whatever_their_titles(opened: Open) -> None:
    tab = opened([*three(stream="digits"), *three(fraction=0.123456)], width=1250)
    assert tab.locator("#curves").evaluate(LEVEL)


@pytest.mark.system
def test_a_title_of_a_wide_table_is_whole_on_a_phone(opened: Open) -> None:
    wide = [[0.9] * (row + 1) for row in range(10)]
    tab = opened([result("er", seed, wide, fraction=0.123456) for seed in range(3)], width=390)
    title = tab.locator("#forgetting caption div").first
    assert title.evaluate("one => one.getBoundingClientRect().right <= innerWidth && one.clientHeight > 30")


@pytest.mark.system
def test_charts_are_saved_as_svg_and_png(opened: Open) -> None:
    tab = opened(few())
    for kind, begins in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        with tab.expect_download() as saved:
            tab.get_by_role("button", name=f"Download as {kind}").first.click()
        data = saved.value.path().read_bytes()
        assert data.startswith(begins)
        assert saved.value.suggested_filename.startswith("accuracy-after-each-task-cifar10")
        if kind == "SVG":
            assert b"memory 100" in data
            assert b"var(" not in data, "colours that other programs know"


@pytest.mark.system
def test_the_table_is_copied_as_latex(opened: Open) -> None:
    tab = opened([*few(), result("er-fsl", memory=100, gamma=0.1)])
    tab.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(); }")
    tab.get_by_role("button", name="Copy as LaTeX").click()
    text = tab.locator("#copy").input_value()
    assert "\\multicolumn{5}{l}{\\emph{cifar10, slim-resnet18, whole stream, memory 100}}" in text
    assert "FINE-TUNE & 50.0 $\\pm$ 24.8 & 16.6 $\\pm$ 1.4$^{b}$ &" in text
    assert text.count("{") == text.count("}")


@pytest.mark.system
def test_what_of_the_paper_is_stored_stands_below(opened: Open) -> None:
    gammas = [0.1, 0.3, 0.5, 0.9]
    runs = [result("er-fsl", seed, stream="cifar100", fraction=0.2, gamma=gamma) for gamma in gammas for seed in (0, 1)]
    tab = opened(runs)
    tab.wait_for_function("document.querySelector('#paper img')?.naturalWidth > 100")
    assert "Figure 6: final accuracy by gamma" in tab.locator("#paper").inner_text()
    assert "a suitable gamma is better: 0.3 than 0.1" in tab.locator("#paper table").first.inner_text()
    assert opened(few()).locator("#paper").is_hidden()


@pytest.mark.system
def test_hostile_names_are_shown_as_they_are(opened: Open) -> None:
    tab = opened(hostile())
    tab.locator("#protocol summary").first.click()
    assert HOSTILE[0] in tab.locator("#protocol").inner_text()
    assert "<img src=y onerror=window.hit=1>" in tab.locator("#summary").inner_text()
    assert tab.evaluate("window.hit === undefined && document.querySelectorAll('img').length === 0")
