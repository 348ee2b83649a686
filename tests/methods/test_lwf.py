"""LwF: on new samples, the network as it was when the task began teaches its answers about the old classes."""

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
    passes_counted,
    plain_net,
    some_batch,
)
from method_helpers import (
    assert_names_change_nothing,
    descend,
    entropy,
    learn,
    passes_of,
    take_renamed_head,
    task_batches,
)
from onepass.learner.base import SETTLING_STEPS
from onepass.learner.batch import Task
from onepass.learner.net import Net
from onepass.methods.finetune import FineTune
from onepass.methods.lwf import LwF, LwFConfig

TASKS = [Task(0, (6, 1, 3)), Task(1, (0, 4)), Task(2, (7, 2, 9))]
OLD, NEW = [0, 1, 3, 4, 6], [2, 7, 9]  # in the third task; 5 and 8 are to come
SEEN = sorted(OLD + NEW)
N = 10


def lwf(net: Net | None = None, **settings: Any) -> LwF:
    return make(LwF, plain_net(10, N) if net is None else net, **settings)


def in_third_task(net: Net | None = None, steps: int = 2, **settings: Any) -> tuple[LwF, Net]:
    """A learner some steps into its third task, and its network as it was when that began."""
    learner = learn(lwf(net, **settings), TASKS[:2])
    teacher = copy.deepcopy(learner.net)
    learner.begin_task(TASKS[2])
    observe_all(learner, task_batches(TASKS[2], steps))
    return learner, teacher


def kept(student: Tensor, teacher: Tensor, classes: Sequence[int], softening: float) -> Tensor:
    """-T^2 p log q, summed over the classes one by one, mean over rows."""
    total = torch.zeros(())
    for ours, theirs in zip(student, teacher.detach(), strict=True):
        q, p = ({c: (row[c] / softening).exp() for c in classes} for row in (ours, theirs))
        for c in classes:
            share, wanted = q[c] / sum(q.values()), p[c] / sum(p.values())
            total = total - softening**2 * wanted * share.log()
    return total / len(student)


def test_the_defaults_are_those_of_the_online_form() -> None:
    assert LwF.Config is LwFConfig
    assert LwFConfig() == LwFConfig(distil=None, softening=2.0)
    assert lwf().memory.capacity == 0


# The loss.


@pytest.mark.parametrize("scope", ["seen", "all"])
@pytest.mark.parametrize(
    ("distil", "softening", "weights"),
    [(None, 2.0, (1 / 3, 2 / 3)), (None, 1.0, (1 / 3, 2 / 3)), (1.0, 2.0, (1, 1)), (0.3, 3.0, (1, 0.3))],
)
def test_the_loss_is_cross_entropy_and_a_distillation_with_the_weights_of_the_task(
    distil: float | None, softening: float, weights: tuple[float, float], scope: str
) -> None:
    """Rows of old classes (a blurry stream) are among the new ones. In scope `all` every output is distilled."""
    learner, teacher = in_third_task(distil=distil, softening=softening, scope=scope, lr=0.5)
    batch = labelled([7, 2, 9, 4, 7, 1], seed=50)
    logits, theirs = learner.net(batch.x / 255), teacher(batch.x / 255)
    old = kept(logits, theirs, OLD if scope == "seen" else range(N), softening)
    expected = weights[0] * entropy(logits, batch.y, SEEN if scope == "seen" else range(N)) + weights[1] * old
    loss = learner.loss(batch, no_replay(learner))
    torch.testing.assert_close(loss, expected)
    assert_close(gradients(learner, loss), gradients(learner, expected), rtol=1e-4, atol=1e-6)
    apart = gradients(learner, old)
    assert max(slope.abs().max() for slope in apart.values()) > 1e-2


def test_student_and_teacher_see_the_same_images_and_augmentations() -> None:
    learner, teacher = in_third_task(augment="digits", lr=0.5)
    batch, state = labelled([7, 2, 7], seed=50), learner.rng.get_state()
    loss = learner.loss(batch, no_replay(learner))
    learner.rng.set_state(state)
    [(x, y)] = learner.views(batch)
    assert len(x) == 6
    logits = learner.net(x)
    expected = entropy(logits, y, SEEN) / 3 + 2 / 3 * kept(logits, teacher(x), OLD, 2.0)
    torch.testing.assert_close(loss, expected)


