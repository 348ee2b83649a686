"""EWC++: weights are pulled back to where the last task left them, by their share in a running Fisher."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from helpers import (
    assert_close,
    assert_same_bits,
    copied,
    hidden_layer,
    labelled,
    make,
    normed_net,
    observe_all,
    passes_counted,
    pixel_net,
    plain_net,
    some_batch,
    state_of,
)
from method_helpers import entropy, learn, task_batches
from onepass.config import LearnerConfig
from onepass.errors import Diverged
from onepass.learner.base import SETTLING_STEPS
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net
from onepass.methods.ewc_pp import EWCPP, EWCPPConfig, PerWeight
from onepass.methods.finetune import FineTune

TASKS = [Task(0, (5, 1)), Task(1, (0, 4)), Task(2, (3, 2))]
C = 6
Vector = NDArray[np.float64]


def ewc(net: Net | None = None, **settings: Any) -> EWCPP:
    return make(EWCPP, plain_net(8, C) if net is None else net, **settings)


def flat(tensors: list[Tensor]) -> Vector:
    return np.concatenate([tensor.detach().double().numpy().reshape(-1) for tensor in tensors])


def held(part: PerWeight) -> Vector:
    return flat(part.values())


def weights(net: Net) -> Vector:
    return flat(list(net.parameters()))


def put(net: Net, vector: Vector) -> None:
    first = 0
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.from_numpy(vector[first : first + p.numel()]).view_as(p))
            first += p.numel()


def slope(net: Net, batch: Batch, classes: tuple[int, ...] | range) -> tuple[float, Vector]:
    """The mean cross-entropy over these classes and its gradient, in one vector."""
    loss = entropy(net(batch.x / 255), batch.y, classes)
    return loss.item(), flat(list(torch.autograd.grad(loss, list(net.parameters()))))


def running(fisher: Vector, squares: list[Vector], alpha: float, period: int) -> Vector:
    """What a task's squared gradients make of the running Fisher, a period after the other; the last may be short."""
    for first in range(0, len(squares), period):
        fisher = (1 - alpha) * fisher + alpha * np.sum(squares[first : first + period], axis=0) / period
    return fisher


def spread(fisher: Vector) -> Vector:
    """From 0 for the smallest to 1 for the largest; nothing where all are alike."""
    width = fisher.max() - fisher.min()
    return np.asarray((fisher - fisher.min()) / width) if width else 0 * fisher


def test_the_defaults_are_the_published_ones_at_the_protocols_rate() -> None:
    assert EWCPP.Config is EWCPPConfig
    assert EWCPPConfig() == EWCPPConfig(strength=3.0, fisher_alpha=0.9, fisher_period=50)
    assert EWCPPConfig().lr * EWCPPConfig().strength == pytest.approx(0.03 * 10)  # the authors' for CIFAR-100
    assert LearnerConfig().lr == EWCPPConfig().lr
    assert ewc().memory.capacity == 0


# The step.


@pytest.mark.parametrize("scope", ["seen", "all"])
@pytest.mark.parametrize(
    ("alpha", "period", "strength"), [(0.6, 3, 2.0), (0.9, 50, 2.0), (1.0, 2, 0.3), (0.2, 1, 2.0), (0.5, 4, 0.0)]
)
def test_three_tasks_are_learned_step_by_step_as_written_out(
    alpha: float, period: int, strength: float, scope: str
) -> None:
    """Tasks of four, five and three batches: periods that fit, that are cut short, and that are longer than a task."""
    settings: dict[str, Any] = {
        "strength": strength,
        "fisher_alpha": alpha,
        "fisher_period": period,
        "scope": scope,
        "lr": 0.2,
    }
    learner, net = ewc(**settings), plain_net(8, C)
    fisher = np.zeros_like(weights(net))
    seen: tuple[int, ...] = ()
    for task, n in zip(TASKS, (4, 5, 3), strict=True):
        learner.begin_task(task)
        seen += task.classes
        anchor, importance, squares = weights(net), spread(fisher), []
        np.testing.assert_allclose(held(learner.importance), importance, atol=1e-4)
        for batch in task_batches(task, n):
            moved = weights(net) - anchor
            entropy_now, g = slope(net, batch, seen if scope == "seen" else range(C))
            put(net, weights(net) - 0.2 * (g + strength * importance * 2 * moved))
            squares.append(g**2)
            penalty = strength * (importance * moved**2).sum()
            assert learner.observe(batch).item() == pytest.approx(entropy_now + penalty, rel=1e-3)
        learner.end_task()
        fisher = running(fisher, squares, alpha, period)
        np.testing.assert_allclose(held(learner.fisher), fisher, rtol=1e-3, atol=1e-6)
    assert importance.max() == 1
    assert_close(copied(learner.net), copied(net), rtol=1e-3, atol=1e-4)


