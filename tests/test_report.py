"""Tables from stored results, against numbers worked out by hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from onepass import report, store
from onepass.methods import METHODS
from onepass.metrics import Summary
from onepass.results import Result, RunConfig

ROOT = Path(__file__).resolve().parent.parent


def result(method: str, seed: int, matrix: list[list[float]], **settings: object) -> Result:
    config = RunConfig(method, stream="cifar10", net="slim-resnet18", seed=seed, fraction=0.2, settings=settings)
    return Result(config, matrix, 10, 1.0, "bits", {}, {})


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
    assert final.interval == pytest.approx(12.7062047 * 0.05)
    assert final.n == 2
    forgotten = found["finetune"]["forgetting"]
    assert forgotten is not None
    assert forgotten.mean == pytest.approx(0.7)  # (0.8 + 0.6) / 2
    assert found["er"]["final_accuracy"] == Summary(pytest.approx(0.6), None, 1)
    assert found["er"]["learning_accuracy"] == Summary(pytest.approx(0.8), None, 1)


def test_one_task_has_no_forgetting() -> None:
    assert report.summary([result("iid", 0, [[0.5]])])["iid"]["forgetting"] is None
    assert "| n/a |" in report.markdown([result("iid", 0, [[0.5]])])


def test_the_markdown_table_line_by_line(two_methods: list[Result]) -> None:
    assert report.markdown(two_methods).splitlines() == [
        "cifar10, 2 tasks, slim-resnet18, memory 1000",
        "",
        "| method | final accuracy % | forgetting % | just after learning % | runs |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| FINE-TUNE | 45.0 ± 63.5 | 70.0 ± 127.1 | 80.0 ± 0.0 | 2 |",
        "| ER | 60.0 ± n/a | 40.0 ± n/a | 80.0 ± n/a | 1 |",
        "",
        report.NOTE,
    ]


def test_the_json_document_has_every_run_and_the_summary(two_methods: list[Result]) -> None:
    document = report.document(two_methods)
    assert [run["method"] for run in document["runs"]] == ["finetune", "finetune", "er"]
    assert document["summary"]["er"]["final_accuracy"] == {"mean": pytest.approx(0.6), "interval": None, "n": 1}


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_methods: list[Result]) -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_tool", ROOT / "tools" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "docs_tool", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    for one in two_methods:
        store.save_result(store.folder(tmp_path / "runs", one.config), one)
    return module


def test_printed_and_measured_stand_side_by_side(docs: ModuleType) -> None:
    lines = docs.reproduction("runs").splitlines()
    assert lines[2] == (
        "| FINE-TUNE | 16.6 ± 1.4 | 2 | 45.0 ± 63.5 | 2 | 2 | 70.0 ± 127.1 | "
        "`onepass run finetune --stream cifar10 --net slim-resnet18 --fraction 0.2` |"
    )
    assert lines[3].startswith(
        "| ER | 43.2 ± 5.6 | 1 | 60.0 ± n/a | 1 | 1 | 40.0 ± n/a | `onepass run er --stream cifar10"
    )
    assert "--memory 1000 --fraction 0.2`" in lines[3]


def test_a_methods_page_shows_what_was_run_and_says_if_nothing_was(docs: ModuleType, tmp_path: Path) -> None:
    assert docs.figures("er") == "Not run yet."
    one = result("er", 0, [[0.9], [0.5, 0.7]], memory=1000)
    store.save_result(store.folder(tmp_path / "results" / "cifar10-fifth", one.config), one)
    command = "onepass run er --stream cifar10 --net slim-resnet18 --memory 1000 --fraction 0.2"
    assert docs.figures("er").splitlines()[-1] == f"| `{command}` | 43.2 ± 5.6 | 60.0 ± n/a | 1 |"
    assert docs.figures("finetune") == "Not run yet."


def test_costs_stand_beside_each_other(docs: ModuleType, tmp_path: Path) -> None:
    assert docs.cost("cost.json") == "Not measured yet."
    (tmp_path / "cost.json").write_text('{"mir": {"flops": 2.0, "time": 1.5, "er_ms": 1.0, "ms": 1.5}}')
    assert docs.cost("cost.json").splitlines()[2] == "| MIR | 2.00 | 1.50 | 0.75 |"


def test_rows_without_tasks_and_many_methods_fit_into_one_picture(tmp_path: Path) -> None:
    results = [result(name, 0, [[0.5]] if name.startswith("iid") else [[0.9], [0.1, 0.7]]) for name in METHODS]
    assert report.caption(results[1:]).startswith("cifar10, 2 tasks")
    report.picture(results, tmp_path / "all.png")
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


def test_readings_of_the_protocol_are_told_apart(docs: ModuleType, tmp_path: Path) -> None:
    joint = result("er", 1, [[0.9], [0.1, 0.3]], memory=1000, forward="joint")
    store.save_result(store.folder(tmp_path / "runs", joint.config), joint)
    lines = docs.protocol("runs").splitlines()
    assert "| ER | seen | separate | mean | - | 60.0 ± n/a | 40.0 ± n/a | 0 |" in lines
    assert "| ER | seen | joint | mean | - | 20.0 ± n/a | 80.0 ± n/a | 1 |" in lines


def test_a_block_is_replaced_and_the_rest_left(docs: ModuleType) -> None:
    text = "before\n<!-- generated: table runs -->\nold\n<!-- /generated -->\nafter\n"
    filled = docs.filled(text)
    assert filled.startswith("before\n<!-- generated: table runs -->\ncifar10, 2 tasks")
    assert filled.endswith("2018\n<!-- /generated -->\nafter\n")
    assert docs.filled(filled) == filled
