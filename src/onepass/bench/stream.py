"""Scenarios: which samples come when. Decided by the data, the scenario's name and the seed alone."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from onepass.bench import task_list
from onepass.bench.scenarios import BLURRY, GRADUAL, check_scenario
from onepass.config import unknown
from onepass.data import Dataset
from onepass.data.catalog import find_stream
from onepass.errors import UsageError
from onepass.learner.batch import Batch, Task
from onepass.learner.problem import Problem
from onepass.seeds import generator

VALIDATION = 0.1


@dataclass(frozen=True)
class TaskData:
    """A task, its training rows in the order they arrive, and the test rows it is measured on."""

    info: Task
    train: Tensor
    test: Tensor
    second: Tensor | None = None  # iid++: rows of the second batch of each step
    domains: tuple[int, ...] = ()  # domain-incremental: those it brings
    among: tuple[int, ...] | None = None  # task-incremental: the classes that its images are predicted among


@dataclass(frozen=True)
class StreamConfig:
    """What decides a stream, beside the data and the seed."""

    scenario: str = "class-incremental"
    n_tasks: int = 5
    class_order: str = "shuffled"
    fraction: float = 1.0
    validate: bool = False
    test_fraction: float = 1.0


def make_tasks(data: Dataset, config: StreamConfig, *, seed: int) -> tuple[Dataset, list[TaskData]]:
    """The tasks in order, and the data that their rows are rows of."""
    check_scenario(config.scenario)
    data, learned, measured = parts(data, config.fraction, config.validate, config.test_fraction)
    scenario = config.scenario
    if scenario == "domain-incremental":
        return data, _by_domain(data, learned, measured, config, seed)
    groups = [tuple(range(len(data.classes)))]
    if not scenario.startswith("iid") or task_list.parse(config.class_order):  # which may list some classes only
        groups = _groups(data.classes, config.n_tasks, config.class_order, seed, "classes")
    if scenario.startswith("iid"):
        groups = [tuple(sorted(itertools.chain(*groups)))]
    tests = [_rows(data.y_test, measured, classes) for classes in groups]
    blurry = BLURRY.fullmatch(scenario)
    if blurry:
        disjoint, blur = (int(part) / 100 for part in blurry.groups())
        return data, _blurry(data.y, learned, groups, tests, disjoint, blur, seed)
    tasks = []
    for index, (classes, test) in enumerate(zip(groups, tests, strict=True)):
        train = _rows(data.y, learned, classes)
        second = _shuffled(train, seed, "second", index) if scenario == "iid++" else None
        among = classes if scenario == "task-incremental" else None
        train = _shuffled(train, seed, "order", index)
        tasks.append(TaskData(Task(index, classes), train, test, second, among=among))
    if gradual := GRADUAL.fullmatch(scenario):
        return data, _gradual(tasks, int(gradual[1]), seed)
    return data, tasks


def _groups(names: Sequence[str], n_tasks: int, order: str, seed: int, what: str) -> list[tuple[int, ...]]:
    """What each task brings: places among the names, which are those of classes or of domains."""
    n = len(names)
    if listed := task_list.parse(order):
        groups = [tuple(_place(word, names, what) for word in task) for task in listed]
        twice = [place for place, times in Counter(itertools.chain(*groups)).items() if times > 1]
        if twice:
            raise UsageError(f"class order: expected each of the {what} at most once, got {names[twice[0]]!r} twice")
        return groups
    if not 1 <= n_tasks <= n:
        raise UsageError(f"{n_tasks} tasks of {n} {what}: give --tasks from 1 to {n}")
    if order == "shuffled":
        places = torch.randperm(n, generator=generator(seed, "stream", what)).tolist()
    elif order == "fixed":
        places = list(range(n))
    else:
        places = [_place(word, names, what) for word in order.split(",")]
        if sorted(places) != list(range(n)):
            some = ", ".join(names[:5])
            raise UsageError(f"class order: expected each of the {n} {what} once ({some}, ...), got {order!r}")
    return [tuple(part.tolist()) for part in torch.tensor(places).tensor_split(n_tasks)]


def _place(word: str, names: Sequence[str], what: str) -> int:
    word = word.strip()
    if word in names:
        return names.index(word)
    if word.isdecimal() and len(word) < 10 and int(word) < len(names):
        return int(word)
    raise unknown("class" if what == "classes" else "domain", word, names, what)


def _rows(labels: Tensor, among: Tensor, classes: tuple[int, ...]) -> Tensor:
    return among[torch.isin(labels[among], torch.tensor(classes))]


def _shuffled(rows: Tensor, seed: int, *names: str | int) -> Tensor:
    return rows[torch.randperm(len(rows), generator=generator(seed, "stream", *names))]


def _by_domain(data: Dataset, learned: Tensor, measured: Tensor, config: StreamConfig, seed: int) -> list[TaskData]:
    """A task for each domain, or for as many of them as --tasks asks for. It is measured on the test images of its
    domains; where those are of other domains altogether, on all of them."""
    if data.domain is None or data.domain_test is None:
        raise UsageError(
            "domain-incremental: this data has no domains; expected a folder of domain/class/image with the same class "
            "folders in every domain, or a stream that onepass streams lists as domain-incremental"
        )
    there = data.domain[learned].unique()  # in the order of their names
    apart = not torch.isin(data.domain_test[measured], there).any()
    groups = _groups(
        [data.domains[d] for d in there], config.n_tasks or len(there), config.class_order, seed, "domains"
    )
    tasks = []
    for index, group in enumerate(groups):
        domains = tuple(there[list(group)].tolist())
        train = _shuffled(_rows(data.domain, learned, domains), seed, "order", index)
        test = measured if apart else _rows(data.domain_test, measured, domains)
        if not len(test):
            raise UsageError(f"there are no test images of the domain {data.domains[domains[0]]!r}; add some")
        tasks.append(TaskData(Task(index, tuple(data.y[train].unique().tolist())), train, test, domains=domains))
    return tasks


def _gradual(tasks: list[TaskData], percent: int, seed: int) -> list[TaskData]:
    """Around each boundary, half so much of either task in one mixed order; a task keeps its number of samples.

    A sample of the old task draws its place u in the mixture with density 2 (1 - u), one of the new task with 2 u. So
    where equally many of both are mixed, the chance that the sample at u is of the new task is u: a linear ramp.
    """
    trains = [task.train for task in tasks]
    for index in range(len(tasks) - 1):
        old, new = trains[index], trains[index + 1]
        leaving, entering = (percent * len(task.train) // 200 for task in tasks[index : index + 2])
        mixed = torch.cat([old[len(old) - leaving :], new[:entering]])
        rng = generator(seed, "stream", "gradual", index)
        chance = torch.rand(len(mixed), generator=rng, dtype=torch.float64).sqrt()
        place = torch.where(torch.arange(len(mixed)) < leaving, 1 - chance, chance)
        mixed = mixed[place.argsort(stable=True)]
        trains[index] = torch.cat([old[: len(old) - leaving], mixed[:leaving]])
        trains[index + 1] = torch.cat([mixed[leaving:], new[entering:]])
    return [replace(task, train=train) for task, train in zip(tasks, trains, strict=True)]


def _blurry(
    labels: Tensor,
    learned: Tensor,
    groups: list[tuple[int, ...]],
    tests: list[Tensor],
    disjoint: float,
    blur: float,
    seed: int,
) -> list[TaskData]:
    """i-Blurry-N-M (Koh et al., ICLR 2022): a task is measured on the classes that are mainly its own."""
    pieces: list[list[Tensor]] = [[] for _ in groups]
    for home, group in enumerate(groups):
        alone = set(group[: round(disjoint * len(group))])  # the same share of every task
        others = [index for index in range(len(groups)) if index != home]
        for c in group:
            rows = _shuffled(_rows(labels, learned, (c,)), seed, "blur", c)
            away = 0 if c in alone or not others else round(blur * len(rows))
            pieces[home].append(rows[away:])
            for index, share in zip(others, rows[:away].tensor_split(max(1, len(others))), strict=False):
                pieces[index].append(share)
    tasks = []
    for index, (own, test) in enumerate(zip(pieces, tests, strict=True)):
        train = _shuffled(torch.cat(own), seed, "order", index)
        tasks.append(TaskData(Task(index, tuple(labels[train].unique().tolist())), train, test))
    return tasks


def batches(data: Dataset, task: TaskData, size: int, *, start: int = 0) -> Iterator[Batch]:
    """The task's samples as they arrive, from batch `start` on; the last batch may be short."""
    rows = task.train.split(size)
    if task.second is not None:
        rows = tuple(torch.cat(pair) for pair in zip(rows, task.second.split(size), strict=True))
    for chosen in rows[start:]:
        yield Batch(data.x[chosen], data.y[chosen])