def test_the_step_descends_cross_entropy_plus_the_penalty() -> None:
    """By autograd over the sum of both, where the learner adds the penalty's gradient by hand."""
    learner = learn(ewc(strength=4.0, fisher_period=2), TASKS[:1])
    learner.begin_task(TASKS[1])
    observe_all(learner, task_batches(TASKS[1], 2))
    batch, before = labelled([0, 4, 0, 1], seed=50), copied(learner.net)
    loss = entropy(learner.net(batch.x / 255), batch.y, (0, 1, 4, 5))
    for p, anchor, share in zip(
        learner.net.parameters(), learner.anchor.values(), learner.importance.values(), strict=True
    ):
        loss = loss + 4.0 * (share * (p - anchor).pow(2)).sum()
    slopes = torch.autograd.grad(loss, list(learner.net.parameters()))
    found = learner.observe(batch)
    torch.testing.assert_close(found, loss.detach())
    after = dict(learner.net.named_parameters())
    assert_close(
        {name: (before[name] - p.detach()) / 0.1 for name, p in after.items()},
        dict(zip(after, slopes, strict=True)),
        rtol=1e-3,
        atol=1e-5,
    )


@pytest.mark.parametrize("net", ["plain", "normed"])
def test_the_first_task_is_learned_as_by_fine_tuning_to_the_bit(net: str) -> None:
    kind = plain_net if net == "plain" else normed_net
    ours, theirs = (make(cls, kind(8, C), augment="digits") for cls in (EWCPP, FineTune))
    for learner in (ours, theirs):
        learner.begin_task(TASKS[0])
    for batch in task_batches(TASKS[0]):
        assert torch.equal(ours.observe(batch), theirs.observe(batch))
    assert_same_bits(copied(ours.net), copied(theirs.net))


@pytest.mark.parametrize("settings", [{"strength": 0.0}, {"fisher_alpha": 0.0}])
def test_without_a_pull_or_without_a_fisher_it_is_fine_tuning_throughout(settings: dict[str, float]) -> None:
    ours, theirs = ewc(normed_net(8, C), **settings), make(FineTune, normed_net(8, C))
    for learner in (ours, theirs):
        learn(learner, TASKS)
    assert_same_bits(copied(ours.net), copied(theirs.net))


def test_one_pass_a_step_over_images_and_augmentations() -> None:
    learner = learn(ewc(normed_net(8, C), augment="digits", fisher_period=1, fisher_alpha=1.0), TASKS[:1])
    learner.begin_task(TASKS[1])
    batch, state, counted = labelled([0, 4, 0], seed=50), learner.rng.get_state(), passes_counted(learner.net)
    twin = copy.deepcopy(learner.net).train()
    learner.observe(batch)
    assert passes_counted(learner.net) == counted + 1
    learner.rng.set_state(state)
    [(x, y)] = learner.views(batch)
    assert len(x) == 6
    slopes = torch.autograd.grad(entropy(twin(x), y, (0, 1, 4, 5)), list(twin.parameters()))
    np.testing.assert_allclose(held(learner.fisher), flat(list(slopes)) ** 2, rtol=1e-3, atol=1e-7)


