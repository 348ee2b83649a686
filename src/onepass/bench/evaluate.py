"""How much of its test images a learner knows: by task, by class, and what it takes for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from onepass.bench.stream import TaskData
from onepass.data import Dataset
from onepass.learner.contract import CHUNK, BaseLearner

QUICK_IMAGES = 100  # test images of each class that an evaluation in mid-stream predicts
PASSES = 8  # for which images are read at once: between two of these the average and the last weights change places


@dataclass(frozen=True)
class Predicted:
    """The classes of a task's test images, and what was predicted for each of them."""

    labels: Tensor
    answers: Tensor
    by_last: Tensor | None = None  # by the last weights, if they were asked too


def predictions(learner: BaseLearner, data: Dataset, tasks: Sequence[TaskData], n_last: int = 0) -> list[Predicted]:
    """Each test image of the tasks predicted once, among all classes seen or, where the task is told, among its own.

    If an average predicts, the first `n_last` tasks are predicted by the last weights too, in the same pass.
    """
    found: list[Predicted] = []
    with learner.predicting_both() as predict:
        for place, task in enumerate(tasks):
            if place and _measures_as(task, tasks[place - 1]):
                found.append(found[-1])
                continue
            parts = [
                predict(data.x_test[rows], task.among, last=place < n_last)
                for rows in task.test.split(min(CHUNK, PASSES * learner.chunk))
            ]
            answers, *by_last = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
            found.append(Predicted(data.y_test[task.test], answers, *by_last))
    return found


def _measures_as(task: TaskData, other: TaskData) -> bool:
    """Whether both are measured on the same images in the same way, as where all domains have one test set."""
    return task.among == other.among and torch.equal(task.test, other.test)


def accuracies(found: Sequence[Predicted]) -> list[float]:
    """The share of each task's test images that was predicted right."""
    return [(task.answers == task.labels).double().mean().item() for task in found]


def accuracies_by_last(found: Sequence[Predicted]) -> list[float]:
    """The same by the last weights, of the tasks that were asked by them."""
    return accuracies([replace(task, answers=task.by_last) for task in found if task.by_last is not None])


def confusion(found: Sequence[Predicted], n_classes: int) -> list[list[int]]:
    """For each class, what its test images were predicted as: class, count, class, count, in the order of classes."""
    once = {id(task): task for task in found}.values()  # tasks may share their test images
    pairs = torch.cat([task.labels * n_classes + task.answers for task in once])
    rows: list[list[int]] = [[] for _ in range(n_classes)]
    for pair, count in zip(*(part.tolist() for part in pairs.unique(return_counts=True)), strict=True):
        rows[pair // n_classes] += [pair % n_classes, count]
    return rows


def accuracy_by_task(learner: BaseLearner, data: Dataset, tasks: Sequence[TaskData]) -> list[float]:
    """The share of each task's test images that is predicted right, among all classes seen."""
    return accuracies(predictions(learner, data, tasks))


def quickly(data: Dataset, task: TaskData) -> TaskData:
    """The task with the first QUICK_IMAGES test images of each class: quick enough to be measured in mid-stream."""
    labels = data.y_test[task.test]
    return replace(task, test=torch.cat([task.test[labels == label][:QUICK_IMAGES] for label in labels.unique()]))
