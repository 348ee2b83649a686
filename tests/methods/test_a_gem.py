"""A-GEM: new samples are learned, and a step against the gradient of stored old ones is projected."""

from __future__ import annotations

import copy
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
    everything,
    hidden_layer,
    joined,
    labelled,
    make,
    normed_net,
    observe_all,
    passes_counted,
    pixel_net,
    plain_net,
    slot_list,
    some_batch,
    state_of,
)
from method_helpers import assert_as_stored, entropy, into_second_task, learn, task_batches
from onepass.config import ReplayConfig
from onepass.errors import Diverged
from onepass.learner.base import SETTLING_STEPS
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net
from onepass.methods.a_gem import AGEM
from onepass.methods.er import ER
from onepass.methods.finetune import FineTune

OLD, NEW = (1, 4), (0, 5)
SEEN = (0, 1, 4, 5)
C = 6
Vector = NDArray[np.float64]


def agem(net: Net | None = None, **settings: Any) -> AGEM:
    return make(AGEM, plain_net(8, C) if net is None else net, **{"memory": 40, **settings})


def in_second_task(net: Net | None = None, **settings: Any) -> AGEM:
    """Twelve samples of the first task are stored, and all of them are drawn."""
    return into_second_task(agem(net, **{"replay": 50, **settings}), OLD, NEW)


def flat(tensors: list[Tensor]) -> Vector:
    return np.concatenate([tensor.detach().double().numpy().reshape(-1) for tensor in tensors])


def weights(net: Net) -> Vector:
    return flat(list(net.parameters()))


def slope(net: Net, x: Tensor, y: Tensor, classes: tuple[int, ...] | range) -> Vector:
    """The gradient of the mean cross-entropy over these classes, in one vector."""
    loss = entropy(net(x), y, classes)
    found = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
    return flat([torch.zeros_like(p) if g is None else g for p, g in zip(net.parameters(), found, strict=True)])


def nearest_harmless(g: Vector, r: Vector) -> Vector:
    """The vector nearest to g that does not point against r: what least squares cannot explain by r, if g does."""
    if g @ r >= 0:
        return g
    explained, *_ = np.linalg.lstsq(r[:, None], g, rcond=None)
    return np.asarray(g - r * explained[0])


def softmax_slope(net: Net, batch: Batch, classes: tuple[int, ...]) -> Vector:
    """The gradient of a linear classifier's mean cross-entropy, written out: (p - onehot) x, sample by sample."""
    w, b = (p.detach().double().numpy() for p in (net.head.weight, net.head.bias))
    rows = batch.x.flatten(1).double().numpy() / 255
    dw, db = np.zeros_like(w), np.zeros_like(b)
    for row, label in zip(rows, batch.y.tolist(), strict=True):
        odds = {c: np.exp(w[c] @ row + b[c]) for c in classes}
        for c in classes:
            excess = (odds[c] / sum(odds.values()) - (c == label)) / len(rows)
            dw[c] += excess * row
            db[c] += excess
    return np.concatenate([dw.reshape(-1), db])


def test_its_settings_are_those_of_every_replay_method() -> None:
    assert AGEM.Config is ReplayConfig


# The step.


def test_a_step_against_the_memory_is_the_nearest_that_is_not_by_hand_written_gradients() -> None:
    learner = in_second_task(pixel_net(C), lr=0.7)
    batch, stored = some_batch(5, NEW, seed=9), everything(learner)
    g, r = (softmax_slope(learner.net, part, SEEN) for part in (batch, stored))
    assert g @ r < -1e-3  # new samples push the old classes down, stored ones up
    before = weights(learner.net)
    loss = learner.observe(batch)
    moved = (before - weights(learner.net)) / 0.7
    np.testing.assert_allclose(moved, nearest_harmless(g, r), atol=1e-5)
    assert abs(moved @ r) < 1e-5
    assert moved @ g > 0
    assert np.abs(moved - g).max() > 1e-2
    logits = torch.from_numpy(batch.x.flatten(1).numpy() / 255) @ torch.from_numpy(before[:-C].reshape(C, -1)).T
    logits += torch.from_numpy(before[-C:])
    assert loss.item() == pytest.approx(entropy(logits, batch.y, SEEN).item(), rel=1e-5)  # of the new samples alone