# The Fisher.


def test_the_fisher_is_the_square_of_hand_written_gradients() -> None:
    """Of a linear classifier: the mean over the batch of (p - onehot) x, squared."""
    learner = ewc(pixel_net(C), fisher_alpha=0.5, fisher_period=4)
    learner.begin_task(TASKS[0])
    batch, classes = some_batch(6, (1, 5)), (1, 5)
    w, b = (p.detach().double().numpy() for p in (learner.net.head.weight, learner.net.head.bias))
    dw, db = np.zeros_like(w), np.zeros_like(b)
    for row, label in zip(batch.x.flatten(1).double().numpy() / 255, batch.y.tolist(), strict=True):
        odds = {c: np.exp(w[c] @ row + b[c]) for c in classes}
        for c in classes:
            excess = (odds[c] / sum(odds.values()) - (c == label)) / 6
            dw[c] += excess * row
            db[c] += excess
    learner.observe(batch)
    expected = 0.5 * np.concatenate([dw.reshape(-1), db]) ** 2 / 4
    np.testing.assert_allclose(held(learner.fisher), expected, rtol=1e-4, atol=1e-9)


def test_the_penalty_is_no_part_of_the_fisher() -> None:
    """Far from the anchor, with a strong pull, the squares are still those of the cross-entropy."""
    learner = learn(ewc(fisher_alpha=1.0, fisher_period=1, strength=50.0, lr=1e-3), TASKS[:1])
    learner.begin_task(TASKS[1])
    with torch.no_grad():
        for p in learner.net.parameters():
            p.add_(0.1)
    batch = labelled([0, 4, 0], seed=50)
    _, g = slope(learner.net, batch, (0, 1, 4, 5))
    learner.observe(batch)
    np.testing.assert_allclose(held(learner.fisher), g**2, rtol=1e-3, atol=1e-9)


def test_importance_lies_between_nothing_and_one_over_all_layers_at_once() -> None:
    learner = learn(ewc(fisher_period=2), TASKS[:2])
    learner.begin_task(TASKS[2])
    parts = [(part.min().item(), part.max().item()) for part in learner.importance.values()]
    assert min(low for low, _ in parts) == 0
    assert max(high for _, high in parts) == 1
    assert sorted(high for _, high in parts)[-2] < 1  # one layer has the largest


def test_a_task_shorter_than_a_period_leaves_its_importance_too() -> None:
    learner = learn(ewc(fisher_period=50), TASKS[:1], n=1)
    learner.begin_task(TASKS[1])
    assert held(learner.importance).max() == 1


def test_outputs_of_classes_never_seen_are_of_no_importance() -> None:
    learner = learn(ewc(fisher_period=2), TASKS[:2])
    learner.begin_task(TASKS[2])
    rows = learner.importance.values()[-2]
    assert (rows[[2, 3]] == 0).all()
    assert (rows[[0, 1, 4, 5]] > 0).any(dim=1).all()


# Task boundaries.


def test_anchor_and_importance_are_those_of_the_tasks_beginning_and_stay() -> None:
    learner = ewc(normed_net(8, C), fisher_period=2)
    for task in TASKS:
        learner.begin_task(task)
        anchor, importance = weights(learner.net), spread(held(learner.fisher))
        observe_all(learner, task_batches(task, 5))
        np.testing.assert_array_equal(held(learner.anchor), anchor)
        np.testing.assert_allclose(held(learner.importance), importance, rtol=1e-5, atol=1e-7)
        assert not np.array_equal(weights(learner.net), anchor)
        learner.end_task()