def problem_of(stream: str, n_classes: int, shape: Sequence[int], n_tasks: int, augment: str = "") -> Problem:
    """What a learner is to learn on a stream; vectors are not augmented unless that is asked for."""
    usual = find_stream(stream).augment if len(shape) == 3 else "none"
    return Problem(n_classes, tuple(shape), augment or usual, n_tasks)


def share_classes(data: Dataset, tasks: Sequence[TaskData]) -> bool:
    """Whether later tasks are measured on classes of the first alone: what is learned may help before they come."""
    measured = [set(data.y_test[task.test].tolist()) for task in tasks]
    return len(tasks) > 1 and all(classes <= measured[0] for classes in measured)


def n_batches(task: TaskData, size: int) -> int:
    return -(-len(task.train) // size)


def parts(
    data: Dataset, fraction: float = 1.0, validate: bool = False, test_fraction: float = 1.0
) -> tuple[Dataset, Tensor, Tensor]:
    """The data with what is to be measured as its test images, and the rows of both that take part.

    A fraction is the same share of every class's training images, in each domain if there are any. To validate is to
    hold 10 % of them back and measure on those instead of the test images. A test fraction is the same share of every
    class's images that are measured. All three belong to the data: they are the same for every seed.
    """
    data, learned, measured = _learned_and_measured(data, fraction, validate)
    if test_fraction < 1:
        kinds = enumerate(_kinds(data, data.y_test, data.domain_test, measured))
        shares = [_share(_shuffled(rows, 0, "test part", number), test_fraction) for number, (_, rows) in kinds]
        measured = torch.cat(shares).sort().values
    return data, learned, measured


def _learned_and_measured(data: Dataset, fraction: float, validate: bool) -> tuple[Dataset, Tensor, Tensor]:
    all_rows = torch.arange(len(data.y))
    if fraction == 1 and not validate:
        return data, all_rows, torch.arange(len(data.y_test))
    learned, held = [], []
    for number, (name, rows) in enumerate(_kinds(data, data.y, data.domain, all_rows)):
        rows = _shuffled(rows, 0, "part", number)
        if validate and len(rows) < 2:
            few = f"class {name!r} has {len(rows)} training images"
            raise UsageError(f"{few}: to validate, expected 2 of each class, one to learn and one to hold back")
        kept = max(1, round(VALIDATION * len(rows))) if validate else 0
        held.append(rows[:kept])
        learned.append(_share(rows[kept:], fraction))
    train = torch.cat(learned).sort().values
    if not validate:
        return data, train, torch.arange(len(data.y_test))
    measured = replace(data, x_test=data.x, y_test=data.y, domain_test=data.domain)
    return measured, train, torch.cat(held).sort().values


def _share(rows: Tensor, fraction: float) -> Tensor:
    return rows[: max(1, round(fraction * len(rows)))]


def _kinds(data: Dataset, labels: Tensor, domains: Tensor | None, among: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Of these rows those of each class, and of each domain in which there are any."""
    labels = labels[among]
    if domains is None:
        for label, name in enumerate(data.classes):
            yield name, among[labels == label]
        return
    domains = domains[among]
    for place, domain in enumerate(data.domains):
        for label, name in enumerate(data.classes):
            rows = among[(labels == label) & (domains == place)]
            if len(rows):
                yield f"{domain}/{name}", rows
