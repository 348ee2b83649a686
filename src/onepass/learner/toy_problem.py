"""A problem small enough to throw any learner at: six colours in three tasks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from onepass.learner.base import Problem
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net, Pool, convolution
from onepass.seeds import child_seed, generator

SHAPE = (3, 8, 8)
PROBLEM = Problem(n_classes=6, shape=SHAPE, augment="colour", n_tasks=3)
BATCHES = 12  # in each task: more than the period of anything a method does every few steps


def toy_net(seed: int, problem: Problem) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(child_seed(seed, "toy"))
        body = nn.Sequential(convolution(3, 6, stride=2), nn.ReLU(), Pool())
        return Net(body, 6, problem.n_classes)


def toy_tasks() -> list[Task]:
    return [Task(0, (4, 1)), Task(1, (0, 5)), Task(2, (2, 3))]


def toy_batches(task: Task, size: int = 4, n: int = BATCHES) -> Iterator[Batch]:
    """Images of one colour for each class, with noise."""
    rng = generator(7, "toy", task.index)
    colours = torch.tensor([(1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 1, 1), (0, 0, 1), (1, 0, 1)])[:, :, None, None]
    for _ in range(n):
        y = torch.tensor(task.classes)[torch.randint(len(task.classes), (size,), generator=rng)]
        noise = 0.5 * torch.rand(size, *SHAPE, generator=rng)
        yield Batch(((0.5 * colours[y % 6] + noise) * 255).to(torch.uint8), y)
