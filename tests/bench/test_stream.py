"""The stream is decided by the seed alone: which classes come when, and every sample once."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from helpers import rng
from onepass.bench import runner
from onepass.bench.run_config import RunConfig
from onepass.bench.stream import StreamConfig, TaskData, batches, make_tasks, n_batches, parts
from onepass.data import Dataset
from onepass.data.catalog import STREAMS, canonical, find_stream, load
from onepass.errors import UsageError
from onepass.learner.base import Learner
from onepass.learner.batch import Batch
from onepass.methods.registry import METHODS


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


def class_incremental(data: Dataset, n_tasks: int, *, seed: int) -> list[TaskData]:
    return make_tasks(data, StreamConfig(n_tasks=n_tasks), seed=seed)[1]


def passed(data: Dataset, task: TaskData, size: int, start: int = 0) -> list[list[int]]:
    """The row numbers of every batch; labels must belong to the images."""
    seen = []
    for batch in batches(data, task, size, start=start):
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
            assert sorted(rows.tolist()) == expected


def test_the_same_seed_gives_the_same_stream_and_another_seed_another() -> None:
    data = numbered_data(n_classes=10)
    first, again, other = (class_incremental(data, 5, seed=seed) for seed in (1, 1, 2))
    assert classes_of(first) == classes_of(again) != classes_of(other)
    assert passed(data, first[0], 4) == passed(data, again[0], 4)
    rows = [task.train.tolist() for stream in (first, other) for task in stream if 3 in task.info.classes]
    assert [row for row in rows[0] if data.y[row] == 3] != [row for row in rows[1] if data.y[row] == 3]


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
        seen = passed(data, task, size)
        assert [len(rows) for rows in seen[:-1]] == [size] * (len(seen) - 1)
        assert len(seen[-1]) == (14 % size or size if size <= 14 else 14)
        assert len(seen) == n_batches(task, size)
        everything += [row for rows in seen for row in rows]
    assert sorted(everything) == list(range(len(data.y)))


def test_samples_of_a_task_are_shuffled_differently_in_each() -> None:
    data = numbered_data()
    places = []
    for task in class_incremental(data, 3, seed=5):
        [rows] = passed(data, task, 14)
        assert rows != sorted(rows)
        places.append([sorted(rows).index(row) for row in rows])
    assert places[0] != places[1] != places[2]


def test_the_order_of_samples_does_not_depend_on_the_batch_size() -> None:
    data = numbered_data()
    task = class_incremental(data, 3, seed=5)[1]
    orders = [[row for rows in passed(data, task, size) for row in rows] for size in (1, 5, 14)]
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.parametrize("start", [0, 1, 3, 4])
def test_a_stream_continued_from_a_batch_is_the_rest_of_the_whole(start: int) -> None:
    data = numbered_data()
    task = class_incremental(data, 3, seed=5)[2]
    whole = passed(data, task, 4)
    assert len(whole) == 4
    assert passed(data, task, 4, start=start) == whole[start:]


def test_classes_that_do_not_divide_are_spread_as_evenly_as_can_be() -> None:
    assert [len(classes) for classes in classes_of(class_incremental(numbered_data(), 4, seed=0))] == [2, 2, 1, 1]


@pytest.mark.parametrize("n_tasks", [0, -1, 7])
def test_more_tasks_than_classes_or_none_are_refused(n_tasks: int) -> None:
    with pytest.raises(UsageError, match=f"{n_tasks} tasks of 6 classes: give --tasks from 1 to 6"):
        class_incremental(numbered_data(), n_tasks, seed=0)


def test_a_class_order_is_fixed_or_given_by_name_or_number() -> None:
    data = numbered_data(n_classes=4)
    named = Dataset(data.x, data.y, data.x_test, data.y_test, ("cat", "dog", "3", "owl"))
    orders = {"fixed": [(0, 1), (2, 3)], "owl,cat,dog,3": [(3, 0), (1, 2)], "1,0,3,owl": [(1, 0), (2, 3)]}
    for order, expected in orders.items():
        config = StreamConfig(n_tasks=2, class_order=order)
        assert classes_of(make_tasks(named, config, seed=9)[1]) == expected
    with pytest.raises(UsageError, match="expected each of the 4 classes once"):  # "3" is the name of class 2
        make_tasks(named, StreamConfig(n_tasks=2, class_order="1,0,2,3"), seed=9)


def test_iid_is_every_sample_once_in_one_task_and_iidpp_twice() -> None:
    data = numbered_data()
    for scenario, visits in (("iid", 1), ("iid++", 2)):
        _, [task] = make_tasks(data, StreamConfig(scenario, 3), seed=2)
        assert task.info.classes == tuple(range(6))
        seen = passed(data, task, 4)
        assert sorted(row for rows in seen for row in rows) == sorted(list(range(42)) * visits)
        assert [len(rows) for rows in seen] == [4 * visits] * 10 + [2 * visits]
        assert len(task.test) == len(data.y_test)


def test_the_second_batch_of_iidpp_is_independent_of_the_first() -> None:
    data = numbered_data(n_classes=10, per_class=100)
    _, [task] = make_tasks(data, StreamConfig("iid++"), seed=2)
    shared = sum(len(set(rows[:10]) & set(rows[10:])) for rows in passed(data, task, 10))
    assert shared <= 25  # 10 * 10 / 1000 a step, 100 steps: about 10


def test_i_blurry_keeps_the_disjoint_classes_apart_and_blurs_the_others() -> None:
    data = numbered_data(n_classes=10, per_class=100)
    _, tasks = make_tasks(data, StreamConfig("i-blurry-50-10", 5), seed=3)
    plain = classes_of(class_incremental(data, 5, seed=3))
    rows = [row for task in tasks for row in task.train.tolist()]
    assert sorted(rows) == list(range(1000)), "every sample comes exactly once"
    counts = torch.stack([data.y[task.train].bincount(minlength=10) for task in tasks])
    for home, group in enumerate(plain):
        alone, blurred = group
        assert counts[:, alone].tolist() == [100 if task == home else 0 for task in range(5)]
        assert counts[home, blurred] == 90
        assert sorted(counts[:, blurred].tolist()) == [2, 2, 3, 3, 90]
        assert set(data.y_test[tasks[home].test].tolist()) == set(group)
        assert set(tasks[home].info.classes) == set(counts[home].nonzero().flatten().tolist())


def test_i_blurry_without_blur_or_with_disjoint_classes_only_is_class_incremental() -> None:
    data = numbered_data(n_classes=10)
    for name in ("i-blurry-100-30", "i-blurry-0-0"):
        _, tasks = make_tasks(data, StreamConfig(name, 5), seed=3)
        assert [set(c) for c in classes_of(tasks)] == [set(c) for c in classes_of(class_incremental(data, 5, seed=3))]


def test_a_fraction_is_the_same_share_of_every_class_and_larger_ones_contain_smaller_ones() -> None:
    data = numbered_data(n_classes=4, per_class=50)
    small, large = (parts(data, fraction)[1] for fraction in (0.2, 0.6))
    assert data.y[small].bincount().tolist() == [10] * 4
    assert data.y[large].bincount().tolist() == [30] * 4
    assert set(small.tolist()) < set(large.tolist())


def test_validation_images_are_a_tenth_of_each_class_never_learned_and_no_test_images() -> None:
    data = numbered_data(n_classes=4, per_class=50)
    measured, learned, held = parts(data, validate=True)
    assert measured.x_test is data.x
    assert data.y[held].bincount().tolist() == [5] * 4
    assert sorted([*learned.tolist(), *held.tolist()]) == list(range(200))
    seen = make_tasks(data, StreamConfig(n_tasks=2, validate=True), seed=1)
    assert seen[0].x_test is data.x
    assert sorted(row for task in seen[1] for row in task.test.tolist()) == held.tolist()
    assert sorted(row for task in seen[1] for row in task.train.tolist()) == learned.tolist()
    assert parts(data, 0.5, validate=True)[2].tolist() == held.tolist(), "a fraction is measured on the same images"


def test_the_stream_draws_nothing_from_the_global_generator() -> None:
    data, before = numbered_data(), torch.get_rng_state()
    for task in class_incremental(data, 3, seed=0):
        list(batches(data, task, 4))
    assert torch.equal(torch.get_rng_state(), before)


def test_every_method_meets_the_same_stream_however_much_chance_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "accuracy_by_task", lambda learner, data, tasks, last=True: [0.0] * len(tasks))
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
        runner.Run(RunConfig(method, seed=3, scenario="class-incremental")).advance()
    reference = met["finetune"]
    assert sum(len(entry[1]) for entry in reference if isinstance(entry, tuple)) == len(load("digits").y)
    for method in METHODS:
        assert met[method] == reference, f"{method} met another stream"


def test_the_digits_stream_has_five_tasks_of_two_digits() -> None:
    stream, data = find_stream("digits"), load("digits")
    assert (stream.n_tasks, len(data.classes)) == (5, 10)
    assert [len(classes) for classes in classes_of(class_incremental(data, stream.n_tasks, seed=0))] == [2] * 5


def test_an_unknown_stream_names_the_nearest() -> None:
    message = "unknown stream 'digit'; did you mean 'digits'? (onepass streams lists all; "
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        canonical("digit")


def test_streams_are_known_by_the_names_that_others_use() -> None:
    spellings = {
        "cifar10": ["cifar10", "CIFAR10", "split-cifar10", "seq-cifar10", "SplitCIFAR10", "split_cifar10"],
        "cifar100": ["cifar100", "split-cifar100", "seq-cifar100", "SplitCIFAR100"],
        "mini-imagenet": ["mini-imagenet", "mini_imagenet", "MiniImageNet", "split-miniimagenet", "SplitMiniImageNet"],
    }
    for name, others in spellings.items():
        assert {canonical(other) for other in others} == {name}
    assert [STREAMS[name].n_tasks for name in spellings] == [5, 10, 10]


def test_a_class_of_one_image_cannot_be_learned_and_measured() -> None:
    data = numbered_data(per_class=1)
    assert len(parts(data)[1]) == 6
    with pytest.raises(UsageError, match="class '0' has 1 training images: to validate, expected 2 of each class"):
        parts(data, validate=True)
