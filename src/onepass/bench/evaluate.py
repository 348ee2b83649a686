"""How much of its test images a learner knows, task by task."""

from __future__ import annotations

from dataclasses import replace

import torch

from onepass.bench.stream import TaskData
from onepass.data import Dataset
from onepass.learner.base import CHUNK, Learner

QUICK_IMAGES = 100  # test images of each class that a look in mid-stream predicts


def accuracy_by_task(learner: Learner, data: Dataset, tasks: list[TaskData], last: bool = False) -> list[float]:
    """The share of each task's test images that is predicted right, among all classes seen; by what predicts, or
    by the last weights."""
    with learner.predicting(last) as predict:
        hits = [
            torch.cat([predict(data.x_test[rows]).cpu() == data.y_test[rows] for rows in task.test.split(CHUNK)])
            for task in tasks
        ]
    return [hit.double().mean().item() for hit in hits]


def quick_accuracy(learner: Learner, data: Dataset, tasks: list[TaskData], last: bool = False) -> list[float]:
    """The same on the first QUICK_IMAGES test images of each class: quick enough to be done in mid-stream."""
    return accuracy_by_task(learner, data, [_some(data, task) for task in tasks], last)


def _some(data: Dataset, task: TaskData) -> TaskData:
    labels = data.y_test[task.test]
    return replace(task, test=torch.cat([task.test[labels == label][:QUICK_IMAGES] for label in labels.unique()]))
