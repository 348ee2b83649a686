"""Fine-tuning is plain SGD on the new batch (eq. 1), and it forgets."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from helpers import assert_same_bits, copied, make, no_replay, normed_net, observe_all, pixel_net, some_batch
from onepass.bench.stream import StreamConfig, batches, make_tasks
from onepass.config import LearnerConfig
from onepass.data.catalog import load
from onepass.learner.batch import Batch, Task
from onepass.learner.net import make_net
from onepass.learner.problem import Problem
from onepass.methods.er import ER
from onepass.methods.finetune import FineTune


def test_a_step_is_a_hand_written_gradient_step() -> None:
    lr, seen = 0.7, [1, 2, 4]
    learner = make(FineTune, pixel_net(5), lr=lr)
    learner.begin_task(Task(0, (4, 1, 2)))
    batch = some_batch(7, seen)
    x = batch.x.flatten(1).double() / 255
    weight, bias = (p.detach().double() for p in (learner.net.head.weight, learner.net.head.bias))
    expected_weight, expected_bias, expected_loss = weight.clone(), bias.clone(), 0.0
    for row, label in zip(x, batch.y.tolist(), strict=True):
        scores = {c: float(weight[c] @ row + bias[c]) for c in seen}
        total = sum(torch.tensor(score).exp().item() for score in scores.values())
        for c, score in scores.items():
            p = torch.tensor(score).exp().item() / total
            expected_weight[c] -= lr * (p - (c == label)) * row / 7
            expected_bias[c] -= lr * (p - (c == label)) / 7
            expected_loss -= torch.tensor(p).log().item() / 7 if c == label else 0.0
    loss = learner.observe(batch)
    assert loss.item() == pytest.approx(expected_loss, rel=1e-5)
    torch.testing.assert_close(learner.net.head.weight.detach().double(), expected_weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(learner.net.head.bias.detach().double(), expected_bias, rtol=1e-5, atol=1e-6)


def test_steps_have_no_momentum_and_no_weight_decay() -> None:
    """A learner after two steps is a new learner, given the weights of the first, after one."""
    first, second = some_batch(6, (0, 1, 2)), some_batch(6, (0, 1, 2), seed=1)
    learner, fresh = make(FineTune, normed_net(8, 3)), make(FineTune, normed_net(8, 3, seed=5))
    for one in (learner, fresh):
        one.begin_task(Task(0, (0, 1, 2)))
    learner.observe(first)
    fresh.net.load_state_dict(learner.net.state_dict())
    for one in (learner, fresh):
        one.observe(second)
    assert_same_bits(copied(learner.net), copied(fresh.net))
    still = make(FineTune, pixel_net(3), scope="all", lr=0.5)
    with torch.no_grad():
        still.net.head.weight[2] *= 1e-3
        still.net.head.bias[:] = torch.tensor([60.0, -60.0, -60.0])  # right beyond doubt: no gradient, so no change
    before = copied(still.net)
    still.observe(some_batch(5, (0,)))
    assert_same_bits(copied(still.net), before)


@pytest.mark.parametrize("views", ["none", "digits"])
@pytest.mark.parametrize("settings", [{"combine": "mean"}, {"combine": "sum"}, {"forward": "joint"}])
def test_fine_tuning_is_er_as_long_as_nothing_is_replayed(views: str, settings: dict[str, Any]) -> None:
    """Above all, no factor of a half without a replay batch."""

    class WithoutReplay(ER):
        def retrieve(self, batch: Batch) -> Batch:
            return no_replay(self)

    ours = make(FineTune, normed_net(8, 4), augment=views, seed=3)
    theirs = make(WithoutReplay, normed_net(8, 4), augment=views, seed=3, **settings)
    for learner in (ours, theirs):
        learner.begin_task(Task(0, (0, 1, 2, 3)))
        observe_all(learner, [some_batch(5, (0, 1, 2, 3), seed) for seed in range(5)])
    assert_same_bits(copied(ours.net), copied(theirs.net))


@pytest.mark.parametrize("views", ["none", "digits"])
def test_the_first_step_of_er_is_one_of_fine_tuning(views: str) -> None:
    ours, theirs = (make(cls, normed_net(8, 4), augment=views, seed=3) for cls in (FineTune, ER))
    for learner in (ours, theirs):
        learner.begin_task(Task(0, (0, 1, 2, 3)))
        learner.observe(some_batch(5, (0, 1, 2, 3)))
    assert_same_bits(copied(ours.net), copied(theirs.net))
    for learner in (ours, theirs):
        learner.observe(some_batch(5, (0, 1, 2, 3), seed=1))
    assert not torch.equal(ours.net.head.weight, theirs.net.head.weight)


def test_after_two_tasks_nearly_all_old_images_are_taken_for_new_classes() -> None:
    data = load("digits")
    old, new = make_tasks(data, StreamConfig(), seed=0)[1][:2]
    learner = FineTune(make_net("small-cnn", (1, 8, 8), 10, seed=0), Problem(10, (1, 8, 8)), LearnerConfig(), seed=0)
    learner.begin_task(old.info)
    observe_all(learner, batches(data, old, 10))
    images, labels = data.x_test[old.test], data.y_test[old.test]
    assert (learner.predict(images) == labels).float().mean() > 0.9  # it had learned them
    learner.begin_task(new.info)
    observe_all(learner, batches(data, new, 10))
    assert torch.isin(learner.predict(images), torch.tensor(new.info.classes)).float().mean() > 0.9
    assert (learner.predict(data.x_test[new.test]) == data.y_test[new.test]).float().mean() > 0.9
