"""What the tests of several methods share: steps and losses written out, recorders of passes, ways through tasks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from helpers import L, observe_all, slot_list, some_batch
from onepass.config import option
from onepass.learner.base import Learner
from onepass.learner.batch import Batch, Task
from onepass.methods.lookahead import Lookahead
from onepass.methods.patch_lda import PatchLDAConfig


@dataclass(frozen=True)
class FewFilters(PatchLDAConfig):
    """For `monkeypatch.setattr(PatchLDA, "Config", FewFilters)`: an expert has a method's defaults, and 400 filters
    take seconds."""

    filters: int = option(20, "fewer than usual", low=1)


# Ways through tasks.


def task_batches(task: Task, n: int = 4, size: int = 5) -> list[Batch]:
    """Random batches of the task's classes; each task has its own."""
    return [some_batch(size, task.classes, seed=100 * task.index + i) for i in range(n)]


def learn(
    learner: L,
    tasks: Iterable[Task],
    n: int = 4,
    *,
    batches: Callable[[Task, int], list[Batch]] = task_batches,
    end: bool = True,
) -> L:
    """The learner after so many batches of each task."""
    for task in tasks:
        learner.begin_task(task)
        observe_all(learner, batches(task, n))
        if end:
            learner.end_task()
    return learner


def into_second_task(learner: L, old: tuple[int, ...], new: tuple[int, ...], size: int = 6) -> L:
    """The learner after two batches of a task of old classes, at the beginning of a task of new ones."""
    learner.begin_task(Task(0, old))
    observe_all(learner, [some_batch(size, old, seed) for seed in (70, 71)])
    learner.end_task()
    learner.begin_task(Task(1, new))
    return learner


def take_renamed_head(learner: Learner, other: Learner, names: Tensor) -> None:
    """The learner's head becomes the other's, with class c in row names[c]."""
    with torch.no_grad():
        learner.net.head.weight[names], learner.net.head.bias[names] = other.net.head.weight, other.net.head.bias


def assert_names_change_nothing(
    ours: Learner,
    theirs: Learner,
    names: Tensor,
    tasks: Iterable[Task],
    *,
    batches: Callable[[Task, int], list[Batch]] = task_batches,
    end: bool = False,
) -> None:
    """Two learners, one of which is told names[c] for every class c, have the same losses and end alike."""
    for task in tasks:
        ours.begin_task(task)
        theirs.begin_task(Task(task.index, tuple(names[list(task.classes)].tolist())))
        for batch in batches(task, 3):
            torch.testing.assert_close(ours.observe(batch), theirs.observe(Batch(batch.x, names[batch.y])))
        if end:
            for learner in (ours, theirs):
                learner.end_task()
    torch.testing.assert_close(theirs.net.head.weight[names], ours.net.head.weight, rtol=1e-4, atol=1e-6)


# Losses and steps written out.


def entropies(logits: Tensor, y: Iterable[int] | Tensor, classes: Sequence[int]) -> Tensor:
    """Minus the log of each label's share among the classes, one row and one class at a time."""
    rows = []
    for row, label in zip(logits, map(int, y), strict=True):
        assert label in classes
        rows.append(torch.logsumexp(torch.stack([row[c] for c in classes]), 0) - row[label])
    return torch.stack(rows)


def entropy(logits: Tensor, y: Iterable[int] | Tensor, classes: Sequence[int]) -> Tensor:
    """The mean over rows of minus the log of the label's share among the classes."""
    return entropies(logits, y, classes).mean()


def united(new: Tensor, old: Tensor, sizes: tuple[int, int], combine: str) -> Tensor:
    """The losses of so many new and so many replayed samples as one: their sum, or the mean over all samples."""
    return new + old if combine == "sum" else (sizes[0] * new + sizes[1] * old) / sum(sizes)


def descend(parameters: Iterable[Tensor], loss: Tensor, lr: float) -> None:
    """One step of plain SGD, by hand and in place."""
    parameters = list(parameters)
    slopes = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        for parameter, slope in zip(parameters, slopes, strict=True):
            parameter -= lr * slope


def descended(named: Mapping[str, Tensor], loss: Tensor, lr: float) -> dict[str, Tensor]:
    """What one step of plain SGD would make of these parameters, by hand; they stay."""
    slopes = torch.autograd.grad(loss, list(named.values()))
    return {name: p.detach() - lr * slope for (name, p), slope in zip(named.items(), slopes, strict=True)}


def parameters_of(**parts: nn.Module) -> dict[str, Tensor]:
    """The parameters of some parts of a learner: `parameters_of(net=net)` names them "net.head.weight" and so on."""
    return {f"{part}.{name}": p for part, module in parts.items() for name, p in module.named_parameters()}


def layers(module: nn.Module) -> tuple[nn.Linear, nn.Linear]:
    """The linear layers of a module that has two."""
    first, last = (part for part in module.modules() if isinstance(part, nn.Linear))
    return first, last


# What passes through a module.


@contextmanager
def inputs_of(module: nn.Module) -> Iterator[list[Tensor]]:
    """What goes into a module, pass by pass."""
    found: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, given: found.append(given[0].detach().clone()))
    try:
        yield found
    finally:
        handle.remove()


def passes_of(module: nn.Module) -> list[int]:
    """Sizes of the batches that go through the module from now on."""
    sizes: list[int] = []
    module.register_forward_hook(lambda module, given, made: sizes.append(len(given[0])))
    return sizes


# Methods that choose what to replay, by looking a step ahead or by gradients.

SEEN = (0, 1, 2, 3)
SCOPE = {"seen": [0, 1, 2, 3], "all": [0, 1, 2, 3, 4, 5]}  # two outputs belong to no class seen


class WatchedChoice(Lookahead):
    """To be mixed into a method that chooses: remembers what it chose, and from what, as that was then."""

    spied_pool: Batch | None = None
    spied: Batch | None = None

    def choose(self, pool: Batch) -> Batch:
        self.spied_pool, self.spied = copy.deepcopy(pool), super().choose(pool)
        return self.spied


def hold_gradient(learner: Lookahead, batch: Batch) -> None:
    """Leave the learner as `choose` meets it: with the gradient of the new batch's loss alone."""
    learner.optimizer.zero_grad()
    learner.batch_loss(batch).backward()


def largest(scores: Tensor, n: int) -> set[int]:
    """The indices of the n largest, which must be clearly larger than the rest."""
    order = scores.argsort(descending=True)
    assert len(scores) == n or scores[order[n - 1]] - scores[order[n]] > 1e-5  # a close call would test rounding
    return set(order[:n].tolist())


def slots(batch: Batch | None) -> set[int]:
    """The memory slots that a replayed batch came from, which must be different ones."""
    found = slot_list(batch)
    assert len(set(found)) == len(found)
    return set(found)


def slots_at(batch: Batch | None, rows: Iterable[int]) -> set[int]:
    """The memory slots that some rows of a replayed batch came from."""
    found = slot_list(batch)
    return {found[row] for row in rows}


def assert_as_stored(batch: Batch, learner: Learner) -> None:
    """Every row of a replayed batch is the image and the label of the memory slot it names."""
    assert batch.slots is not None
    assert torch.equal(batch.x, learner.memory.field("x")[batch.slots])
    assert torch.equal(batch.y, learner.memory.field("y")[batch.slots])
