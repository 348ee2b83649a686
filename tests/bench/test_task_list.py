"""Task lists of one's own: what they say decides the stream and the stored run, not the file that says it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from onepass.bench import store, task_list
from onepass.bench.run_config import RunConfig
from onepass.bench.runner import run
from onepass.bench.stream import StreamConfig, TaskData, make_tasks
from onepass.data import Dataset
from onepass.data.catalog import load
from onepass.errors import UsageError
from onepass.store import load_all

NAMES = ("cat", "dog", "ship", "car", "7")


def named_data() -> Dataset:
    y = torch.arange(50) % 5
    x = torch.arange(50, dtype=torch.uint8).view(50, 1, 1, 1)
    return Dataset(x, y, x[:10], y[:10], NAMES)


def tasks_of(order: str, **changes: Any) -> list[TaskData]:
    return make_tasks(named_data(), StreamConfig(class_order=task_list.canonical(order), **changes), seed=3)[1]


def written(path: Path, value: Any) -> str:
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return str(path)


def test_semicolons_separate_tasks_and_numbers_are_places_unless_they_are_names() -> None:
    tasks = tasks_of("car, cat;7;1")
    assert [task.info.classes for task in tasks] == [(3, 0), (4,), (1,)]
    assert [sorted(named_data().y[task.train].unique().tolist()) for task in tasks] == [[0, 3], [4], [1]]
    assert [sorted(named_data().y[task.test].unique().tolist()) for task in tasks] == [[0, 3], [4], [1]]


def test_a_file_means_what_its_contents_mean(tmp_path: Path) -> None:
    path = written(tmp_path / "tasks.json", [["car", 0], [7], ["dog"]])
    assert [task.info.classes for task in tasks_of(path)] == [(3, 0), (4,), (1,)]
    assert task_list.canonical(path) == "car,0;7;dog"
    assert task_list.canonical(" car ,0; 7;dog ") == "car,0;7;dog"


@pytest.mark.parametrize(
    "tasks",
    [
        [["cat"]],
        [["a,b"], ["c;d"]],
        [["[x"], ["y"]],
        [["x"], ["tasks.json"]],
        [["x", "y"], ["z"]],
        [["\u00fc"], ["b b"]],
    ],
)
def test_what_is_written_canonically_is_read_back_and_stays_as_it_is(tmp_path: Path, tasks: list[list[str]]) -> None:
    text = task_list.canonical(written(tmp_path / "tasks.json", tasks))
    assert task_list.parse(text) == tasks
    assert task_list.canonical(text) == text


@pytest.mark.parametrize("order", ["shuffled", "fixed", "cat, dog,ship,car,7", "0,1,2,3,4"])
def test_orders_that_list_no_tasks_stay_as_they_were(order: str) -> None:
    assert task_list.canonical(order) == order
    assert task_list.parse(order) is None


def test_the_key_of_a_run_is_that_of_the_contents(tmp_path: Path) -> None:
    digits = [[0, 1], [2, 3, 4]]
    one, other = (written(tmp_path / name, digits) for name in ("one.json", "other.json"))
    configs = [RunConfig("er", class_order=order) for order in (one, other, "0,1;2,3,4", "0, 1 ;2,3,4")]
    assert len({config.key for config in configs}) == 1
    assert {(config.class_order, config.tasks) for config in configs} == {("0,1;2,3,4", 2)}
    written(tmp_path / "one.json", [[0, 1], [2, 3], [4]])
    changed = RunConfig("er", class_order=one)
    assert (changed.key != configs[0].key, changed.tasks) == (True, 3)
    assert replace(configs[0], seed=5).class_order == "0,1;2,3,4", "the file is not asked again"
    assert RunConfig("er", class_order="0,1;2,3,4", tasks=2).key == configs[0].key


def test_keys_of_runs_without_a_list_are_those_of_version_0_1_0() -> None:
    orders = {"shuffled": "7b3840b63e", "fixed": "c9c39b972d", "7,1,2,3,4,5,6,0,8,9": "829d15b40f"}
    assert {order: RunConfig("er", class_order=order).key for order in orders} == orders


def test_a_number_of_tasks_beside_a_list_must_be_its_own() -> None:
    with pytest.raises(UsageError, match="tasks=5: the class order lists 2 tasks; leave one of the two out"):
        RunConfig("er", class_order="0,1;2,3", tasks=5)


def test_a_class_twice_or_unknown_is_named() -> None:
    with pytest.raises(UsageError, match="expected each of the classes at most once, got 'dog' twice"):
        tasks_of("cat,dog;1,car")
    with pytest.raises(UsageError, match="unknown class 'carr'; did you mean 'car'"):
        tasks_of("cat,dog;carr")
    for number in ("5", "-1", "9" * 5000, "\u00b2"):
        with pytest.raises(UsageError, match="unknown class"):
            tasks_of(f"cat;{number}")


def test_classes_that_no_task_lists_never_come_in_any_scenario() -> None:
    for scenario in ("class-incremental", "task-incremental", "task-free", "gradual-50", "i-blurry-50-50"):
        tasks = tasks_of("cat,ship;car", scenario=scenario)
        assert sorted(row for task in tasks for row in task.train.tolist()) == [
            n for n in range(50) if n % 5 in (0, 2, 3)
        ]
        assert sorted(row for task in tasks for row in task.test.tolist()) == [0, 2, 3, 5, 7, 8]
    for scenario in ("iid", "iid++"):
        [task] = tasks_of("ship,cat;car", scenario=scenario)
        assert task.info.classes == (0, 2, 3)
        assert sorted(task.train.tolist()) == [n for n in range(50) if n % 5 in (0, 2, 3)]


def test_domains_can_be_listed_too() -> None:
    config = StreamConfig("domain-incremental", class_order="75 degrees;0 degrees,2")
    _, tasks = make_tasks(load("rotated-digits"), config, seed=0)
    assert [task.domains for task in tasks] == [(5,), (0, 2)]


def test_a_run_with_a_list_is_stored_and_found_again(tmp_path: Path) -> None:
    order = written(tmp_path / "tasks.json", [[0, 1], ["9"]])
    config = RunConfig("finetune", class_order=order, batch=100)
    result = run(config, tmp_path / "out")
    assert result.protocol["tasks"] == [["0", "1"], ["9"]]
    os.unlink(order)
    assert run(config, tmp_path / "out") == result
    assert load_all(tmp_path / "out") == [result]


def test_a_strangers_result_makes_nobody_read_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = RunConfig("finetune", class_order="0;1", batch=200)
    run(config, tmp_path)
    file = store.folder(tmp_path, config) / "result.json"
    values = json.loads(file.read_text())
    values["config"]["class_order"] = written(tmp_path / "mine.json", [["0"], ["1"]])
    file.write_text(store.sign(values))
    assert load_all(tmp_path) == []
    assert "is damaged (its class order names a file)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        "[[]]",
        '["a", "b"]',
        '[["a"], "b"]',
        '[["a"], [null]]',
        '[["a"], [true]]',
        '[["a"], [1.5]]',
        '[["a"], [[1]]]',
        '[["a"], [" "]]',
        "[" * 100_000,
        "[[" + "9" * 5000 + "]]",
        "\ud800",
    ],
)
def test_files_that_are_no_task_list_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tasks.json"
    path.write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(UsageError, match="expected a list of tasks, each a list of classes"):
        RunConfig("er", class_order=str(path))


def test_a_file_is_read_within_bounds(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole of a terabyte
    with pytest.raises(UsageError, match="a task list of at most 1 MiB"):
        RunConfig("er", class_order=str(path))
    with pytest.raises(UsageError, match=r"nowhere\.json cannot be read: No such file"):
        RunConfig("er", class_order=str(tmp_path / "nowhere.json"))
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")  # opening it would wait for ever
    for name in ("folder.json", "pipe.json"):
        with pytest.raises(UsageError, match="expected a file of a task list"):
            RunConfig("er", class_order=str(tmp_path / name))
