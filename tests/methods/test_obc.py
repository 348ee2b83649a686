"""OBC: ER trains the features; a second head, trained on memory alone, predicts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import (
    assert_close,
    assert_same_bits,
    copied,
    everything,
    held_gradients,
    make,
    normed_net,
    observe_all,
    pixel_net,
    plain_net,
    rng,
    some_batch,
    some_images,
)
from method_helpers import inputs_of, into_second_task
from onepass.errors import Diverged
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net
from onepass.methods.er import ER
from onepass.methods.obc import OBC

D, C = 8, 6
OLD, NEW = (1, 4), (0, 5)
SEEN = (0, 1, 4, 5)


def obc(net: Net | None = None, **settings: Any) -> OBC:
    return make(OBC, plain_net(D, C) if net is None else net, **{"memory": 40, **settings})


def in_second_task(net: Net | None = None, **settings: Any) -> OBC:
    return into_second_task(obc(net, **settings), OLD, NEW)


def corrected_by_hand(
    head: dict[str, Tensor], z: Tensor, y: Sequence[int], classes: Sequence[int], smoothing: float, lr: float
) -> dict[str, Tensor]:
    """One descent on the smoothed cross-entropy, by its known gradient: (share - target) times the feature."""
    weight, bias = head["weight"].double(), head["bias"].double()
    slope_w, slope_b = torch.zeros_like(weight), torch.zeros_like(bias)
    for row, label in zip(z.detach().double(), y, strict=True):
        scores = {c: weight[c] @ row + bias[c] for c in classes}
        total = sum(score.exp() for score in scores.values())
        for c in classes:
            target = smoothing / len(classes) + (1 - smoothing) * (c == label)
            slope_w[c] += (scores[c].exp() / total - target) * row / len(y)
            slope_b[c] += (scores[c].exp() / total - target) / len(y)
    return {"weight": (weight - lr * slope_w).float(), "bias": (bias - lr * slope_b).float()}


def er_beside(learner: OBC, net: Net, **settings: Any) -> ER:
    return make(ER, net, **{"memory": 40, **settings})


# Two heads.


def test_the_defaults_are_the_recommended_ones() -> None:
    assert (OBC.Config().correct, OBC.Config().smoothing) == (10, 0.5)


def test_the_corrected_head_starts_as_a_copy_and_is_another_layer() -> None:
    learner = obc()
    assert_same_bits(copied(learner.corrected), copied(learner.net.head))
    assert learner.corrected.weight.data_ptr() != learner.net.head.weight.data_ptr()
    assert learner.corrected.bias.data_ptr() != learner.net.head.bias.data_ptr()


def test_each_optimizer_has_its_own_parameters_and_both_the_same_rate() -> None:
    learner = obc(lr=0.37)
    held = [
        {id(p) for group in optimizer.param_groups for p in group["params"]}
        for optimizer in (learner.optimizer, learner.corrector)
    ]
    assert held == [{id(p) for p in part.parameters()} for part in (learner.net, learner.corrected)]
    assert isinstance(learner.corrector, torch.optim.SGD)
    assert [group["lr"] for group in learner.corrector.param_groups] == [0.37]


def test_the_loss_gives_the_corrected_head_no_gradient() -> None:
    learner = in_second_task()
    loss = learner.loss(some_batch(5, NEW), some_batch(4, OLD, seed=1))
    found = torch.autograd.grad(loss, list(learner.corrected.parameters()), allow_unused=True)
    assert all(slope is None for slope in found)


# The network learns as ER's does.


@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize("forward", ["separate", "joint"])
def test_the_network_is_that_of_er_bit_for_bit(forward: str, combine: str) -> None:
    """Weights and running statistics: the correction moves neither. ER gets the same draws in each step."""
    settings = {"augment": "digits", "replay": 4, "forward": forward, "combine": combine, "memory": 12, "lr": 0.2}
    learner = obc(normed_net(D, C), correct=3, **settings)
    er = er_beside(learner, normed_net(D, C), **settings)
    for task in (Task(0, OLD), Task(1, NEW)):
        for each in (learner, er):
            each.begin_task(task)
        for seed in range(5):
            er.rng.set_state(learner.rng.get_state())
            batch = some_batch(5, task.classes, 10 * task.index + seed)
            assert torch.equal(learner.observe(batch), er.observe(batch))
            assert_same_bits(copied(learner.net), copied(er.net))
            # looking at features leaves no gradient behind
            assert_same_bits(held_gradients(learner.net), held_gradients(er.net))
            for name in ("x", "y"):
                stored = [each.memory.field(name)[: len(each.memory)] for each in (learner, er)]
                assert torch.equal(*stored)


def test_the_first_step_has_nothing_to_correct_by() -> None:
    learner = obc(normed_net(D, C), augment="digits")
    learner.begin_task(Task(0, OLD))
    start = copied(learner.net), copied(learner.corrected)
    assert learner.observe(some_batch(5, OLD)).isfinite()
    assert_same_bits(copied(learner.corrected), start[1])
    assert not torch.equal(learner.net.head.weight, start[0]["head.weight"])
    learner.observe(some_batch(5, OLD, seed=1))
    assert not torch.equal(learner.corrected.weight, start[1]["weight"])


# The correction.


@pytest.mark.parametrize("scope", ["seen", "all"])
@pytest.mark.parametrize("smoothing", [0.0, 0.5, 0.3])
def test_a_correction_is_a_hand_written_step_on_the_smoothed_loss_of_the_memory(smoothing: float, scope: str) -> None:
    """On features of the network after its step, normalised by the memory's batch; the new batch is not in it."""
    learner = in_second_task(normed_net(D, C), lr=0.4, replay=50, correct=50, smoothing=smoothing, scope=scope)
    stored = learner.memory.read(torch.arange(12))
    head, earlier = copied(learner.corrected), copy.deepcopy(learner.net)
    learner.observe(some_batch(5, NEW))
    classes = SEEN if scope == "seen" else range(C)
    now, then, evaluated = copy.deepcopy(learner.net), earlier, copy.deepcopy(learner.net).eval()
    expected, *wrong = (
        corrected_by_hand(head, net.body(stored.x / 255), stored.y.tolist(), classes, smoothing, 0.4)
        for net in (now, then, evaluated)
    )
    ours = copied(learner.corrected)
    assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    for other in wrong:  # so that this test can tell them apart
        assert (ours["weight"] - other["weight"]).abs().max() > 1e-3
    if scope == "seen":  # exactly: what is out of scope has no gradient
        assert torch.equal(ours["weight"][[2, 3]], head["weight"][[2, 3]])
        assert torch.equal(ours["bias"][[2, 3]], head["bias"][[2, 3]])


