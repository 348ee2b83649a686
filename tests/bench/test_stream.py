"""The stream is decided by the seed alone: which classes come when, and every sample once."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import rng
from onepass.bench import run
from onepass.bench.evaluate import Predicted
from onepass.bench.run import Run
from onepass.bench.run_config import RunConfig
from onepass.bench.stream import StreamConfig, TaskData, batches, make_tasks, n_batches, parts
from onepass.data import Dataset
from onepass.data.catalog import STREAMS, canonical, find_stream, load
from onepass.errors import UsageError
from onepass.learner.batch import Batch, Task
from onepass.learner.contract import BaseLearner
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


def test_task_incremental_is_the_class_incremental_stream_with_the_tasks_told() -> None:
    data, names = numbered_data(), ("class-incremental", "task-incremental")
    plain, told = (make_tasks(data, StreamConfig(name, 3), seed=4)[1] for name in names)
    for ours, theirs in zip(told, plain, strict=True):
        assert (ours.info, theirs.among, ours.among) == (theirs.info, None, theirs.info.classes)
        assert torch.equal(ours.train, theirs.train)
        assert torch.equal(ours.test, theirs.test)


def gradual(data: Dataset, n: int, n_tasks: int, seed: int = 0) -> list[TaskData]:
    return make_tasks(data, StreamConfig(f"gradual-{n}", n_tasks), seed=seed)[1]


def test_gradual_0_is_the_task_free_stream() -> None:
    data = numbered_data()
    for ours, theirs in zip(gradual(data, 0, 3, seed=4), class_incremental(data, 3, seed=4), strict=True):
        assert ours.info == theirs.info
        assert torch.equal(ours.train, theirs.train)
        assert torch.equal(ours.test, theirs.test)


@pytest.mark.parametrize("n", [10, 30, 100])
def test_gradual_boundaries_mix_so_much_of_each_task_with_its_neighbours(n: int) -> None:
    """Six classes of 200 in three tasks: outside of n / 2 % at each inner end, all is as it was."""
    data = numbered_data(per_class=200)
    plain, mixed = class_incremental(data, 3, seed=4), gradual(data, n, 3, seed=4)
    half = 400 * n // 200
    order, old = (torch.cat([task.train for task in tasks]) for tasks in (mixed, plain))
    assert sorted(order.tolist()) == list(range(1200)), "every sample comes exactly once"
    assert [len(task.train) for task in mixed] == [400] * 3
    for boundary in (400, 800):
        around = slice(boundary - half, boundary + half)
        assert sorted(order[around].tolist()) == sorted(old[around].tolist())
        assert set(order[boundary - half : boundary].tolist()) & set(old[boundary : boundary + half].tolist())
    pure = torch.ones(1200, dtype=torch.bool)
    pure[400 - half : 400 + half] = pure[800 - half : 800 + half] = False
    assert torch.equal(order[pure], old[pure])
    assert classes_of(mixed) == classes_of(plain)
    for ours, theirs in zip(mixed, plain, strict=True):
        assert torch.equal(ours.test, theirs.test), "a task is measured on the classes that are mainly its own"


def test_the_share_of_the_new_task_rises_in_a_line() -> None:
    """Over many seeds, in the k-th tenth of the mixture (2 k - 1) / 20 of the samples are of the new task."""
    data, seeds = numbered_data(n_classes=2, per_class=100), 200
    tenths = torch.zeros(10)
    for seed in range(seeds):
        tasks = gradual(data, 100, 2, seed)
        labels = data.y[torch.cat([task.train for task in tasks])]
        assert (labels[:50] == tasks[0].info.classes[0]).all()
        tenths += (labels[50:150] == tasks[1].info.classes[0]).float().view(10, 10).mean(1) / seeds
    assert torch.allclose(tenths, torch.arange(1, 20, 2) / 20, atol=0.03)  # 2000 samples each: 0.011 is one deviation


def test_gradual_boundaries_are_not_told() -> None:
    for scenario, by_itself in (("gradual-50", True), ("task-free", True), ("class-incremental", False)):
        state = Run(RunConfig("finetune", scenario=scenario, fraction=0.1, batch=20))
        state.advance()
        assert (state.learner.arrived is not None) == by_itself, "the step at which a task began by itself"


def test_tasks_that_mix_at_both_ends_do_so_apart() -> None:
    """Seven samples a class, all of them to be mixed: three at either end, and one that stays where it is."""
    data = numbered_data(n_classes=3)
    plain, mixed = class_incremental(data, 3, seed=1), gradual(data, 100, 3, seed=1)
    assert mixed[1].train[3] == plain[1].train[3]
    assert torch.equal(mixed[0].train[:4], plain[0].train[:4])


@pytest.mark.parametrize("name", ["gradual-101", "gradual-N", "gradual-", "gradual", "gradual--1", "gradual-1.5"])
def test_a_gradual_scenario_needs_a_share(name: str) -> None:
    with pytest.raises(UsageError, match=r"N is per cent, from 0 to 100|unknown scenario"):
        make_tasks(numbered_data(), StreamConfig(name), seed=0)


OLD = {  # by version 0.1.0, on the digits with seed 3: classes, training and test rows of every task
    StreamConfig(): "4203eedd1aac6c03",
    StreamConfig(n_tasks=3, class_order="7,1,2,3,4,5,6,0,8,9"): "5ae332d3694f96a0",
    StreamConfig("task-free", fraction=0.3): "418163ba475766f6",
    StreamConfig("iid"): "58ec93661305b844",
    StreamConfig("iid++", validate=True): "c990484d61e0653a",
    StreamConfig("i-blurry-50-10", fraction=0.5, validate=True): "b6aae30242b6faf0",
}


@pytest.mark.parametrize("config", OLD)
def test_streams_stay_what_they_were_when_runs_were_stored(config: StreamConfig) -> None:
    digest = hashlib.sha256()
    for task in make_tasks(load("digits"), config, seed=3)[1]:
        rows = [task.train, task.test, *([] if task.second is None else [task.second])]
        digest.update(repr([task.info.classes, *(chosen.tolist() for chosen in rows)]).encode())
    assert digest.hexdigest()[:16] == OLD[config]


def with_domains(n_domains: int = 3, n_classes: int = 4, per_kind: int = 10) -> Dataset:
    """Numbered images in a mixed order: of each class in each domain so many to train on, and three to test on."""
    kinds = n_domains * n_classes
    train, test = (torch.arange(kinds * n) % kinds for n in (per_kind, 3))
    train = train[torch.randperm(len(train), generator=rng(5))]
    return Dataset(
        _numbers(len(train)),
        train % n_classes,
        _numbers(len(test)),
        test % n_classes,
        tuple("abcdefgh"[:n_classes]),
        "",
        train // n_classes,
        test // n_classes,
        ("photo", "sketch", "clay", "wood")[:n_domains],
    )


def domain_incremental(data: Dataset, seed: int = 0, **changes: Any) -> list[TaskData]:
    return make_tasks(data, StreamConfig(**{"scenario": "domain-incremental", "n_tasks": 0, **changes}), seed=seed)[1]


def test_domain_incremental_tasks_bring_the_same_classes_of_other_domains() -> None:
    data = with_domains()
    assert data.domain is not None
    assert data.domain_test is not None
    tasks = domain_incremental(data, class_order="fixed")
    assert [task.domains for task in tasks] == [(0,), (1,), (2,)]
    for place, task in enumerate(tasks):
        assert task.info == Task(place, (0, 1, 2, 3))
        assert sorted(task.train.tolist()) == [n for n, d in enumerate(data.domain.tolist()) if d == place]
        assert sorted(task.test.tolist()) == [n for n, d in enumerate(data.domain_test.tolist()) if d == place]
        seen = passed(data, task, 7)
        assert [row for rows in seen for row in rows] == task.train.tolist() != sorted(task.train.tolist())


def test_domains_come_in_an_order_of_the_seed_or_as_asked_for() -> None:
    data = with_domains(4)
    orders = [[task.domains for task in domain_incremental(data, seed)] for seed in (1, 1, *range(2, 12))]
    assert orders[0] == orders[1]
    assert len({str(order) for order in orders}) > 4
    named = domain_incremental(data, n_tasks=2, class_order="clay,photo,3,sketch")
    assert [task.domains for task in named] == [(2, 0), (3, 1)]
    with pytest.raises(UsageError, match="5 tasks of 4 domains: give --tasks from 1 to 4"):
        domain_incremental(data, n_tasks=5)
    with pytest.raises(UsageError, match="unknown domain 'cla'; did you mean 'clay'"):
        domain_incremental(data, class_order="cla,photo")
    with pytest.raises(UsageError, match="expected each of the 4 domains once"):
        domain_incremental(data, class_order="clay,photo")


def test_a_domain_may_lack_a_class() -> None:
    data = with_domains()
    assert data.domain is not None
    keep = ~((data.domain == 1) & (data.y == 2))
    fewer = replace(data, x=data.x[keep], y=data.y[keep], domain=data.domain[keep])
    assert classes_of(domain_incremental(fewer, class_order="fixed")) == [(0, 1, 2, 3), (0, 1, 3), (0, 1, 2, 3)]
    assert len(parts(fewer, 0.5)[1]) == 5 * 11


def test_test_images_of_other_domains_measure_every_task() -> None:
    data = with_domains(4)
    assert data.domain is not None
    assert data.domain_test is not None
    learned, tested = data.domain % 2 == 0, data.domain_test % 2 == 1
    apart = replace(
        data,
        x=data.x[learned],
        y=data.y[learned],
        domain=data.domain[learned],
        x_test=data.x_test[tested],
        y_test=data.y_test[tested],
        domain_test=data.domain_test[tested],
    )
    tasks = domain_incremental(apart, class_order="fixed")
    assert [task.domains for task in tasks] == [(0,), (2,)]
    assert [task.test.tolist() for task in tasks] == [list(range(24))] * 2
    partly = replace(apart, domain_test=torch.zeros(24, dtype=torch.int64))
    with pytest.raises(UsageError, match="there are no test images of the domain 'clay'"):
        domain_incremental(partly, class_order="fixed")


def test_data_without_domains_cannot_be_domain_incremental() -> None:
    with pytest.raises(UsageError, match="this data has no domains; expected a folder of domain/class/image"):
        domain_incremental(numbered_data())


def test_other_scenarios_mix_the_domains() -> None:
    data = with_domains()
    assert data.domain is not None
    for task in class_incremental(data, 2, seed=0):
        assert data.domain[task.train].bincount().tolist() == [20, 20, 20]
        assert task.domains == ()


def test_shares_are_of_every_class_in_every_domain() -> None:
    data = with_domains(per_kind=20)
    measured, learned, held = parts(data, 0.5, validate=True)
    assert data.domain is not None
    assert measured.domain_test is data.domain
    kinds = data.domain * 4 + data.y
    assert kinds[held].bincount().tolist() == [2] * 12
    assert kinds[learned].bincount().tolist() == [9] * 12
    tasks = domain_incremental(data, class_order="fixed", validate=True)
    assert [data.domain[task.test].tolist() for task in tasks] == [[d] * 8 for d in range(3)]
    with pytest.raises(UsageError, match="class 'photo/a' has 1 training images: to validate"):
        parts(with_domains(per_kind=1), validate=True)


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


@pytest.mark.parametrize("validate", [False, True])
def test_a_test_fraction_is_the_same_share_of_every_class_that_is_measured(validate: bool) -> None:
    data = numbered_data(n_classes=4, per_class=200)
    whole = parts(data, validate=validate)
    for share in (0.5, 0.25, 0.001):
        measured, learned, tested = parts(data, validate=validate, test_fraction=share)
        assert measured.x_test is whole[0].x_test
        assert learned.tolist() == whole[1].tolist(), "what is learned does not depend on what is measured"
        labels = measured.y_test[whole[2]].bincount().tolist()
        assert measured.y_test[tested].bincount().tolist() == [max(1, round(share * number)) for number in labels]
        assert set(tested.tolist()) <= set(whole[2].tolist())
        for seed in (0, 1):
            tasks = make_tasks(data, StreamConfig(n_tasks=2, validate=validate, test_fraction=share), seed=seed)[1]
            assert sorted(row for task in tasks for row in task.test.tolist()) == tested.tolist(), "as for every seed"
    small, large = (set(parts(data, validate=validate, test_fraction=share)[2].tolist()) for share in (0.25, 0.5))
    assert small < large


def test_a_test_fraction_is_the_same_share_of_every_class_in_every_domain() -> None:
    data = load("inverted-digits")
    assert data.domain_test is not None
    whole, half = (parts(data, test_fraction=share)[2] for share in (1.0, 0.5))

    def counts(rows: Tensor) -> list[int]:
        assert data.domain_test is not None
        found: list[int] = (data.domain_test[rows] * 10 + data.y_test[rows]).bincount().tolist()
        return found

    assert counts(half) == [round(number / 2) for number in counts(whole)]


def test_the_stream_draws_nothing_from_the_global_generator() -> None:
    data, before = numbered_data(), torch.get_rng_state()
    for task in class_incremental(data, 3, seed=0):
        list(batches(data, task, 4))
    assert torch.equal(torch.get_rng_state(), before)


def test_every_method_meets_the_same_stream_however_much_chance_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Predicted(torch.tensor([0]), torch.tensor([0]))
    monkeypatch.setattr(run, "predictions", lambda learner, data, tasks, n_last: [known] * len(tasks))
    met: dict[str, list[object]] = {}

    def observe(self: BaseLearner, batch: Batch) -> Tensor:
        torch.rand(len(met), generator=self.rng)
        torch.rand(len(met), generator=self.memory.rng)
        met[method].append((batch.x.numpy().tobytes(), batch.y.tolist()))
        return torch.tensor(0.0)

    def begin_task(self: BaseLearner, task: object) -> None:
        met[method].append(task)

    monkeypatch.setattr(BaseLearner, "observe", observe)
    monkeypatch.setattr(BaseLearner, "begin_task", begin_task)
    for method in METHODS:
        met[method] = []
        Run(RunConfig(method, seed=3, scenario="class-incremental")).advance()
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