def test_student_and_teacher_normalise_by_the_batch_and_only_the_students_statistics_move() -> None:
    learner, teacher = in_third_task(normed_net(10, N), lr=0.5)
    batch, twin = labelled([7, 2, 9, 7, 2], seed=50), copy.deepcopy(learner.net).train()
    frozen, counted = copied(learner.teacher), passes_counted(learner.net)
    logits, theirs = twin(batch.x / 255), teacher.train()(batch.x / 255)
    expected = entropy(logits, batch.y, SEEN) / 3 + 2 / 3 * kept(logits, theirs, OLD, 2.0)
    torch.testing.assert_close(learner.loss(batch, no_replay(learner)), expected)
    assert_close(copied(learner.net), copied(twin))
    assert passes_counted(learner.net) == counted + 1
    assert_same_bits(copied(learner.teacher), frozen)


@pytest.mark.parametrize("distil", [None, 0.7])
def test_a_network_that_is_still_its_teacher_feels_the_labels_alone(distil: float | None) -> None:
    learner, _ = in_third_task(normed_net(10, N), steps=0, distil=distil)
    batch = labelled([7, 2, 9, 7], seed=50)
    found = gradients(learner, learner.loss(batch, no_replay(learner)))
    twin = copy.deepcopy(learner)
    labels = gradients(twin, entropy(twin.net.train()(batch.x / 255), batch.y, SEEN))
    share = 1 / 3 if distil is None else 1
    assert_close(found, {name: share * slope for name, slope in labels.items()}, rtol=1e-3, atol=1e-6)


def test_classes_to_come_have_no_gradient_and_new_ones_only_that_of_the_labels() -> None:
    learner, _ = in_third_task(lr=0.5)
    batch = labelled([7, 2, 9, 7])
    found = gradients(learner, learner.loss(batch, no_replay(learner)))
    labels = gradients(learner, entropy(learner.net(batch.x / 255), batch.y, SEEN))
    for name in ("head.weight", "head.bias"):
        assert (found[name][[5, 8]] == 0).all()
        torch.testing.assert_close(found[name][NEW], labels[name][NEW] / 3)


def test_one_old_class_has_nothing_to_distil() -> None:
    learner = lwf(lr=0.5)
    learner.begin_task(Task(0, (3,)))
    learner.observe(labelled([3, 3]))
    learner.end_task()
    learner.begin_task(Task(1, (0, 4)))
    learner.observe(labelled([0, 4, 0]))
    batch = labelled([0, 4, 4], seed=50)
    expected = entropy(learner.net(batch.x / 255), batch.y, (0, 3, 4)) / 2
    torch.testing.assert_close(learner.loss(batch, no_replay(learner)), expected)


def test_a_task_that_brought_no_class_has_no_answers_to_keep() -> None:
    learner = lwf()
    for task in (Task(0, ()), Task(1, (0, 4))):
        learner.begin_task(task)
    batch = labelled([0, 4, 4])
    expected = entropy(learner.net(batch.x / 255), batch.y, (0, 4))
    torch.testing.assert_close(learner.loss(batch, no_replay(learner)), expected)


# In the stream.


def test_the_first_task_is_learned_as_by_fine_tuning_to_the_bit() -> None:
    ours, theirs = (make(cls, normed_net(10, N), augment="digits") for cls in (LwF, FineTune))
    for learner in (ours, theirs):
        learner.begin_task(TASKS[0])
        observe_all(learner, task_batches(TASKS[0]))
    assert_same_bits(copied(ours.net), copied(theirs.net))


def test_without_distillation_it_is_fine_tuning_throughout_and_the_teacher_is_not_asked() -> None:
    ours, theirs = lwf(normed_net(10, N), distil=0.0), make(FineTune, normed_net(10, N))
    sizes = passes_of(ours.teacher.module.body)
    for learner in (ours, theirs):
        learn(learner, TASKS)
    assert_same_bits(copied(ours.net), copied(theirs.net))
    assert sizes == []


@pytest.mark.parametrize("scope", ["seen", "all"])
def test_three_tasks_are_learned_step_by_step_as_written_out(scope: str) -> None:
    learner, net = lwf(lr=0.2, scope=scope), plain_net(10, N)
    old: list[int] = []
    for t, task in enumerate(TASKS, start=1):
        learner.begin_task(task)
        teacher, seen = copy.deepcopy(net), [*old, *task.classes]
        for batch in task_batches(task):
            logits = net(batch.x / 255)
            loss = entropy(logits, batch.y, seen if scope == "seen" else range(N))
            if old:
                answers = kept(logits, teacher(batch.x / 255), old if scope == "seen" else range(N), 2.0)
                loss = loss / t + (t - 1) / t * answers
            descend(net.parameters(), loss, 0.2)
            assert learner.observe(batch).item() == pytest.approx(loss.item(), rel=1e-4)
        learner.end_task()
        old = seen
    assert_close(copied(learner.net), copied(net), rtol=1e-3, atol=1e-5)


