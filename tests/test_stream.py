"""The stream is decided by the seed alone: which classes come when, and every sample once."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from helpers import rng
from onepass import runner
from onepass.batch import Batch
from onepass.data import Dataset
from onepass.errors import UsageError
from onepass.learner import Learner
from onepass.methods import METHODS
from onepass.stream import STREAMS, TaskData, batches, class_incremental, find_stream, load, n_batches


def numbered_data(n_classes: int = 6, per_class: int = 7) -> Dataset:
    """Training images whose four pixels are their row number in base 256; labels in a shuffled order."""
    n = n_classes * per_class
    y = (torch.arange(n) % n_classes)[torch.randperm(n, generator=rng(4))]
    y_test = torch.arange(3 * n_classes) % n_classes
    return Dataset(_numbers(n), y, _numbers(len(y_test)), y_test, tuple(map(str, range(n_classes))))


def _numbers(n: int) -> Tensor:
    rows = torch.arange(n)
    return torch.stack([rows >> shift & 255 for shift in (24, 16, 8, 0)], 1).to(torch.uint8).view(n, 1, 2, 2)


def row_of(x: Tensor) -> list[int]:
    return (x.flatten(1).long() * torch.tensor([1 << 24, 1 << 16, 1 << 8, 1])).sum(1).tolist()


def passed(data: Dataset, task: TaskData, size: int, seed: int, start: int = 0) -> list[list[int]]:
    """The row numbers of every batch; labels must belong to the images."""
    seen = []
    for batch in batches(data, task, size, seed=seed, start=start):
        rows = row_of(batch.x)
        assert batch.y.tolist() == data.y[rows].tolist()
        seen.append(rows)
    return seen


def classes_of(tasks: list[TaskData]) -> list[tuple[int, ...]]:
    return [task.info.classes for task in tasks]


@pytest.mark.parametrize("n_tasks", [1, 2, 3, 6])
def test_tasks_share_no_class_and_cover_all(n_tasks: int) -> None:
    tasks = class_incremental(numbered_data(), n_tasks, seed=0)
    assert [task.info.index for task in tasks] == list(range(n_tasks))
    assert {len(classes) for classes in classes_of(tasks)} == {6 // n_tasks}
    assert sorted(c for classes in classes_of(tasks) for c in classes) == list(range(6))


def test_a_tasks_rows_are_all_those_of_its_classes() -> None:
    data = numbered_data()
    for task in class_incremental(data, 3, seed=0):
        for rows, labels in ((task.train, data.y), (task.test, data.y_test)):
            expected = [row for row, label in enumerate(labels.tolist()) if label in task.info.classes]
            assert rows.tolist() == expected


def test_the_same_seed_gives_the_same_stream_and_another_seed_another() -> None:
    data = numbered_data(n_classes=10)
    first, again, other = (class_incremental(data, 5, seed=seed) for seed in (1, 1, 2))
    assert classes_of(first) == classes_of(again) != classes_of(other)
    assert passed(data, first[0], 4, seed=1) == passed(data, first[0], 4, seed=1)
    assert passed(data, first[0], 4, seed=1) != passed(data, first[0], 4, seed=2)


def test_class_orders_over_many_seeds_put_each_class_first_equally_often() -> None:
    data, seeds = numbered_data(n_classes=4, per_class=1), 2000
    firsts = torch.tensor([class_incremental(data, 4, seed=seed)[0].info.classes[0] for seed in range(seeds)])
    expected = seeds / 4
    assert ((firsts.bincount(minlength=4) - expected) ** 2 / expected).sum() < 16.3  # 99.9 % of chi-square with 3


@pytest.mark.parametrize("size", [1, 4, 5, 14, 100])
def test_every_sample_comes_exactly_once_and_the_last_short_batch_is_kept(size: int) -> None:
    data = numbered_data()
    everything = []
    for task in class_incremental(data, 3, seed=5):
        seen = passed(data, task, size, seed=5)
        assert [len(rows) for rows in seen[:-1]] == [size] * (len(seen) - 1)
        assert len(seen[-1]) == (14 % size or size if size <= 14 else 14)
        assert len(seen) == n_batches(task, size)
        everything += [row for rows in seen for row in rows]
    assert sorted(everything) == list(range(len(data.y)))


def test_samples_of_a_task_are_shuffled_differently_in_each() -> None:
    data = numbered_data()
    places = []
    for task in class_incremental(data, 3, seed=5):
        [rows] = passed(data, task, 14, seed=5)
        assert rows != sorted(rows)
        places.append([task.train.tolist().index(row) for row in rows])
    assert places[0] != places[1] != places[2]


def test_the_order_of_samples_does_not_depend_on_the_batch_size() -> None:
    data = numbered_data()
    task = class_incremental(data, 3, seed=5)[1]
    orders = [[row for rows in passed(data, task, size, seed=5) for row in rows] for size in (1, 5, 14)]
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.parametrize("start", [0, 1, 3, 4])
def test_a_stream_continued_from_a_batch_is_the_rest_of_the_whole(start: int) -> None:
    data = numbered_data()
    task = class_incremental(data, 3, seed=5)[2]
    whole = passed(data, task, 4, seed=5)
    assert len(whole) == 4
    assert passed(data, task, 4, seed=5, start=start) == whole[start:]


@pytest.mark.parametrize("n_tasks", [4, 5, 7])
def test_classes_that_do_not_divide_into_the_tasks_are_refused(n_tasks: int) -> None:
    with pytest.raises(UsageError, match=f"6 classes do not divide into {n_tasks} tasks of equal size"):
        class_incremental(numbered_data(), n_tasks, seed=0)


def test_the_stream_draws_nothing_from_the_global_generator() -> None:
    data, before = numbered_data(), torch.get_rng_state()
    for task in class_incremental(data, 3, seed=0):
        list(batches(data, task, 4, seed=0))
    assert torch.equal(torch.get_rng_state(), before)


def test_every_method_meets_the_same_stream_however_much_chance_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "accuracy_by_task", lambda learner, data, tasks: [0.0] * len(tasks))
    met: dict[str, list[object]] = {}

    def observe(self: Learner, batch: Batch) -> Tensor:
        torch.rand(len(met), generator=self.rng)
        torch.rand(len(met), generator=self.memory.rng)
        met[method].append((batch.x.numpy().tobytes(), batch.y.tolist()))
        return torch.tensor(0.0)

    def begin_task(self: Learner, task: object) -> None:
        met[method].append(task)

    monkeypatch.setattr(Learner, "observe", observe)
    monkeypatch.setattr(Learner, "begin_task", begin_task)
    for method in METHODS:
        met[method] = []
        runner.Run(runner.RunConfig(method, seed=3)).advance(lambda: None)
    reference = met["finetune"]
    assert sum(len(entry[1]) for entry in reference if isinstance(entry, tuple)) == len(load("digits").y)
    for method in METHODS:
        assert met[method] == reference, f"{method} met another stream"


def test_the_digits_stream_has_five_tasks_of_two_digits() -> None:
    stream, data = find_stream("digits"), load("digits")
    assert (stream.n_tasks, len(data.classes)) == (5, 10)
    assert [len(classes) for classes in classes_of(class_incremental(data, stream.n_tasks, seed=0))] == [2] * 5


def test_an_unknown_stream_names_the_nearest() -> None:
    message = "unknown stream 'digit'; did you mean 'digits'? (onepass streams lists all: "
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        find_stream("digit")
    assert "digits" in STREAMS
