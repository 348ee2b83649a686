"""iCaRL: labels teach the new classes, the network of the task's beginning the old ones; the nearest mean predicts."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import (
    assert_close,
    assert_same_bits,
    copied,
    gradients,
    labelled,
    make,
    no_replay,
    normed_net,
    observe_all,
    plain_net,
    some_batch,
    some_images,
)
from method_helpers import (
    assert_names_change_nothing,
    descended,
    learn,
    passes_of,
    take_renamed_head,
    task_batches,
    united,
)
from onepass.learner.base import SETTLING_STEPS
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net
from onepass.methods.er import ER
from onepass.methods.icarl import ICaRL

TASKS = [Task(0, (6, 1, 3)), Task(1, (0, 4)), Task(2, (7, 2, 9))]
OLD, NEW = [0, 1, 3, 4, 6], [2, 7, 9]  # in the third task; 5 and 8 are to come
N = 10


def icarl(net: Net | None = None, **settings: Any) -> ICaRL:
    return make(ICaRL, plain_net(10, N) if net is None else net, **settings)


def in_third_task(net: Net | None = None, steps: int = 2, **settings: Any) -> tuple[ICaRL, Net]:
    """A learner some steps into its third task, and its network as it was when that began."""
    learner = learn(icarl(net, **settings), TASKS[:2])
    teacher = copy.deepcopy(learner.net).eval()
    learner.begin_task(TASKS[2])
    observe_all(learner, task_batches(TASKS[2], steps))
    return learner, teacher


def answered(
    logits: Tensor, teacher: Tensor, y: Tensor, old: Sequence[int], classes: Sequence[int] = (*OLD, *NEW)
) -> Tensor:
    """-t log p - (1 - t) log(1 - p), one row and one class at a time; summed over classes, mean over rows."""
    rows = []
    for row, known, label in zip(logits, teacher, y.tolist(), strict=True):
        total = torch.zeros(())
        for c in classes:
            p = 1 / (1 + (-row[c]).exp())
            t = 1 / (1 + math.exp(-known[c].item())) if c in old else float(c == label)
            total = total - t * p.log() - (1 - t) * (1 - p).log()
        rows.append(total)
    return torch.stack(rows).mean()


def test_its_settings_are_those_of_er() -> None:
    assert ICaRL.Config is ER.Config
    assert issubclass(ICaRL, ER)


# The loss.


@pytest.mark.parametrize("scope", ["seen", "all"])
@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize("forward", ["separate", "joint"])
def test_the_loss_asks_every_class_and_the_old_ones_by_the_network_of_the_tasks_beginning(
    forward: str, combine: str, scope: str
) -> None:
    """New rows of old classes (a blurry stream) and replayed rows of the running task are among them."""
    learner, teacher = in_third_task(combine=combine, forward=forward, scope=scope, lr=0.3)
    batch, replay = labelled([7, 2, 9, 4, 7, 1], seed=50), labelled([6, 9, 0, 2], seed=51)
    classes = range(N) if scope == "all" else (*OLD, *NEW)
    new, old = (
        answered(learner.net(part.x / 255), teacher(part.x / 255), part.y, OLD, classes) for part in (batch, replay)
    )
    expected = united(new, old, (6, 4), combine)
    loss = learner.loss(batch, replay)
    torch.testing.assert_close(loss, expected)
    assert_close(gradients(learner, loss), gradients(learner, expected), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("forward", ["separate", "joint"])
def test_the_network_normalises_by_its_batches_and_the_teacher_by_its_running_statistics(forward: str) -> None:
    learner, teacher = in_third_task(normed_net(10, N), forward=forward, combine="sum")
    batch, replay = labelled([7, 2, 9, 7, 2], seed=50), labelled([6, 9, 0], seed=51)
    twin = copy.deepcopy(learner.net).train()
    x, z = batch.x / 255, replay.x / 255
    ours, theirs = twin(torch.cat([x, z])).split([5, 3]) if forward == "joint" else (twin(x), twin(z))
    with torch.no_grad():
        known = [teacher(x), teacher(z)]
    expected = answered(ours, known[0], batch.y, OLD) + answered(theirs, known[1], replay.y, OLD)
    torch.testing.assert_close(learner.loss(batch, replay), expected)
    assert_close(copied(learner.net), copied(twin))  # no pass beside these


def test_network_and_teacher_see_the_same_augmentations() -> None:
    learner, teacher = in_third_task(augment="digits", lr=0.3)
    batch, replay, state = labelled([7, 2, 7], seed=50), labelled([6, 9], seed=51), learner.rng.get_state()
    loss = learner.loss(batch, replay)
    learner.rng.set_state(state)
    (x, y), (z, w) = learner.views(batch, replay)
    assert (len(x), len(z)) == (6, 4)
    rows, labels = torch.cat([x, z]), torch.cat([y, w])
    with torch.no_grad():
        known = teacher(rows)
    torch.testing.assert_close(loss, answered(learner.net(rows), known, labels, OLD))


def test_the_label_of_an_old_class_says_nothing() -> None:
    """As in the paper: stored images of old classes are learned by what the network of then said of them."""
    learner, _ = in_third_task()
    batch, replay = labelled([7, 2], seed=50), labelled([6, 0, 1, 4], seed=51)
    renamed = Batch(replay.x, torch.tensor([3, 4, 4, 0]))
    assert torch.equal(learner.loss(batch, replay), learner.loss(batch, renamed))
    assert not torch.equal(
        learner.loss(batch, replay), learner.loss(batch, Batch(replay.x, torch.tensor([9, 0, 1, 4])))
    )


def test_a_task_begins_without_any_pull_on_the_old_classes() -> None:
    """The network is its teacher then, so (probability - target) is 0 in each old column, whatever the rows are."""
    learner, _ = in_third_task(steps=0)
    batch, replay = labelled([7, 2, 9, 9], seed=50), labelled([6, 0, 1], seed=51)
    slopes = gradients(learner, learner.loss(batch, replay))["head.bias"]
    assert slopes[OLD].abs().max() < 1e-6
    rows = torch.cat([batch.x, replay.x]) / 255
    share = learner.net(rows).sigmoid().mean(dim=0).detach()
    torch.testing.assert_close(slopes[NEW], share[NEW] - torch.tensor([1, 1, 2]) / 7)
    assert slopes[[5, 8]].tolist() == [0, 0]  # classes to come are left alone
    learner, _ = in_third_task(steps=0, scope="all")
    slopes = gradients(learner, learner.loss(batch, replay))["head.bias"]
    share = learner.net(rows).sigmoid().mean(dim=0).detach()
    torch.testing.assert_close(slopes[[5, 8]], share[[5, 8]])  # pushed down by every row


def test_the_first_task_is_learned_by_its_labels_alone_and_asks_no_teacher() -> None:
    learner = icarl(lr=0.3)
    learner.begin_task(TASKS[0])
    sizes = passes_of(learner.teacher)
    observe_all(learner, task_batches(TASKS[0], 3))
    batch, replay = labelled([6, 1, 3, 3], seed=50), labelled([1, 6], seed=51)
    nobody = torch.full((1, N), torch.nan)
    new, old = (
        answered(learner.net(part.x / 255), nobody.expand(len(part), N), part.y, [], (6, 1, 3))
        for part in (batch, replay)
    )
    expected = united(new, old, (4, 2), "mean")
    torch.testing.assert_close(learner.loss(batch, replay), expected)
    assert sizes == []
    learner.begin_task(TASKS[1])
    learner.observe(labelled([0, 4, 4], seed=52))
    assert sum(sizes) == 3 + 10


def test_a_step_is_one_descent_on_new_and_replayed_rows() -> None:
    learner, teacher = in_third_task(lr=0.2, memory=4)
    batch, stored = labelled([2, 9, 7], seed=50), learner.memory.read(torch.arange(4))
    rows = torch.cat([batch.x, stored.x]) / 255
    with torch.no_grad():
        known = teacher(rows)
    loss = answered(learner.net(rows), known, torch.cat([batch.y, stored.y]), OLD)
    moved = descended(dict(learner.net.named_parameters()), loss, 0.2)
    torch.testing.assert_close(learner.observe(batch), loss.detach())
    assert_close({name: p.detach() for name, p in learner.net.named_parameters()}, moved, rtol=1e-4, atol=1e-6)


def test_nothing_to_replay_leaves_the_new_batch_alone() -> None:
    learner, teacher = in_third_task()
    batch = labelled([7, 2, 9], seed=50)
    with torch.no_grad():
        known = teacher(batch.x / 255)
    expected = answered(learner.net(batch.x / 255), known, batch.y, OLD)
    torch.testing.assert_close(learner.loss(batch, no_replay(learner)), expected)


def test_names_of_classes_change_nothing() -> None:
    names = torch.tensor([4, 7, 0, 9, 2, 5, 8, 1, 3, 6])
    ours, theirs = icarl(lr=0.2), icarl(lr=0.2)
    take_renamed_head(theirs, ours, names)
    assert_names_change_nothing(ours, theirs, names, TASKS, end=True)


# The teacher.


def test_the_teacher_is_the_network_of_the_tasks_beginning_until_the_next_one_begins() -> None:
    learner, teacher = in_third_task(normed_net(10, N), steps=4)
    assert_same_bits(copied(learner.teacher.module), copied(teacher))
    learner.end_task()
    assert_same_bits(copied(learner.teacher.module), copied(teacher))
    before = copied(learner.net)
    learner.begin_task(Task(3, (8,)))
    learner.observe(some_batch(4, (8,)))
    assert_same_bits(copied(learner.teacher.module), before)
    assert not any(p.requires_grad for p in learner.teacher.parameters())


def test_where_nobody_tells_tasks_classes_never_seen_renew_the_teacher() -> None:
    learner = icarl()
    observe_all(learner, [some_batch(4, (6, 1), seed) for seed in range(SETTLING_STEPS + 1)])
    before = copied(learner.net)
    learner.observe(some_batch(4, (0, 4), seed=90))
    assert_same_bits(copied(learner.teacher.module), before)
    assert learner.old.tolist() == [1, 6]
    learner.observe(some_batch(4, (0, 4), seed=91))
    assert_same_bits(copied(learner.teacher.module), before)


# Prediction.


def test_an_image_gets_the_class_with_the_nearest_mean_of_stored_features() -> None:
    learner, _ = in_third_task(normed_net(10, N), steps=6, memory=40)
    images, net = some_images(60, seed=5), copy.deepcopy(learner.net).eval()

    def direction(image: Tensor) -> Tensor:
        with torch.no_grad():
            z: Tensor = net.body(image[None] / 255)[0].double()
        return z / z.square().sum().sqrt()

    means = {}
    stored = learner.memory.read(torch.arange(len(learner.memory)))
    for c in set(stored.y.tolist()):
        total = torch.stack([direction(x) for x, y in zip(stored.x, stored.y.tolist(), strict=True) if y == c]).mean(0)
        means[c] = total / total.square().sum().sqrt()
    expected = [min(means, key=lambda c: float((direction(image) - means[c]).square().sum())) for image in images]
    assert learner.predict(images).tolist() == expected
    assert len(set(expected)) > 3
    with torch.no_grad():
        learner.net.head.weight.mul_(-1)  # the head only trains
    assert learner.predict(images).tolist() == expected