def test_other_names_for_the_classes_change_nothing() -> None:
    names = torch.tensor([3, 7, 0, 5, 9, 1, 6, 2, 4, 8])
    ours, theirs = lwf(), lwf()
    take_renamed_head(theirs, ours, names)
    assert_names_change_nothing(ours, theirs, names, TASKS, end=True)


# The teacher.


def test_the_teacher_is_the_network_of_the_tasks_beginning_and_stays_it() -> None:
    learner = lwf(normed_net(10, N), augment="digits")
    for task in TASKS:
        learner.begin_task(task)
        begun = copied(learner.net)
        assert_same_bits(copied(learner.teacher.module), begun)
        observe_all(learner, task_batches(task))
        assert_same_bits(copied(learner.teacher.module), begun)
        assert not torch.equal(learner.net.head.weight, begun["head.weight"])
        learner.end_task()


def test_a_driver_that_never_ends_a_task_or_ends_it_twice_changes_nothing() -> None:
    proper, never, twice = (lwf(normed_net(10, N)) for _ in range(3))
    learn(proper, TASKS)
    learn(never, TASKS, end=False)
    for task in TASKS:
        learn(twice, [task])
        twice.end_task()
    for other in (never, twice):
        assert_same_bits(copied(other.net), copied(proper.net))


def test_tasks_count_as_they_begin_whatever_their_numbers() -> None:
    proper, odd = lwf(), lwf()
    learn(proper, TASKS)
    for task, index in zip(TASKS, (7, 0, 3), strict=True):
        odd.begin_task(Task(index, task.classes))
        observe_all(odd, task_batches(task))
    assert_same_bits(copied(odd.net), copied(proper.net))


def test_the_teacher_is_no_part_of_what_is_trained_and_passes_each_image_once() -> None:
    learner = lwf(normed_net(10, N), augment="digits")
    sizes = passes_of(learner.teacher.module.body)
    learn(learner, TASKS[:1])
    assert sizes == []  # nothing to keep in the first task
    learner.begin_task(TASKS[1])
    learner.observe(labelled([0, 4, 0]))
    assert sizes == [6]
    assert all(not p.requires_grad and p.grad is None for p in learner.teacher.parameters())
    trained = {id(p) for group in learner.optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for p in learner.net.parameters()}


def test_without_announced_tasks_the_teacher_is_copied_before_the_first_step_on_new_classes() -> None:
    learner = lwf()
    for seed in range(SETTLING_STEPS):
        learner.observe(labelled([6, 1, 3], seed=seed))
    before = copied(learner.net)
    learner.observe(labelled([0, 4, 0]))
    assert_same_bits(copied(learner.teacher.module), before)
    assert not torch.equal(learner.net.head.weight, before["head.weight"])
    assert int(learner.begun) == 2


def test_a_grown_learner_has_a_grown_teacher_and_goes_on() -> None:
    learner, _ = in_third_task(lr=0.5)
    batch = labelled([7, 2, 9, 4], seed=50)
    before = learner.loss(batch, no_replay(learner)).detach()
    learner.grow(12)
    torch.testing.assert_close(learner.loss(batch, no_replay(learner)).detach(), before)
    learner.end_task()
    learner.begin_task(Task(3, (11, 10)))
    assert_same_bits(copied(learner.teacher.module), copied(learner.net))
    rows = learner.net.head.weight.detach().clone()
    for seed in range(2):
        assert math.isfinite(learner.observe(labelled([11, 10, 11], seed=seed)))
    assert (learner.net.head.weight.detach() != rows)[[10, 11]].any(dim=1).all()


def test_what_is_kept_of_old_answers_on_new_samples_is_more_than_by_fine_tuning() -> None:
    """The point of it: after a task, the teacher's answers about the old classes are nearer."""
    far = {}
    for distil in (None, 0.0):
        learner, teacher = in_third_task(steps=0, distil=distil, lr=0.5)
        observe_all(learner, [some_batch(8, NEW, seed) for seed in range(20)])
        x = some_batch(40, NEW, seed=99).x / 255
        ours, theirs = (net(x)[:, OLD].log_softmax(dim=1) for net in (learner.net, teacher))
        far[distil] = (theirs.exp() * (theirs - ours)).sum(dim=1).mean().item()
    assert far[None] < 0.5 * far[0.0]