@pytest.mark.parametrize("scope", ["seen", "all"])
def test_the_gradient_is_one_vector_over_all_layers(scope: str) -> None:
    learner = in_second_task(scope=scope, lr=0.5)
    classes = SEEN if scope == "seen" else range(C)
    batch, stored = some_batch(5, NEW, seed=9), everything(learner)
    g, r = (slope(learner.net, part.x / 255, part.y, classes) for part in (batch, stored))
    assert g @ r < -1e-3
    before = weights(learner.net)
    learner.observe(batch)
    np.testing.assert_allclose((before - weights(learner.net)) / 0.5, nearest_harmless(g, r), atol=1e-5)


def test_a_step_that_does_not_hurt_the_memory_is_one_of_fine_tuning_to_the_bit() -> None:
    """New samples that are the stored ones: both gradients are the same."""
    learner = in_second_task(normed_net(8, C))
    stored = everything(learner)
    plain = make(FineTune, copy.deepcopy(learner.net))
    plain.begin_task(Task(0, SEEN))
    again = Batch(stored.x, stored.y)
    assert torch.equal(learner.observe(again), plain.observe(again))
    assert_same_bits(dict(learner.net.named_parameters()), dict(plain.net.named_parameters()))


def test_images_and_augmentations_of_new_and_of_stored_samples_make_the_gradients() -> None:
    learner = in_second_task(augment="digits", lr=0.5)
    batch, state = some_batch(5, NEW, seed=9), learner.rng.get_state()
    (x, y), (z, w) = learner.views(batch, learner.retrieve(batch))
    assert (len(x), len(z)) == (10, 24)
    g, r = slope(learner.net, x, y, SEEN), slope(learner.net, z, w, SEEN)
    assert g @ r < -1e-3
    learner.rng.set_state(state)
    before = weights(learner.net)
    learner.observe(batch)
    np.testing.assert_allclose((before - weights(learner.net)) / 0.5, nearest_harmless(g, r), atol=1e-5)


