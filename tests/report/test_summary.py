"""Tables from stored results, against numbers worked out by hand."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest
from matplotlib.figure import Figure

from onepass.bench import store
from onepass.bench.footprint import of_result
from onepass.bench.metrics import Summary
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.errors import UsageError
from onepass.learner.net import make_net
from onepass.methods.registry import METHODS
from onepass.report import grouping, plots
from onepass.report import summary as report

ROOT = Path(__file__).resolve().parents[2]


def result(method: str, seed: int, matrix: list[list[float]], **settings: object) -> Result:
    config = RunConfig(method, stream="cifar10", net="slim-resnet18", seed=seed, fraction=0.2, settings=settings)
    return Result(config=config, accuracy_matrix=matrix, steps=10, seconds=1.0, fingerprint="bits", data={}, host={})


@pytest.fixture
def two_methods() -> list[Result]:
    return [
        result("finetune", 0, [[0.9], [0.1, 0.7]]),
        result("finetune", 1, [[0.8], [0.2, 0.8]]),
        result("er", 0, [[0.9], [0.5, 0.7]], memory=1000),
    ]


def test_a_summary_has_mean_interval_and_n_for_each_method(two_methods: list[Result]) -> None:
    found = report.summary(two_methods)
    final = found["finetune"]["final_accuracy"]
    assert final is not None
    assert final.mean == pytest.approx(0.45)  # (0.4 + 0.5) / 2
    assert final.interval is None, "of two"
    assert final.values == pytest.approx((0.4, 0.5))
    assert final.n == 2
    forgotten = found["finetune"]["forgetting"]
    assert forgotten is not None
    assert forgotten.mean == pytest.approx(0.7)  # (0.8 + 0.6) / 2
    for name, mean in (("final_accuracy", 0.6), ("learning_accuracy", 0.8)):
        only = found["er"][name]
        assert only is not None
        assert only == Summary(only.mean, None, 1)
        assert only.mean == pytest.approx(mean)


def test_one_task_has_no_forgetting(two_methods: list[Result]) -> None:
    alone = [result("iid", 0, [[0.5]])]
    assert report.summary(alone)["iid"]["forgetting"] is None
    assert "| IID | 50.0 | n/a | n/a | 50.0 | 1 |" in report.markdown(two_methods + alone)
    assert report.overview(alone).heads == ["method", "final accuracy %", "just after learning %", "runs"]


def test_the_markdown_table_line_by_line(two_methods: list[Result]) -> None:
    assert report.markdown(two_methods).splitlines() == [
        "cifar10, 2 tasks, slim-resnet18, memory 1000, 20 % of the stream",
        "",
        "| method | final accuracy % | forgetting % | backward transfer % | just after learning % | runs |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| FINE-TUNE | 40.0, 50.0 | 80.0, 60.0 | -80.0, -60.0 | 80.0, 80.0 | 2 |",
        "| ER | 60.0 | 40.0 | -40.0 | 80.0 | 1 |",
        "",
        report.NOTE + report.FEW,
        "",
        report.BOLD,
    ]


def test_the_json_document_has_every_run_and_the_summary(two_methods: list[Result]) -> None:
    document = report.document(two_methods)
    assert [run["method"] for run in document["runs"]] == ["finetune", "finetune", "er"]
    assert document["summary"]["er"]["final_accuracy"] == {
        "mean": pytest.approx(0.6),
        "interval": None,
        "n": 1,
        "values": (pytest.approx(0.6),),
    }


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_methods: list[Result]) -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_tool", ROOT / "tools" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "docs_tool", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(sys.modules["cells"], "ROOT", tmp_path)
    for one in two_methods:
        store.save_result(store.folder(tmp_path / "runs", one.config), one)
    return module


def test_settings_of_a_method_stand_beside_its_defaults_paired_by_seed(docs: ModuleType, tmp_path: Path) -> None:
    """0.1, 0.11 and 0.12 more: by 11 ± 4.303 * 1 / sqrt(3) points."""
    for seed, (plain, more) in enumerate([(0.3, 0.4), (0.5, 0.61), (0.7, 0.82)]):
        for value, settings in ((plain, {}), (more, {"head": "cosine"})):
            one = result("er-ace", seed, [[0.9], [value, value]], **settings)
            store.save_result(store.folder(tmp_path / "heads", one.config), one)
    line = "`onepass run er-ace --stream cifar10 --net slim-resnet18 --memory 1000 --fraction 0.2"
    assert docs.beside("heads").splitlines()[2:4] == [
        f"| {line}` | 50.0 ± 49.7 | - | 3 |",
        f"| {line} --head cosine` | 61.0 ± 52.2 | **+11.0 ± 2.5 (3)** | 3 |",
    ]


def test_printed_and_measured_stand_side_by_side(docs: ModuleType) -> None:
    lines = docs.reproduction("runs").splitlines()
    assert lines[2] == (
        "| FINE-TUNE | 16.6 ± 1.4 | 2 | 40.0, 50.0 | 2 | -20.0 (1) | 2 | 80.0, 60.0 | "
        "`onepass run finetune --stream cifar10 --net slim-resnet18 --fraction 0.2` |"
    )
    assert lines[3].startswith("| ER | 43.2 ± 5.6 | 1 | 60.0 | 1 | - | 1 | 40.0 | `onepass run er --stream cifar10")
    assert "--memory 1000 --fraction 0.2`" in lines[3]


def test_a_methods_page_shows_what_was_run_and_says_if_nothing_was(docs: ModuleType, tmp_path: Path) -> None:
    assert docs.figures("er") == "Not run yet."
    one = result("er", 0, [[0.9], [0.5, 0.7]], memory=1000)
    store.save_result(store.folder(tmp_path / "results" / "cifar10-fifth", one.config), one)
    command = "onepass run er --stream cifar10 --net slim-resnet18 --memory 1000 --fraction 0.2"
    assert docs.figures("er").splitlines()[-1] == f"| `{command}` | 43.2 ± 5.6 | 60.0 | 1 |"
    assert docs.figures("finetune") == "Not run yet."


def test_a_page_of_a_method_that_the_paper_has_not_leaves_out_what_is_printed(docs: ModuleType, tmp_path: Path) -> None:
    one = replace(result("slda", 0, [[0.9], [0.5, 0.7]]), config=RunConfig("slda"))
    store.save_result(store.folder(tmp_path / "results" / "digits-methods", one.config), one)
    assert docs.figures("slda").splitlines()[2:] == [
        "| runs | final accuracy % | n |",
        "|---|---:|---:|",
        "| `onepass run slda --stream digits --net linear` | 60.0 | 1 |",
    ]


def test_an_average_beside_a_method_is_left_out_of_its_figures_and_one_of_its_own_is_not(
    docs: ModuleType, tmp_path: Path
) -> None:
    for method, settings in (("er", {"average": 0.9}), ("er-fsl+", {})):
        one = replace(result(method, 0, [[0.9], [0.5, 0.7]], **settings), accuracy_matrix_last=[[0.9], [0.1, 0.3]])
        store.save_result(store.folder(tmp_path / "results" / "cifar10", one.config), one)
    assert docs.figures("er").splitlines()[-1].endswith("| 43.2 ± 5.6 | 20.0 | 1 |")
    assert docs.figures("er-fsl+").splitlines()[-1].endswith("| 60.0 | 1 |")


def test_costs_stand_beside_each_other(docs: ModuleType, tmp_path: Path) -> None:
    assert docs.cost("cost.json") == "Not measured yet."
    (tmp_path / "cost.json").write_text('{"mir": {"flops": 2.0, "time": 1.5, "er_ms": 1.0, "ms": 1.5}}')
    assert docs.cost("cost.json").splitlines()[2] == "| MIR | 2.00 | 1.50 | 0.75 |"
    (tmp_path / "cost.json").write_text('{"slda": {"flops": 0.0123}, "gdumb": {"flops": 0, "time": 1.5}}')
    found = docs.cost("cost.json").splitlines()
    assert found[2:4] == ["| SLDA | 0.012 | - | - |", "| GDumb | 0 | 1.50 | - |"]
    assert "not timed yet" in found[-1]


def test_rows_without_tasks_and_many_methods_fit_into_one_picture(tmp_path: Path) -> None:
    results = [result(name, 0, [[0.5]] if name.startswith("iid") else [[0.9], [0.1, 0.7]]) for name in METHODS]
    assert report.caption(results[1:]).startswith("cifar10, 2 tasks")
    plots.picture(results, tmp_path / "all.png")
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


def test_readings_of_the_protocol_are_told_apart(docs: ModuleType, tmp_path: Path) -> None:
    joint = result("er", 1, [[0.9], [0.1, 0.3]], memory=1000, forward="joint")
    store.save_result(store.folder(tmp_path / "runs", joint.config), joint)
    lines = docs.protocol("runs").splitlines()
    assert "| ER | seen | separate | mean | - | 60.0 | 40.0 | 0 |" in lines
    assert "| ER | seen | joint | mean | - | 20.0 | 80.0 | 1 |" in lines


def test_a_block_is_replaced_and_the_rest_left(docs: ModuleType) -> None:
    text = "before\n<!-- generated: table runs -->\nold\n<!-- /generated -->\nafter\n"
    filled = docs.filled(text)
    assert filled.startswith("before\n<!-- generated: table runs -->\ncifar10, 2 tasks")
    assert filled.endswith("at 5 %\n<!-- /generated -->\nafter\n")
    assert docs.filled(filled) == filled


def looked(method: str, seed: int, first: float = 0.5) -> Result:
    """A run of two tasks with looks at steps 5, 10 and 15, two stretches of predictions, and a low point at step 15."""
    looks = [{"step": 5, "accuracy": [first]}, {"step": 10, "accuracy": [0.9]}, {"step": 15, "accuracy": [0.2, 0.4]}]
    one = result(method, seed, [[0.8], [0.6, 0.7]])
    config = replace(one.config, anytime=5, prequential=True)
    return replace(one, config=config, anytime=looks, prequential=[[3, 10], [12, 20]])


def test_measures_on_the_way_are_columns_where_a_run_has_them() -> None:
    table = report.overview([looked("er", 0), result("finetune", 0, [[0.8], [0.1, 0.7]])])
    assert table.heads[5:] == ["average anytime %", "worst case %", "prequential %", "runs"]
    # (0.5 + 0.9 + 0.3) / 3; task 0 at its lowest after it was learned (0.2) and task 1 at the end (0.7); 15 of 30
    assert [cell.text for cell in table.rows[0][5:]] == ["56.7", "45.0", "50.0", "1"]
    assert [cell.text for cell in table.rows[1][5:]] == ["n/a", "n/a", "n/a", "1"]
    assert any("every 5 steps on the first 100 test images" in note for note in table.notes)


def test_a_mean_over_some_of_the_runs_says_over_how_many() -> None:
    table = report.overview([looked("er", 0), result("er", 1, [[0.8], [0.6, 0.7]])])
    assert [cell.text for cell in table.rows[0]][4:] == [
        "75.0, 75.0",
        "56.7 (n = 1)",
        "45.0 (n = 1)",
        "50.0 (n = 1)",
        "2",
    ]


def test_classes_and_transfer_are_columns_where_a_run_has_them() -> None:
    """Task 2 was known to 0.3 and 0.1 of it before anything was learned; of class 1 half is right, of class 0 all."""
    told = replace(
        result("er", 0, [[0.8], [0.6, 0.7]]),
        accuracy_before=[0.3],
        accuracy_untrained=[0.1],
        confusion=[[0, 4], [0, 2, 1, 2]],
    )
    table = report.overview([told, result("finetune", 0, [[0.8], [0.2, 0.7]])])
    assert table.heads[3:7] == [
        "backward transfer %",
        "forward transfer %",
        "just after learning %",
        "lowest class %",
    ]
    assert [cell.text for cell in table.rows[0][3:7]] == ["-20.0", "20.0", "75.0", "50.0"]
    assert [cell.text for cell in table.rows[1][3:7]] == ["-60.0", "n/a", "75.0", "n/a"]
    assert any(note.startswith("lowest class: ") for note in table.notes)


def test_what_an_older_version_did_not_record_is_that_of_the_run_made_again() -> None:
    older, again = result("er", 0, [[0.8], [0.6, 0.7]]), replace(looked("er", 0), confusion=[[0, 4], [1, 2]])
    for both in ([older, again], [again, older]):
        assert grouping.by_method(both) == {"er": [again]}


def test_a_run_made_again_to_measure_more_counts_once() -> None:
    plain, more = result("er", 0, [[0.8], [0.6, 0.7]]), looked("er", 0)
    for both in ([plain, more], [more, plain]):
        assert grouping.by_method(both) == {"er": [more]}


def test_final_accuracy_is_of_what_predicts_and_the_last_weights_have_a_column() -> None:
    kept = replace(result("er", 0, [[0.8], [0.7, 0.8]], average=0.9), accuracy_matrix_last=[[0.8], [0.6, 0.7]])
    plain = result("er-ace", 0, [[0.8], [0.5, 0.6]])
    found = report.summary([kept, plain])
    for name, mean in (("final_accuracy", 0.75), ("final_accuracy_last", 0.65)):
        one = found["er"][name]
        assert one is not None
        assert one.mean == pytest.approx(mean)
    assert found["er-ace"]["final_accuracy_last"] is None
    assert kept.final_accuracy_last == pytest.approx(0.65)
    assert plain.final_accuracy_last == plain.final_accuracy == pytest.approx(0.55)
    table = report.overview([kept, plain])
    assert table.heads[:4] == ["method", "by last weights %", "by average %", "forgetting %"]
    assert [[cell.text for cell in row[:4]] for row in table.rows] == [
        ["ER, avg 0.9", "65.0", "75.0", "20.0"],  # forgetting is by last weights too: 0.8 - 0.6
        ["ER-ACE", "55.0", "n/a", "30.0"],
    ]
    assert any("ER predicts by an average of its weights; all other columns" in note for note in table.notes)


def test_what_predicts_by_an_average_alone_is_neither_compared_nor_drawn(drawn: list[Figure], tmp_path: Path) -> None:
    """ER-FSL+ of version 0.1.0: its last weights were not measured."""
    plus = [result("er-fsl+", seed, [[0.9], [0.9, 0.9 + seed / 100]]) for seed in range(3)]
    er = [result("er", seed, [[0.9], [0.3, 0.3 + seed / 100]]) for seed in range(3)]
    assert bold([*er, *plus]) == []
    table = report.overview([*er, *plus])
    assert [cell.text for cell in table.rows[1]][:3] == ["ER-FSL+", "n/a", "90.5 ± 1.2"]
    assert any("not measured by last weights and not compared: ER-FSL+" in note for note in table.notes)
    plots.picture([*er, *plus], tmp_path / "a.png")
    [axes] = drawn[0].axes
    assert [str(line.get_label()) for line in axes.lines] == ["ER  30.5"]
    assert "by last weights; not by these, and left out: ER-FSL+" in axes.get_title(loc="left")
    with pytest.raises(UsageError, match="methods that can be compared here: er"):
        report.comparison([*er, *plus], "er-fsl+")


def test_titles_carry_what_differs_from_the_whole_protocol_and_labels_what_differs_from_defaults() -> None:
    changed: dict[str, Any] = {"net": "slim-resnet18", "fraction": 0.01, "validate": True, "batch": 20}
    one = RunConfig("er", "cifar10", **changed, test_fraction=0.25, settings={"lr": 0.03})
    runs = [replace(result("er", 0, [[0.5]]), config=one)]
    title = report.caption(runs)
    changes = "batch 20, 1 % of the stream, measured on held-back training images, 25 % of the test images"
    assert title == f"cifar10, 1 task, slim-resnet18, memory 1000, {changes}"
    assert report.overview(runs).rows[0][0].text == "ER, lr 0.03"
    runs.append(replace(runs[0], config=replace(one, method="er-ace", settings={"lr": 0.03})))
    assert report.caption(runs) == title + ", lr 0.03"
    assert [row[0].text for row in report.overview(runs).rows] == ["ER", "ER-ACE"]


def test_bytes_stand_beside_accuracy_as_the_run_wrote_them_or_as_its_learner_is_built() -> None:
    told = {"tasks": [["a", "b"], ["c", "d"]], "bytes": {"memory": 1_000_000, "model": 250_000}}
    built = {"tasks": [["a", "b"], ["c", "d"]]}
    one = replace(result("er", 0, [[0.5], [0.5, 0.5]], memory=100), protocol=told, data={"shape": [3, 32, 32]})
    table = report.overview([one])
    assert table.heads[-2] == "MB held"
    assert table.rows[0][-2].text == "1.2"
    assert report.HELD in table.notes
    weights = 4 * sum(value.numel() for value in make_net("slim-resnet18", (3, 32, 32), 4, seed=0).parameters())
    found = of_result(replace(one, protocol=built))
    assert found is not None
    assert found["memory"] == 100 * (3 * 32 * 32 + 8)
    assert weights < found["model"] < 1.01 * weights
    kept = of_result(replace(one, protocol=built, config=replace(one.config, settings={"memory": 100, "average": 0.9})))
    assert kept is not None
    assert kept["model"] > 1.98 * weights, "an average is a copy"
    assert of_result(result("er", 0, [[0.5]])) is None


def test_the_same_run_by_its_last_weights_is_the_run_without_an_average() -> None:
    looks = [{"step": 10, "accuracy": [0.9], "accuracy_last": [0.7]}]
    kept = replace(result("er", 0, [[0.7, 0.8]], average=0.9), accuracy_matrix_last=[[0.6, 0.7]], anytime=looks)
    plain = kept.by_last_weights()
    assert plain == replace(result("er", 0, [[0.6, 0.7]]), anytime=[{"step": 10, "accuracy": [0.7]}])
    assert plain.by_last_weights() is plain
    with pytest.raises(ValueError, match="er seed 0 was not measured by its last weights"):
        replace(kept, accuracy_matrix_last=[]).by_last_weights()


@pytest.mark.parametrize("other", [0.5, None])
def test_runs_that_predict_by_different_averages_do_not_stand_in_one_row(other: float | None) -> None:
    runs = [result("er", 0, [[0.8]], average=0.9), result("er", 1, [[0.8]], average=other)]
    with pytest.raises(UsageError, match=r"average is 0\.9 \(seed 0\) and (0\.5|null) \(seed 1\)"):
        grouping.check_one_protocol(runs)


def finals(method: str, *values: float) -> list[Result]:
    return [result(method, seed, [[0.9]] if "iid" in method else [[0.9], [v, v]]) for seed, v in enumerate(values)]


def bold(results: list[Result]) -> list[str]:
    return [row[0].text for row in report.overview(results).rows if any(cell.bold for cell in row)]


def test_final_accuracy_is_bold_only_where_the_difference_is_real() -> None:
    er, fsl = finals("er", 0.30, 0.50, 0.70), finals("er-fsl", 0.40, 0.61, 0.82)
    assert bold([*er, *fsl]) == ["ER-FSL"]
    assert [cell.bold for cell in report.overview([*er, *fsl]).rows[1]] == [False, True, False, False, False, False]
    assert bold([*er, *finals("er-fsl", 0.40, 0.40, 0.82)]) == []


def test_references_are_neither_bold_nor_compared() -> None:
    results = [*finals("iid", 0.9, 0.9, 0.9), *finals("er", 0.3, 0.5, 0.7), *finals("er-fsl", 0.40, 0.61, 0.82)]
    assert bold(results) == ["ER-FSL"]
    assert report.BOLD + report.REFERENCES in report.overview(results).notes
    assert [row[0].text for row in report.comparison(results, "er").rows] == ["ER-FSL"]
    with pytest.raises(UsageError, match=r"unknown baseline 'iid'.*er, er-fsl"):
        report.comparison(results, "iid")


def test_differences_to_a_baseline_worked_by_hand() -> None:
    # ER-FSL: 0.1, 0.11, 0.12, so t = 11 sqrt(3) and p = 1 - t / sqrt(t^2 + 2) = 0.00274, twice that for two rows.
    # PCR: -0.1 and 0.1, t = 0. MIR shares no seed, SCR one.
    results = [*finals("er", 0.30, 0.50, 0.70), *finals("er-fsl", 0.40, 0.61, 0.82), *finals("pcr", 0.2, 0.6)]
    results += [result("mir", 7, [[0.9], [0.1, 0.1]]), result("scr", 0, [[0.9], [0.2, 0.2]])]
    table = report.comparison(results, "ER")
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["ER-FSL", "+11.0 ± 2.5", "0.005", "3"],
        ["PCR", "-10.0, +10.0", "1.000", "2"],
        ["MIR", "n/a", "n/a", "0"],
        ["SCR", "-10.0", "n/a", "1"],
    ]
    assert [cell.bold for row in table.rows for cell in row] == [False, True] + [False] * 14
    assert table.heads == ["method", "difference to ER", "p", "n"]
    assert "Holm" in table.notes[0]


def test_a_baseline_that_was_not_run_is_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown baseline 'pcr'.*methods that can be compared here: er"):
        report.comparison(finals("er", 0.3, 0.5), "pcr")


OTHER: dict[str, Any] = {
    "stream": "cifar100",
    "net": "resnet18",
    "batch": 20,
    "tasks": 2,
    "scenario": "task-free",
    "class_order": "fixed",
    "fraction": 0.5,
    "image_size": 16,
    "validate": True,
    "augment": "noise",
    "stream_speed": 2.0,
    "test_fraction": 0.5,
}


def test_every_field_that_decides_figures_is_looked_at() -> None:
    free = {"method", "seed", "anytime", "prequential", "settings"}
    assert set(OTHER) == {entry.name for entry in fields(RunConfig)} - free


@pytest.mark.parametrize("name", OTHER)
def test_runs_of_two_protocols_are_refused_in_one_table(name: str, two_methods: list[Result], tmp_path: Path) -> None:
    other = replace(two_methods[2], config=replace(two_methods[2].config, **{name: OTHER[name]}))
    ours, theirs = (str(getattr(run.config, name)).lower() for run in (two_methods[0], other))
    message = rf"{name} is {ours} \(finetune\) and {theirs} \(er\)"
    results = [*two_methods[:2], other]
    for show in (report.overview, report.markdown, lambda mixed: report.comparison(mixed, "er")):
        with pytest.raises(UsageError, match=message):
            show(results)
    with pytest.raises(UsageError, match=message):
        plots.picture(results, tmp_path / "a.png")
    with pytest.raises(UsageError, match=message):
        report.write(results, tmp_path)
    assert not list(tmp_path.iterdir())


def test_memory_must_be_the_same_among_methods_that_have_one(two_methods: list[Result]) -> None:
    mir = result("mir", 0, [[0.9], [0.5, 0.7]], memory=200)
    with pytest.raises(UsageError, match=r"memory is 1000 \(er\) and 200 \(mir\)"):
        grouping.check_one_protocol([*two_methods, mir])


def test_data_must_be_the_same_where_it_is_known(two_methods: list[Result]) -> None:
    first, second, third = two_methods
    first, third = replace(first, data={"sha256": "a" * 64}), replace(third, data={"sha256": "b" * 64})
    grouping.check_one_protocol([first, second])
    with pytest.raises(UsageError, match=r"sha256 of the data is aaaaaaaaaaaa \(finetune\) and bbbbbbbbbbbb \(er\)"):
        grouping.check_one_protocol([first, second, third])


def test_runs_of_one_method_must_have_the_same_settings(two_methods: list[Result]) -> None:
    fast = result("er", 1, [[0.9], [0.5, 0.7]], memory=1000, lr=0.2, combine="sum")
    message = r"for er, lr is 0.1 \(seed 0\) and 0.2 \(seed 1\); for er, combine is mean \(seed 0\) and sum"
    with pytest.raises(UsageError, match=message):
        grouping.check_one_protocol([*two_methods, fast])
    ours = result("mir", 0, [[0.9], [0.5, 0.7]], memory=1000, lr=0.2)
    grouping.check_one_protocol([*two_methods, ours])  # each method has its own


def test_what_a_run_wrote_down_must_be_the_same_but_for_the_seeds_part() -> None:
    def written(seed: int, **more: Any) -> Result:
        protocol = {"seed": seed, "class_order": [seed], "tasks": [[seed]], "optimizers": {"betas": (0.9, 0.999)}}
        return replace(result("er", seed, [[0.9], [0.5, 0.7]]), protocol={**protocol, "augment": "colour", **more})

    grouping.check_one_protocol([written(0), written(1, optimizers={"betas": [0.9, 0.999]}), result("er", 2, [[0.9]])])
    with pytest.raises(UsageError, match=r"for er, augment is colour \(seed 0\) and none \(seed 1\)"):
        grouping.check_one_protocol([written(0), written(1, augment="none")])


def test_references_may_have_a_scenario_of_their_own_and_runs_may_measure_more(two_methods: list[Result]) -> None:
    grouping.check_one_protocol([*two_methods, *finals("iid", 0.5), *finals("iid++", 0.5), looked("mir", 0)])


def test_a_whole_number_written_with_a_point_is_the_same_setting() -> None:
    def written(seed: int, momentum: float) -> Result:
        return replace(result("er", seed, [[0.9]]), protocol={"optimizers": {"optimizer": {"momentum": momentum}}})

    grouping.check_one_protocol([written(0, 0), written(1, 0.0)])
    with pytest.raises(UsageError, match="optimizers is"):
        grouping.check_one_protocol([written(0, 0), written(1, 0.9)])


def test_no_results_are_refused() -> None:
    with pytest.raises(UsageError, match="no results"):
        report.overview([])


def test_other_versions_and_devices_are_named_not_refused(two_methods: list[Result]) -> None:
    hosts = [{"torch": "2.4.1", "device": "cpu"}, {"torch": "2.13.0", "device": "cpu"}, {}]
    results = [replace(run, host=host) for run, host in zip(two_methods, hosts, strict=True)]
    assert report.overview(results).notes[-1] == "runs from torch 2.4.1 and 2.13.0"
    results[2] = replace(results[2], host={"torch": "2.13.0", "device": "cuda"})
    assert report.comparison(results, "er").notes[1:] == ["runs from torch 2.4.1 and 2.13.0", "runs on cpu and cuda"]
    threads = [replace(run, host={"threads": count}) for run, count in zip(two_methods, (1, 2, 2), strict=True)]
    assert report.overview(threads).notes[-1] == "runs on 1 and 2 threads"
    said = [replace(run, protocol={"features": 8} if place else {}) for place, run in enumerate(two_methods)]
    assert report.overview(said).notes[-1].startswith("1 of 3 runs are of a version that stored settings")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures instead of their files."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *words, **options: figures.append(figure))
    return figures


def test_curves_are_the_mean_over_seeds_at_the_steps_all_have(drawn: list[Figure], tmp_path: Path) -> None:
    short = looked("er", 1, first=0.7)
    short = replace(short, anytime=short.anytime[:2])
    plots.curves([looked("er", 0), short, result("finetune", 0, [[0.8], [0.1, 0.7]])], tmp_path / "a.png")
    [axes] = drawn[0].axes
    mean, *runs = axes.lines
    assert numpy.ravel(mean.get_xydata()).tolist() == pytest.approx([5, 60, 10, 90])
    assert mean.get_label() == "ER  90.0"
    assert [numpy.ravel(run.get_ydata()).tolist() for run in runs] == [pytest.approx([50, 90]), pytest.approx([70, 90])]
    assert not axes.collections
    assert axes.get_title("left").endswith("; n = 2, each run thin")


def test_a_band_is_drawn_from_three_runs_on(drawn: list[Figure], tmp_path: Path) -> None:
    plots.curves([looked("er", seed, first=0.5 + seed / 10) for seed in range(3)], tmp_path / "a.png")
    [axes] = drawn[0].axes
    [band] = axes.collections
    half = 4.302652730 * 10 / 3**0.5  # 50, 60, 70 at the first look
    edge = [y for x, y in numpy.asarray(band.get_paths()[0].vertices) if x == 5]
    assert (min(edge), max(edge)) == pytest.approx((60 - half, 60 + half))
    assert len(axes.lines) == 1
    assert axes.get_title("left").endswith("; n = 3, 95 % intervals")


def test_a_reference_is_a_level_beside_tasks(drawn: list[Figure], tmp_path: Path) -> None:
    plots.picture([*finals("iid", 0.9), *finals("er", 0.3)], tmp_path / "a.png")
    level, mean, _ = drawn[0].axes[0].lines
    assert numpy.ravel(level.get_ydata()).tolist() == pytest.approx([90, 90])
    assert numpy.ravel(mean.get_xydata()).tolist() == pytest.approx([1, 90, 2, 30])


def test_curves_need_runs_that_measured_on_their_way(two_methods: list[Result], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--anytime K"):
        plots.curves(two_methods, tmp_path / "a.png")
    late = replace(looked("er", 1), anytime=[{"step": 7, "accuracy": [0.5]}])
    with pytest.raises(UsageError, match="runs of er never measured at the same step"):
        plots.curves([looked("er", 0), late], tmp_path / "a.png")


@pytest.mark.parametrize(("kind", "begin"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_suffix_decides_the_pictures_kind_and_equal_figures_are_equal_files(
    kind: str, begin: bytes, tmp_path: Path
) -> None:
    results = [looked("er", 0), looked("mir", 0)]
    for draw in (plots.picture, plots.curves):
        for name in ("a", "b"):
            draw(results, tmp_path / f"{name}.{kind}")
        assert (tmp_path / f"a.{kind}").read_bytes().startswith(begin)
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_prequential_curves_are_the_shares_of_each_stretch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [replace(result("er", seed, [[0.9]]), steps=25, prequential=[[3 + seed, 10], [5, 10]]) for seed in range(2)]
    runs[1].prequential.append([1, 5])  # one stretch more than the other has
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "_draw", lambda results, found, words, path, basis: drawn.extend(found))
    plots.prequential([*runs, result("mir", 0, [[0.9]])], tmp_path / "a.png")
    [curve] = drawn
    assert (curve.method, curve.x) == ("er", [10, 20])
    assert curve.runs == [pytest.approx([30, 50]), pytest.approx([40, 50])]
    with pytest.raises(UsageError, match="train with --prequential"):
        plots.prequential([result("mir", 0, [[0.9]])], tmp_path / "a.png")


def test_another_suffix_is_refused_and_the_three_named(two_methods: list[Result], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a\.jpg: pictures are drawn as \.png, \.svg, \.pdf"):
        plots.picture(two_methods, tmp_path / "a.jpg")


def test_a_report_is_written_in_every_form_asked_for(two_methods: list[Result], tmp_path: Path) -> None:
    assert report.write(two_methods, tmp_path) == [tmp_path / "cifar10.md", tmp_path / "cifar10.png"]
    assert (tmp_path / "cifar10.md").read_text() == report.markdown(two_methods)
    paths = report.write([*two_methods, looked("mir", 0)], tmp_path / "b", ("tex", "csv"), ("svg", "pdf"))
    names = ["cifar10.tex", "cifar10.csv"]
    names += [f"cifar10{what}.{kind}" for what in ("", "-anytime", "-prequential") for kind in ("svg", "pdf")]
    assert [path.name for path in paths] == names
    assert paths[0].read_text().startswith("% \\usepackage{booktabs}")
    assert paths[1].read_text().startswith("method,final accuracy %")
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == sorted(names)


@pytest.mark.parametrize("words", [{"formats": ("md", "html")}, {"pictures": ("jpg",)}])
def test_an_unknown_form_is_refused_before_anything_is_written(
    words: dict[str, Any], two_methods: list[Result], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="unknown format"):
        report.write(two_methods, tmp_path, **words)
    assert not list(tmp_path.iterdir())


def test_methods_that_end_below_one_that_trains_nothing_are_marked() -> None:
    results = [
        *finals("er", 0.5, 0.6),
        *finals("er-fsl", 0.8, 0.9),
        *finals("slda", 0.7, 0.7),
        *finals("ncm", 0.9, 0.2),
    ]
    table = report.overview(results)
    assert [row[0].text for row in table.rows] == ["ER †", "ER-FSL", "SLDA", "NCM"]
    assert "†: ends below SLDA, which trains no network and replays nothing" in table.notes
    assert report.below_statistics(results) == {"er": "slda"}
    assert report.below_statistics(results[:4]) == {}
    assert not any("†" in note for note in report.overview(results[:4]).notes)