def test_smoothing_over_classes_in_scope_does_not_explode() -> None:
    learner = obc(smoothing=1.0)
    learner.begin_task(Task(0, (2,)))
    for seed in range(4):
        learner.observe(some_batch(5, (2,), seed))
    assert all(value.abs().max() < 10 for value in copied(learner.corrected).values())


@pytest.mark.parametrize("views", ["none", "digits"])
def test_the_memory_is_drawn_from_afresh_and_before_the_batch_is_stored(views: str) -> None:
    learner = in_second_task(normed_net(D, C), augment=views, replay=4, correct=3, smoothing=0.3, lr=0.2)
    times, elsewhere, changed = (1 if views == "none" else 2), 0, 0
    for seed in range(6):
        stored = everything(learner)
        slot = {image.numpy().tobytes(): i for i, image in enumerate(stored.x)}
        head = copied(learner.corrected)
        with inputs_of(learner.net.body) as passes:
            learner.observe(some_batch(5, NEW, seed))
        assert [len(x) for x in passes] == [5 * times, 4 * times, 3 * times]
        replayed, drawn = (
            [slot[(image * 255).round().to(torch.uint8).numpy().tobytes()] for image in x[:n]]
            for x, n in ((passes[1], 4), (passes[2], 3))
        )
        assert len(set(drawn)) == 3
        elsewhere += not set(drawn) <= set(replayed)
        changed += int((passes[2][-3:] != passes[2][:3]).flatten(1).any(dim=1).sum())
        z = copy.deepcopy(learner.net).body(passes[2])
        expected = corrected_by_hand(head, z, stored.y[drawn].tolist() * times, SEEN, 0.3, 0.2)
        assert_close(copied(learner.corrected), expected, rtol=1e-4, atol=1e-5)
    assert elsewhere >= 4
    assert (changed > 0) == (views != "none")


@pytest.mark.parametrize("what", ["labels", "images"])
def test_the_new_batch_reaches_the_network_and_not_the_corrected_head(what: str) -> None:
    """The features are the pixels here, so that both learners have the same."""
    right, wrong = (in_second_task(pixel_net(C), replay=4, correct=5) for _ in range(2))
    batch = some_batch(6, NEW)
    right.observe(batch)
    wrong.observe(Batch(batch.x, 5 - batch.y) if what == "labels" else Batch(255 - batch.x, batch.y))
    assert_same_bits(copied(right.corrected), copied(wrong.corrected))
    assert not torch.equal(right.net.head.weight, wrong.net.head.weight)


