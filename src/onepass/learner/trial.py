"""What the contract checks share: fresh learners of a class on a toy problem, and passes that are made once."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from onepass.config import Settings, options
from onepass.learner.batch import Batch, Task
from onepass.learner.checkpoint import fingerprint
from onepass.learner.contract import BaseLearner
from onepass.learner.net import Factory, network_and_encoder
from onepass.learner.problem import Problem
from onepass.learner.toy_problem import BATCHES, IMAGES, toy_batches, toy_body, toy_tasks

SHORT = 5  # batches of a task where nothing depends on their number: as many as fill the memory
SMALL: Mapping[str, int] = MappingProxyType(  # at most, where a method has such a setting: more only costs time here
    {"memory": 20, "epochs": 2, "updates": 2, "filters": 20, "features": 50}
)

Made = TypeVar("Made")


@dataclasses.dataclass(frozen=True)
class Trial:
    """Builds fresh learners of a class, and gives the batches that they learn."""

    cls: type[BaseLearner]
    settings: Settings
    problem: Problem = IMAGES
    net: str | Factory = ""
    done: dict[Callable[[Trial], Any], Any] = dataclasses.field(default_factory=dict)

    def __call__(self, seed: int = 0, small: Mapping[str, int] = SMALL, **changes: Any) -> BaseLearner:
        wanted = shrunk(self.settings, small)
        wanted |= {name: value for name, value in changes.items() if name in options(self.settings)}
        shape, n_classes = self.problem.shape, self.problem.n_classes
        body = self.net or ("linear" if self.cls.frozen_net else toy_body)
        net, encoder = network_and_encoder(body, shape, n_classes, seed=seed, frozen=self.cls.frozen_net)
        more = {} if encoder is None else {"encoder": encoder}
        return self.cls(net, self.problem, dataclasses.replace(self.settings, **wanted), seed=seed, **more)

    def batches(self, task: Task, size: int = 4, n: int = BATCHES) -> Iterator[Batch]:
        return toy_batches(task, size, n, self.problem.shape)

    def images(self, tasks: list[Task]) -> Tensor:
        return torch.cat([batch.x for task in tasks for batch in self.batches(task, n=SHORT)])

    def once(self, work: Callable[[Trial], Made]) -> Made:
        """What this work gives, done for the first that asks."""
        if work not in self.done:
            self.done[work] = work(self)
        return cast(Made, self.done[work])

    def after_two_tasks(self) -> BaseLearner:
        """A learner of one's own that has learned the first two tasks."""
        return copy.deepcopy(self.once(_two_tasks))


def shrunk(settings: Settings, small: Mapping[str, int] = SMALL) -> dict[str, int]:
    """Those of the settings that are larger than these, as large as these."""
    own = {name: getattr(settings, name) for name in small if name in options(settings)}
    return {name: min(value, small[name]) for name, value in own.items()}


def learn(learner: BaseLearner, tasks: list[Task], n: int = SHORT, first: int = 0, last: int | None = None) -> None:
    """Tasks of n batches; of the first of them only the batches from `first` on (it has begun if that is not 0).

    With `last`, it stops before that batch of the only task, which then has not ended.
    """
    for position, task in enumerate(tasks):
        skip = first if position == 0 else 0
        if not skip:
            learner.begin_task(task)
        for batch in list(toy_batches(task, n=n, shape=learner.problem.shape))[skip:last]:
            learner.observe(batch)
        if last is None:
            learner.end_task()


def whole_run(trial: Trial) -> tuple[str, Tensor]:
    """All tasks in one go: the end state, and what it predicts for the first task's images."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        learner = trial()
        learn(learner, toy_tasks(), BATCHES)
    return fingerprint(learner.state_dict()), learner.predict(trial.images(toy_tasks()[:1]))


def _two_tasks(trial: Trial) -> BaseLearner:
    learner = trial()
    learn(learner, toy_tasks()[:2])
    return learner


LEFT_ALONE, NO_REFERENCE, CAPACITY, LOSS = "the batch", "references", "capacity", "the loss"


def complaints(trial: Trial) -> dict[str, str]:
    """Two tasks with a small memory, each step looked at from four sides: the first complaint of each, if any."""
    found: dict[str, str] = {}
    try:
        for side, complaint in _watch(trial(memory=7)):
            found.setdefault(side, complaint)
    except Exception as error:  # it could not be looked at further
        return dict.fromkeys((LEFT_ALONE, NO_REFERENCE, CAPACITY, LOSS), str(error) or type(error).__name__) | found
    return found


def _watch(learner: BaseLearner) -> Iterator[tuple[str, str]]:
    for task in toy_tasks()[:2]:
        learner.begin_task(task)
        for batch in toy_batches(task, n=SHORT, shape=learner.problem.shape):
            x, y = batch.x.clone(), batch.y.clone()
            loss = learner.observe(batch)
            if not torch.equal(x, batch.x):
                yield LEFT_ALONE, "observe changed the batch's images"
            if not torch.equal(y, batch.y):
                yield LEFT_ALONE, "observe changed the batch's labels"
            if batch.slots is not None:
                yield LEFT_ALONE, "observe added slots to the batch"
            if batch.extra:
                yield LEFT_ALONE, "observe added rows to the batch"
            if loss.numel() != 1:
                yield LOSS, f"observe returned a loss of shape {tuple(loss.shape)}"
            if not loss.isfinite().all():
                yield LOSS, f"observe returned a loss of {loss}"
            if loss.requires_grad:
                yield LOSS, "the returned loss keeps the whole graph alive: detach it"
            held, capacity = len(learner.memory), learner.memory.capacity
            if held > capacity:
                yield CAPACITY, f"{held} samples in a memory of {capacity}"
            rows = {name: len(learner.memory.field(name)) for name in learner.memory.fields}
            if set(rows.values()) != {capacity}:
                yield CAPACITY, f"fields of {rows} rows in a memory of {capacity}"
            before = fingerprint(learner.state_dict())
            batch.x.zero_()
            batch.y.zero_()
            if fingerprint(learner.state_dict()) != before:
                yield NO_REFERENCE, "overwriting a batch after observe changed the learner"
        learner.end_task()