def test_both_passes_normalise_by_their_own_batch_and_move_the_running_statistics() -> None:
    learner = in_second_task(normed_net(8, C), lr=0.5)
    batch, stored, twin = some_batch(5, NEW, seed=9), everything(learner), copy.deepcopy(learner.net).train()
    g = slope(twin, batch.x / 255, batch.y, SEEN)  # the new batch first
    r = slope(twin, stored.x / 255, stored.y, SEEN)
    before = weights(learner.net)
    counted = passes_counted(learner.net)
    learner.observe(batch)
    assert passes_counted(learner.net) == counted + 2
    statistics = dict(learner.net.named_buffers())
    assert_close(statistics, dict(twin.named_buffers()), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose((before - weights(learner.net)) / 0.5, nearest_harmless(g, r), atol=1e-4)


def test_layers_that_are_not_trained_take_no_part() -> None:
    learner = in_second_task(lr=0.5)
    hidden = hidden_layer(learner.net).requires_grad_(False)
    before = copied(learner.net)
    batch, stored = some_batch(5, NEW, seed=9), everything(learner)
    head = list(learner.net.head.parameters())
    g, r = (
        flat(list(torch.autograd.grad(entropy(learner.net(part.x / 255), part.y, SEEN), head)))
        for part in (batch, stored)
    )
    assert g @ r < -1e-3
    learner.observe(batch)
    assert torch.equal(hidden.weight, before["body.1.weight"])
    moved = flat([before["head.weight"] - learner.net.head.weight, before["head.bias"] - learner.net.head.bias])
    np.testing.assert_allclose(moved / 0.5, nearest_harmless(g, r), atol=1e-5)


def test_a_memory_that_is_right_beyond_doubt_leaves_a_finite_step() -> None:
    """Its gradient is so short that its square is zero in single precision."""
    learner = in_second_task(pixel_net(C), lr=0.5)
    learner.memory.field("y").fill_(1)
    with torch.no_grad():
        learner.net.head.weight.zero_()
        learner.net.head.bias.copy_(torch.tensor([0.0, 60.0, 0.0, 0.0, 0.0, 0.0]))
    r = softmax_slope(learner.net, everything(learner), SEEN)
    assert 0 < np.abs(r).max() < 1e-23
    batch, before = labelled([0, 5, 0], seed=9), weights(learner.net)
    g = softmax_slope(learner.net, batch, SEEN)
    assert g @ r < 0
    learner.observe(batch)
    np.testing.assert_allclose((before - weights(learner.net)) / 0.5, g, atol=1e-5)


def test_a_stored_sample_without_a_finite_gradient_refuses_the_step() -> None:
    class Spoiled(AGEM):
        def project(self, guard: Tensor) -> None:
            super().project(guard * torch.inf)

    learner = into_second_task(make(Spoiled, normed_net(8, C), memory=40), OLD, NEW)
    before = state_of(learner)
    with pytest.raises(Diverged):
        learner.observe(some_batch(5, NEW, seed=9))
    assert state_of(learner) == before


# What guards the step.


def test_the_first_task_is_learned_as_by_fine_tuning_to_the_bit() -> None:
    ours, theirs = (make(cls, normed_net(8, C), augment="digits") for cls in (AGEM, FineTune))
    for learner in (ours, theirs):
        learner.begin_task(Task(0, OLD))
        observe_all(learner, [some_batch(5, OLD, seed) for seed in range(6)])
    assert len(ours.memory) == 30
    assert_same_bits(copied(ours.net), copied(theirs.net))


def test_samples_of_earlier_tasks_alone_are_drawn_all_different_and_each_in_its_turn() -> None:
    learner = in_second_task(replay=3)
    observe_all(learner, [some_batch(6, NEW, seed) for seed in (80, 81)])
    labels = learner.memory.field("y")[: len(learner.memory)].tolist()
    allowed = {slot for slot, label in enumerate(labels) if label in OLD}
    assert 3 < len(allowed) < len(labels)
    drawn = [learner.retrieve(some_batch(5, NEW)) for _ in range(200)]
    for one in drawn:
        assert len(set(slot_list(one))) == 3
        assert_as_stored(one, learner)
    assert {slot for one in drawn for slot in slot_list(one)} == allowed


def test_with_fewer_old_samples_than_are_drawn_all_of_them_guard_the_step() -> None:
    learner = in_second_task(replay=30)
    learner.observe(some_batch(6, NEW, seed=80))
    labels = learner.memory.field("y")[: len(learner.memory)]
    old = [slot for slot, label in enumerate(labels.tolist()) if label in OLD]
    assert sorted(slot_list(learner.retrieve(some_batch(5, NEW)))) == old


def test_a_memory_that_has_lost_all_old_samples_guards_nothing() -> None:
    learner = in_second_task(normed_net(8, C))
    learner.memory.field("y").fill_(5)
    plain = make(FineTune, copy.deepcopy(learner.net))
    plain.begin_task(Task(0, SEEN))
    batch = some_batch(5, NEW, seed=9)
    assert torch.equal(learner.observe(batch), plain.observe(batch))
    assert_same_bits(copied(learner.net), copied(plain.net))


def test_the_memory_holds_what_ers_does() -> None:
    ours, theirs = (make(cls, plain_net(8, C), memory=7) for cls in (AGEM, ER))
    for learner in (ours, theirs):
        learn(learner, [Task(0, OLD), Task(1, NEW)])
    assert torch.equal(everything(ours).x, everything(theirs).x)
    assert torch.equal(everything(ours).y, everything(theirs).y)


def test_without_announced_tasks_classes_never_seen_make_the_others_guards() -> None:
    learner = agem(replay=50)
    for seed in range(SETTLING_STEPS):
        learner.observe(some_batch(2, OLD, seed))
    assert not len(learner.retrieve(some_batch(5, OLD)))
    learner.observe(some_batch(2, NEW))
    drawn = learner.retrieve(some_batch(5, NEW))
    assert len(drawn)
    assert set(drawn.y.tolist()) <= set(OLD)


def test_three_tasks_are_learned_step_by_step_as_written_out() -> None:
    tasks = [Task(0, (5, 1)), Task(1, (0, 4)), Task(2, (3, 2))]
    learner, net, lr = agem(lr=0.2, memory=1000, replay=1000), plain_net(8, C), 0.2
    past: list[Batch] = []
    seen: tuple[int, ...] = ()
    conflicts = 0
    for task in tasks:
        learner.begin_task(task)
        seen += task.classes
        own = task_batches(task)
        for batch in own:
            step = slope(net, batch.x / 255, batch.y, seen)
            if past:
                stored = joined(*past)
                r = slope(net, stored.x / 255, stored.y, seen)
                conflicts += bool(step @ r < 0)
                step = nearest_harmless(step, r)
            with torch.no_grad():
                first = 0
                for p in net.parameters():
                    p.sub_(lr * torch.from_numpy(step[first : first + p.numel()]).to(p).view_as(p))
                    first += p.numel()
            learner.observe(batch)
        past += own
        learner.end_task()
    assert conflicts > 0
    assert_close(copied(learner.net), copied(net), rtol=1e-3, atol=1e-5)