def test_at_a_rate_of_zero_the_corrected_head_stays_at_its_start() -> None:
    learner = obc(replay=4, correct=5)
    start = copied(learner.corrected)
    for group in learner.corrector.param_groups:
        group["lr"] = 0.0
    learner.begin_task(Task(0, SEEN))
    observe_all(learner, [some_batch(5, SEEN, seed) for seed in range(5)])
    assert_same_bits(copied(learner.corrected), start)


def test_a_correction_leaves_no_gradient_in_the_network_for_the_next_step() -> None:
    """Two learners that differ in nothing but their corrected heads: the same network after the next step."""
    learners = [in_second_task(normed_net(D, C), replay=4) for _ in range(2)]
    with torch.no_grad():
        learners[1].corrected.weight += torch.randn(C, D, generator=rng(3))
    for seed in range(3):
        for learner in learners:
            learner.observe(some_batch(5, NEW, seed))
        assert_same_bits(*(copied(learner.net) for learner in learners))
    assert not torch.equal(learners[0].corrected.weight, learners[1].corrected.weight)


def test_a_refused_step_corrects_nothing() -> None:
    learner = in_second_task(lr=0.1)
    before = copied(learner.net), copied(learner.corrected), learner.memory.seen
    for group in learner.optimizer.param_groups:
        group["lr"] = 1e39
    with pytest.raises(Diverged):
        learner.observe(some_batch(5, NEW))
    assert_same_bits(copied(learner.net), before[0])
    assert_same_bits(copied(learner.corrected), before[1])
    assert learner.memory.seen == before[2]


def test_a_refused_correction_takes_the_step_before_it_back() -> None:
    """The message promises that the learner from before the step is kept: all of it."""
    learner = in_second_task(normed_net(D, C), augment="digits")
    for group in learner.corrector.param_groups:
        group["lr"] = 1e39
    before = copied(learner.net), copied(learner.corrected), learner.memory.seen, learner.steps
    with pytest.raises(Diverged):
        learner.observe(some_batch(5, NEW))
    assert_same_bits(copied(learner.net), before[0])
    assert_same_bits(copied(learner.corrected), before[1])
    assert (learner.memory.seen, learner.steps) == before[2:]


# Prediction.


def test_the_corrected_head_predicts_among_the_classes_seen() -> None:
    learner = in_second_task(normed_net(D, C))
    observe_all(learner, [some_batch(5, NEW, seed) for seed in range(3)])
    images = some_images(150, seed=6)
    with torch.no_grad():
        learner.corrected.weight.copy_(torch.randn(C, D, generator=rng(5)))
        learner.corrected.bias.copy_(torch.randn(C, generator=rng(6)))
        net = copy.deepcopy(learner.net).eval()
        z = net.body(images / 255)
        scores = z @ learner.corrected.weight.T + learner.corrected.bias
        head = net.head(z)
    best = [max(SEEN, key=lambda c: row[c]) for row in scores.tolist()]
    assert learner.predict(images).tolist() == best
    assert [max(SEEN, key=lambda c: row[c]) for row in head.tolist()] != best
    assert [max(range(C), key=lambda c: row[c]) for row in scores.tolist()] != best
    with torch.no_grad():
        learner.net.head.weight.mul_(-3)
    assert learner.predict(images).tolist() == best


# More classes.


def test_learning_goes_on_with_classes_that_a_grown_learner_has_room_for() -> None:
    learner = in_second_task()
    known = copied(learner.corrected)
    learner.grow(9)
    assert learner.corrected.weight.shape == (9, D)
    assert learner.corrected.bias.shape == (9,)
    assert torch.equal(learner.corrected.weight.detach()[:C], known["weight"])
    assert torch.equal(learner.corrected.bias.detach()[:C], known["bias"])
    learner.begin_task(Task(2, (8, 7)))
    before = copied(learner.corrected)
    for seed in range(4):
        assert learner.observe(some_batch(6, (8, 7), seed)).isfinite()
    changed = (learner.corrected.weight.detach() != before["weight"]).any(dim=1).nonzero().flatten().tolist()
    assert changed == [0, 1, 4, 5, 7, 8]
    assert set(learner.predict(some_images(50)).tolist()) <= set(changed)
