"""Problems small enough to throw any learner at: six colours, or six directions, in three tasks."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import nn

from onepass.learner.batch import Batch, Task
from onepass.learner.net import Pool, Standardise, convolution
from onepass.learner.problem import Problem
from onepass.seeds import generator

IMAGES = Problem(n_classes=6, shape=(3, 8, 8), augment="colour", n_tasks=3)
VECTORS = Problem(n_classes=6, shape=(12,), augment="noise", n_tasks=3)
BATCHES = 8  # in each task: more than the period of anything a method does every few steps


def toy_body(shape: tuple[int, ...]) -> nn.Module:
    """One layer to six features."""
    if len(shape) == 3:
        return nn.Sequential(convolution(shape[0], 6, stride=2), nn.ReLU(), Pool())
    return nn.Sequential(Standardise(shape), nn.Linear(shape[0], 6), nn.Tanh())


def toy_tasks() -> list[Task]:
    return [Task(0, (4, 1)), Task(1, (0, 5)), Task(2, (2, 3))]


def toy_batches(task: Task, size: int = 4, n: int = BATCHES, shape: tuple[int, ...] = IMAGES.shape) -> Iterator[Batch]:
    """Images of one colour for each class, or vectors in one direction, with noise."""
    for batch in _made(task, size, n, shape):
        yield Batch(batch.x.clone(), batch.y.clone())  # a learner may spoil its own


@functools.lru_cache(maxsize=64)
def _made(task: Task, size: int, n: int, shape: tuple[int, ...]) -> list[Batch]:
    rng, batches = generator(7, "toy", task.index), []
    colours = torch.tensor([(1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 1, 1), (0, 0, 1), (1, 0, 1)])
    for _ in range(n):
        y = torch.tensor(task.classes)[torch.randint(len(task.classes), (size,), generator=rng)]
        noise = 0.5 * torch.rand(size, *shape, generator=rng)
        if len(shape) == 3:
            x = ((0.5 * colours[y % 6][:, :, None, None] + noise) * 255).to(torch.uint8)
        else:
            x = 10 * (colours[y % 6].repeat(1, shape[0] // 3) + noise) - 3
        batches.append(Batch(x, y))
    return batches
