"""Experience replay: new and replayed samples share one loss (eq. 2), in the two forms found in code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import (
    assert_close,
    assert_same_bits,
    copied,
    gradients,
    joined,
    make,
    no_replay,
    normed_net,
    observe_all,
    passes_counted,
    plain_net,
    some_batch,
)
from onepass.bench.stream import StreamConfig, batches, make_tasks
from onepass.data.catalog import load
from onepass.learner.base import Learner
from onepass.learner.batch import Batch, Task
from onepass.learner.net import make_net
from onepass.learner.problem import Problem
from onepass.methods.er import ER, ERConfig
from onepass.methods.finetune import FineTune

CLASSES = (0, 1, 2, 3)


def er(net: str = "plain", augment: str = "none", **settings: Any) -> Learner:
    made = plain_net(8, 4) if net == "plain" else normed_net(8, 4)
    learner = make(ER, made, augment=augment, **settings)
    learner.begin_task(Task(0, CLASSES))
    return learner


def entropy(learner: Learner, batch: Batch) -> Tensor:
    return F.cross_entropy(learner.net(batch.x / 255), batch.y)


@pytest.mark.parametrize("forward", ["separate", "joint"])
def test_the_sum_has_the_gradient_of_both_losses(forward: str) -> None:
    learner = er(combine="sum", forward=forward)
    batch, replay = some_batch(6, CLASSES), some_batch(4, CLASSES, seed=1)
    new, old = (gradients(learner, entropy(learner, part)) for part in (batch, replay))
    expected = {name: new[name] + old[name] for name in new}
    assert_close(gradients(learner, learner.loss(batch, replay)), expected)
    assert all(old[name].abs().sum() > 0 for name in old)


@pytest.mark.parametrize("forward", ["separate", "joint"])
def test_the_mean_is_half_the_sum_when_as_much_is_replayed_as_is_new(forward: str) -> None:
    batch, replay = some_batch(6, CLASSES), some_batch(6, CLASSES, seed=1)
    mean, total = (er(combine=combine, forward=forward) for combine in ("mean", "sum"))
    half = {name: value / 2 for name, value in gradients(total, total.loss(batch, replay)).items()}
    assert_close(gradients(mean, mean.loss(batch, replay)), half)


@pytest.mark.parametrize("forward", ["separate", "joint"])
@pytest.mark.parametrize("sizes", [(6, 2), (1, 5), (6, 6)])
def test_the_mean_is_one_cross_entropy_over_the_union_whatever_the_sizes(forward: str, sizes: tuple[int, int]) -> None:
    learner = er(combine="mean", forward=forward)
    batch, replay = some_batch(sizes[0], CLASSES), some_batch(sizes[1], CLASSES, seed=1)
    union = joined(batch, replay)
    expected, loss = entropy(learner, union), learner.loss(batch, replay)
    torch.testing.assert_close(loss, expected)
    assert_close(gradients(learner, loss), gradients(learner, expected))


def test_the_mean_over_views_weighs_new_and_replayed_by_their_samples() -> None:
    learner = er(augment="digits", combine="mean")
    batch, replay = some_batch(6, CLASSES), some_batch(2, CLASSES, seed=1)
    state = learner.rng.get_state()
    loss = learner.loss(batch, replay)
    learner.rng.set_state(state)
    (x, y), (z, w) = learner.views(batch, replay)
    assert (len(x), len(z)) == (12, 4)
    torch.testing.assert_close(loss, F.cross_entropy(learner.net(torch.cat([x, z])), torch.cat([y, w])))


def test_new_and_replayed_images_are_normalised_apart_or_together() -> None:
    batch, replay = some_batch(6, CLASSES), some_batch(4, CLASSES, seed=1)
    apart, together = (er("normed", forward=forward, combine="sum") for forward in ("separate", "joint"))
    twin = normed_net(8, 4)
    expected = F.cross_entropy(twin(batch.x / 255), batch.y) + F.cross_entropy(twin(replay.x / 255), replay.y)
    torch.testing.assert_close(apart.loss(batch, replay), expected)
    assert_same_bits(copied(apart.net), copied(twin))  # the new batch first: running statistics depend on the order
    twin = normed_net(8, 4)
    logits = twin(torch.cat([batch.x, replay.x]) / 255)
    expected = F.cross_entropy(logits[:6], batch.y) + F.cross_entropy(logits[6:], replay.y)
    torch.testing.assert_close(together.loss(batch, replay), expected)
    assert passes_counted(together.net) == 1


@pytest.mark.parametrize("combine", ["sum", "mean"])
def test_an_empty_replay_leaves_the_loss_of_the_new_batch_whole(combine: str) -> None:
    learner = er(combine=combine)
    batch = some_batch(6, CLASSES)
    torch.testing.assert_close(learner.loss(batch, no_replay(learner)), entropy(learner, batch))


@pytest.mark.parametrize("combine", ["sum", "mean"])
def test_a_step_with_a_replay_is_a_hand_written_gradient_step(combine: str) -> None:
    learner = er(combine=combine, lr=0.3, memory=50, replay=50)  # replays all it has, so what it replays is known
    first, second = some_batch(6, CLASSES), some_batch(3, CLASSES, seed=1)
    learner.observe(first)
    before = {name: value.detach().clone() for name, value in learner.net.named_parameters()}
    new, old = (gradients(learner, entropy(learner, batch)) for batch in (second, first))
    learner.observe(second)
    share = {"sum": (1.0, 1.0), "mean": (3 / 9, 6 / 9)}[combine]
    expected = {name: before[name] - 0.3 * (share[0] * new[name] + share[1] * old[name]) for name in before}
    assert_close({name: value.detach() for name, value in learner.net.named_parameters()}, expected)


def test_replay_keeps_what_fine_tuning_forgets_on_the_same_stream() -> None:
    data = load("digits")
    old, new = make_tasks(data, StreamConfig(), seed=0)[1][:2]
    kept = []
    for cls in (FineTune, ER):
        config = cls.Config() if cls is FineTune else ERConfig(memory=100)
        learner = cls(make_net("small-cnn", (1, 8, 8), 10, seed=0), Problem(10, (1, 8, 8)), config, seed=0)
        for task in (old, new):
            learner.begin_task(task.info)
            observe_all(learner, batches(data, task, 10))
        kept.append((learner.predict(data.x_test[old.test]) == data.y_test[old.test]).float().mean().item())
    assert kept[0] < 0.1
    assert kept[1] > 0.7
