"""Scenarios: which samples come when. Decided by the data, the scenario's name and the seed alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from onepass.config import unknown
from onepass.data import Dataset
from onepass.data.catalog import find_stream
from onepass.errors import UsageError
from onepass.learner.base import Problem
from onepass.learner.batch import Batch, Task
from onepass.seeds import generator

SCENARIOS = {
    "class-incremental": "tasks of classes that share none",
    "task-free": "the same stream, but the learner is told no boundaries",
    "iid": "all classes shuffled into one task",
    "iid++": "the same, with a second, independent batch in every step",
    "i-blurry-N-M": "N % of the classes belong to one task alone; of the others M % of the samples come in other tasks",
}
BLURRY = re.compile(r"i-blurry-(\d+)-(\d+)")
VALIDATION = 0.1


@dataclass(frozen=True)
class TaskData:
    """A task, its training rows in the order they arrive, and the test rows it is measured on."""

    info: Task
    train: Tensor
    test: Tensor
    second: Tensor | None = None  # iid++: rows of the second batch of each step


def check_scenario(name: str) -> None:
    blurry = BLURRY.fullmatch(name)
    if blurry:
        if max(int(part) for part in blurry.groups()) > 100:
            raise UsageError(f"{name}: N and M are per cent, from 0 to 100")
    elif name not in SCENARIOS or "N" in name:
        raise unknown("scenario", name, SCENARIOS, "allowed")


@dataclass(frozen=True)
class StreamConfig:
    """What decides a stream, beside the data and the seed."""

    scenario: str = "class-incremental"
    n_tasks: int = 5
    class_order: str = "shuffled"
    fraction: float = 1.0
    validate: bool = False


def make_tasks(data: Dataset, config: StreamConfig, *, seed: int) -> tuple[Dataset, list[TaskData]]:
    """The tasks in order, and the data that their rows are rows of."""
    check_scenario(config.scenario)
    data, learned, measured = parts(data, config.fraction, config.validate)
    scenario = config.scenario
    if scenario.startswith("iid"):
        groups = [tuple(range(len(data.classes)))]
    else:
        groups = _groups(data.classes, config.n_tasks, config.class_order, seed)
    tests = [_rows(data.y_test, measured, classes) for classes in groups]
    blurry = BLURRY.fullmatch(scenario)
    if blurry:
        disjoint, blur = (int(part) / 100 for part in blurry.groups())
        return data, _blurry(data.y, learned, groups, tests, disjoint, blur, seed)
    tasks = []
    for index, (classes, test) in enumerate(zip(groups, tests, strict=True)):
        train = _rows(data.y, learned, classes)
        second = _shuffled(train, seed, "second", index) if scenario == "iid++" else None
        tasks.append(TaskData(Task(index, classes), _shuffled(train, seed, "order", index), test, second))
    return data, tasks


def _groups(names: tuple[str, ...], n_tasks: int, class_order: str, seed: int) -> list[tuple[int, ...]]:
    n = len(names)
    if not 1 <= n_tasks <= n:
        raise UsageError(f"{n_tasks} tasks of {n} classes: give --tasks from 1 to {n}")
    if class_order == "shuffled":
        order = torch.randperm(n, generator=generator(seed, "stream", "classes")).tolist()
    elif class_order == "fixed":
        order = list(range(n))
    else:
        order = [_class(word, names) for word in class_order.split(",")]
        if sorted(order) != list(range(n)):
            some = ", ".join(names[:5])
            raise UsageError(f"class order: expected each of the {n} classes once ({some}, ...), got {class_order!r}")
    return [tuple(part.tolist()) for part in torch.tensor(order).tensor_split(n_tasks)]


def _class(word: str, names: tuple[str, ...]) -> int:
    word = word.strip()
    if word in names:
        return names.index(word)
    if word.isdigit() and int(word) < len(names):
        return int(word)
    raise unknown("class", word, names, "classes")


def _rows(labels: Tensor, among: Tensor, classes: tuple[int, ...]) -> Tensor:
    return among[torch.isin(labels[among], torch.tensor(classes))]


def _shuffled(rows: Tensor, seed: int, *names: str | int) -> Tensor:
    return rows[torch.randperm(len(rows), generator=generator(seed, "stream", *names))]


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


def problem_of(stream: str, n_classes: int, shape: Sequence[int], n_tasks: int) -> Problem:
    """What a learner is to learn on a stream."""
    channels, height, width = shape
    return Problem(n_classes, (channels, height, width), find_stream(stream).augment, n_tasks)


def n_batches(task: TaskData, size: int) -> int:
    return -(-len(task.train) // size)


def parts(data: Dataset, fraction: float = 1.0, validate: bool = False) -> tuple[Dataset, Tensor, Tensor]:
    """The data with what is to be measured as its test images, and the rows of both that take part.

    A fraction is the same share of every class's training images. To validate is to hold 10 % of them back and
    measure on those instead of the test images. Both belong to the data: they are the same for every seed.
    """
    if fraction == 1 and not validate:
        return data, torch.arange(len(data.y)), torch.arange(len(data.y_test))
    learned, held = [], []
    for label in range(len(data.classes)):
        rows = _shuffled((data.y == label).nonzero().flatten(), 0, "part", label)
        if validate and len(rows) < 2:
            few = f"class {data.classes[label]!r} has {len(rows)} training images"
            raise UsageError(f"{few}: to validate, expected 2 of each class, one to learn and one to hold back")
        kept = max(1, round(VALIDATION * len(rows))) if validate else 0
        held.append(rows[:kept])
        learned.append(rows[kept : kept + max(1, round(fraction * (len(rows) - kept)))])
    train = torch.cat(learned).sort().values
    if not validate:
        return data, train, torch.arange(len(data.y_test))
    return replace(data, x_test=data.x, y_test=data.y), train, torch.cat(held).sort().values
