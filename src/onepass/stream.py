"""Streams: which classes come when, and in which order their samples arrive. Decided by the seed alone."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onepass.config import unknown
from onepass.errors import UsageError
from onepass.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

    from onepass.batch import Batch, Task
    from onepass.data import Dataset


@dataclass(frozen=True)
class Stream:
    """A named stream: where its data comes from, its tasks, and what suits it."""

    source: str
    n_tasks: int
    net: str
    views: str
    about: str


STREAMS: dict[str, Stream] = {
    "digits": Stream("onepass.data.digits", 5, "small-cnn", "digits", "8x8 digits, 10 classes; part of onepass"),
}


def find_stream(name: str) -> Stream:
    if name not in STREAMS:
        raise unknown("stream", name, STREAMS, "onepass streams lists all")
    return STREAMS[name]


def load(name: str) -> Dataset:
    data: Dataset = importlib.import_module(find_stream(name).source).load()
    return data


@dataclass(frozen=True)
class TaskData:
    """A task and the rows of the data set that belong to it."""

    info: Task
    train: Tensor
    test: Tensor


def class_incremental(data: Dataset, n_tasks: int, *, seed: int) -> list[TaskData]:
    """Tasks of equally many classes that share none, in an order drawn from the seed."""
    import torch

    from onepass.batch import Task

    n_classes = len(data.classes)
    if n_tasks < 1 or n_classes % n_tasks:
        raise UsageError(f"{n_classes} classes do not divide into {n_tasks} tasks of equal size")
    order = torch.randperm(n_classes, generator=generator(seed, "stream", "classes"))
    tasks = []
    for index, classes in enumerate(order.chunk(n_tasks)):
        rows = (torch.isin(labels, classes).nonzero().flatten() for labels in (data.y, data.y_test))
        tasks.append(TaskData(Task(index, tuple(classes.tolist())), *rows))
    return tasks


def batches(data: Dataset, task: TaskData, size: int, *, seed: int, start: int = 0) -> Iterator[Batch]:
    """The task's samples in the order drawn from the seed, from batch `start` on; the last batch may be short."""
    import torch

    from onepass.batch import Batch

    order = torch.randperm(len(task.train), generator=generator(seed, "stream", "order", task.info.index))
    for rows in task.train[order].split(size)[start:]:
        yield Batch(data.x[rows], data.y[rows])


def n_batches(task: TaskData, size: int) -> int:
    return -(-len(task.train) // size)