def test_a_task_that_is_announced_twice_or_ended_twice_changes_nothing_more() -> None:
    once, twice = (learn(ewc(fisher_period=2), TASKS[:1]) for _ in range(2))
    twice.end_task()
    for learner in (once, twice, twice):
        learner.begin_task(TASKS[1])
    for learner in (once, twice):
        observe_all(learner, task_batches(TASKS[1]))
    for part in ("net", "anchor", "importance", "fisher"):
        assert_same_bits(copied(getattr(once, part)), copied(getattr(twice, part)))


def test_a_task_without_a_sample_leaves_the_first_step_as_fine_tunings() -> None:
    ours, theirs = learn(ewc(), TASKS[:1], n=0), make(FineTune, plain_net(8, C))
    for learner in (ours, theirs):
        learner.begin_task(Task(1, (0, 1, 4, 5)))
    batch = labelled([0, 4, 0])
    assert torch.equal(ours.observe(batch), theirs.observe(batch))


def test_without_announced_tasks_classes_never_seen_fix_the_anchor_before_their_first_step() -> None:
    learner = ewc()
    for seed in range(SETTLING_STEPS):
        learner.observe(labelled([5, 1, 5], seed=seed))
    before, importance = weights(learner.net), spread(held(learner.fisher))
    learner.observe(labelled([0, 4, 0]))
    np.testing.assert_array_equal(held(learner.anchor), before)
    np.testing.assert_allclose(held(learner.importance), importance, rtol=1e-5, atol=1e-7)
    assert int(learner.batches) == 1


# What it is made of.


def test_a_refused_step_leaves_the_fisher_and_its_count() -> None:
    learner = learn(ewc(fisher_period=3), TASKS[:1])
    learner.begin_task(TASKS[1])
    learner.observe(labelled([0, 4, 0]))
    with torch.no_grad():
        learner.anchor.values()[0].fill_(torch.inf)  # the pull alone is not finite
    before = state_of(learner)
    with pytest.raises(Diverged):
        learner.observe(labelled([0, 4, 4], seed=1))
    assert state_of(learner) == before


def test_layers_that_are_not_trained_are_neither_counted_nor_pulled() -> None:
    net = plain_net(8, C)
    hidden_layer(net).requires_grad_(False)
    before = copied(net)
    learner = learn(ewc(net, fisher_period=2, strength=2.0), TASKS)
    assert [tuple(part.shape) for part in learner.fisher.values()] == [(C, 8), (C,)]
    assert torch.equal(hidden_layer(net).weight, before["body.1.weight"])
    assert not torch.equal(net.head.weight, before["head.weight"])
    later = learn(ewc(fisher_period=2), TASKS[:1])
    hidden = hidden_layer(later.net).requires_grad_(False)
    kept = hidden.weight.detach().clone()
    learn(later, TASKS[1:])
    assert torch.equal(hidden.weight, kept)


def test_a_grown_learner_pulls_what_it_had_and_leaves_the_new_rows_free() -> None:
    learner = learn(ewc(fisher_period=2, strength=2.0), TASKS[:2])
    learner.begin_task(TASKS[2])
    observe_all(learner, task_batches(TASKS[2], 2))
    twin = copy.deepcopy(learner)
    learner.grow(C + 2)
    batch = labelled([3, 2, 3], seed=50)
    torch.testing.assert_close(learner.observe(batch), twin.observe(batch))
    torch.testing.assert_close(learner.net.head.weight[:C], twin.net.head.weight)
    assert [len(part) for part in learner.importance.values()[-2:]] == [C + 2, C + 2]
    assert all((part[C:] == 0).all() for part in learner.importance.values()[-2:])
    learner.end_task()
    learner.begin_task(Task(3, (6, 7)))
    rows = learner.net.head.weight.detach().clone()
    for seed in range(2):
        assert math.isfinite(learner.observe(labelled([6, 7, 6], seed=seed)))
    assert (learner.net.head.weight.detach() != rows)[[6, 7]].any(dim=1).all()
    assert (learner.fisher.values()[-1][[6, 7]] > 0).all()
