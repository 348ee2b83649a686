"""The optimizer, its moments, its weight decay and the number of updates are settings of every method."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from helpers import assert_same_bits, gradients, labelled, make, no_replay, normed_net, pixel_net, some_batch
from onepass.errors import Diverged
from onepass.learner.batch import Batch, Task
from onepass.methods.er import ER
from onepass.methods.finetune import FineTune


def two_steps(**settings: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The head's weights after two steps of fine-tuning, and the gradient and weights before each."""
    learner = make(FineTune, pixel_net(3), scope="all", **settings)
    seen = []
    for batch in (labelled([0, 1, 2], seed=1), labelled([2, 1, 1], seed=2)):
        before = learner.net.head.weight.detach().clone()
        slope = gradients(learner, learner.loss(batch, no_replay(learner)))
        seen += [before, slope["head.weight"]]
        learner.observe(batch)
    return learner.net.head.weight.detach(), seen


def test_sgd_with_momentum_and_weight_decay_is_the_textbooks() -> None:
    after, [w0, g0, w1, g1] = two_steps(lr=0.1, momentum=0.9, weight_decay=0.01)
    v1 = g0 + 0.01 * w0
    torch.testing.assert_close(w1, w0 - 0.1 * v1)
    v2 = 0.9 * v1 + g1 + 0.01 * w1
    torch.testing.assert_close(after, w1 - 0.1 * v2)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_adam_is_the_papers_and_adamw_decays_the_weights_themselves(optimizer: str) -> None:
    after, [w0, g0, _, g1] = two_steps(lr=0.05, optimizer=optimizer, weight_decay=0.1)
    first = second = torch.zeros_like(w0)
    w = w0
    for step, slope in ((1, g0), (2, g1)):
        slope = slope + 0.1 * w if optimizer == "adam" else slope
        w = w if optimizer == "adam" else w * (1 - 0.05 * 0.1)
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        w = w - 0.05 * (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
    torch.testing.assert_close(after, w)


def test_updates_are_so_many_steps_on_a_batch_each_with_a_replay_of_its_own() -> None:
    many = make(ER, normed_net(8, 4), memory=20, replay=3, updates=3)
    one = make(ER, normed_net(8, 4), memory=20, replay=3)
    drawn: list[list[int]] = []
    for learner in (many, one):
        learner.begin_task(Task(0, (0, 1, 2, 3)))
    original = many.retrieve

    def retrieve(batch: Batch) -> Batch:
        found = original(batch)
        drawn.append([] if found.slots is None else found.slots.tolist())
        return found

    many.retrieve = retrieve  # type: ignore[method-assign]
    for seed in range(4):
        batch = some_batch(5, (0, 1, 2, 3), seed)
        many.observe(batch)
        for _ in range(3):
            one.learn(batch, one.retrieve(batch))
        one.remember(batch)
        one.steps += 1
    assert_same_bits(many.net.state_dict(), one.net.state_dict())
    assert len(drawn) == 12
    assert drawn[-1] != drawn[-2]
    assert many.memory.seen == one.memory.seen == 20
    assert many.steps == 4


def test_if_a_later_update_is_refused_the_earlier_ones_are_taken_back() -> None:
    learner = make(ER, normed_net(8, 4), memory=20, updates=2)
    learner.observe(some_batch(5, (0, 1)))
    before = copy.deepcopy(learner.state_dict())
    original, calls = learner.loss, []

    def loss(batch: Batch, replay: Batch) -> torch.Tensor:
        calls.append(1)
        return original(batch, replay) * (torch.inf if len(calls) == 2 else 1)

    learner.loss = loss  # type: ignore[method-assign]
    with pytest.raises(Diverged):
        learner.observe(some_batch(5, (0, 1), seed=2))
    assert len(calls) == 2
    for name, value in learner.state_dict().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, before[name]), name
