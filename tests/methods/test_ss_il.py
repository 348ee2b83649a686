"""SS-IL: old and new classes have softmaxes of their own, and each finished task is distilled from the last network."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
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
    descend,
    learn,
    passes_of,
    take_renamed_head,
    task_batches,
    united,
)
from onepass.learner.base import SETTLING_STEPS
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net
from onepass.methods.er import ER, ERConfig
from onepass.methods.ss_il import SSIL, SSILConfig

TASKS = [Task(0, (6, 1, 3)), Task(1, (0, 4)), Task(2, (7, 2, 9))]
OLD, NEW = [0, 1, 3, 4, 6], [2, 7, 9]  # in the third task; 5 and 8 are to come
N = 10


def ssil(net: Net | None = None, **settings: Any) -> SSIL:
    return make(SSIL, plain_net(10, N) if net is None else net, **settings)


def in_third_task(net: Net | None = None, steps: int = 2, **settings: Any) -> tuple[SSIL, Net]:
    """A learner some steps into its third task, and its network as it was when the second ended."""
    learner = learn(ssil(net, **settings), TASKS[:2])
    teacher = copy.deepcopy(learner.net).eval()
    learner.begin_task(TASKS[2])
    observe_all(learner, task_batches(TASKS[2], steps))
    return learner, teacher


def separated(logits: Tensor, y: Tensor, old: Sequence[int], new: Sequence[int]) -> Tensor:
    """Minus the log of the label's share among the classes of its own group, row by row."""
    rows = []
    for row, label in zip(logits, y.tolist(), strict=True):
        group = old if label in old else new
        rows.append(-(row[label].exp() / torch.stack([row[c].exp() for c in group]).sum()).log())
    return torch.stack(rows).mean()


def distilled(student: Tensor, teacher: Tensor, past: Sequence[Sequence[int]], softening: float) -> Tensor:
    """T^2 KL(teacher || student) in each task's columns, summed over tasks and classes, mean over rows."""
    total = torch.zeros(())
    for classes in past:
        sums = [torch.stack([(z[:, c] / softening).exp() for c in classes]).sum(dim=0) for z in (student, teacher)]
        for c in classes:
            q, p = ((z[:, c] / softening).exp() / s for z, s in zip((student, teacher), sums, strict=True))
            total = total + softening**2 * (p * (p.log() - q.log())).sum()
    return total / len(student)


def test_its_settings_are_those_of_er_with_two_more() -> None:
    assert SSIL.Config is SSILConfig
    assert SSILConfig() == SSILConfig(distil=1.0, softening=2.0)
    assert issubclass(SSILConfig, ERConfig)
    assert issubclass(SSIL, ER)


# The loss.


@pytest.mark.parametrize("scope", ["seen", "all"])
@pytest.mark.parametrize(
    ("combine", "forward", "distil", "softening"),
    [
        ("mean", "separate", 1.0, 2.0),
        ("mean", "joint", 0.3, 1.0),
        ("sum", "separate", 1.0, 3.0),
        ("sum", "joint", 0.0, 2.0),
    ],
)
def test_the_loss_is_two_softmaxes_and_a_distillation_of_every_finished_task(
    combine: str, forward: str, distil: float, softening: float, scope: str
) -> None:
    """New rows of old classes (a blurry stream) and replayed rows of the running task are among them."""
    learner, teacher = in_third_task(
        combine=combine, forward=forward, distil=distil, softening=softening, scope=scope, lr=0.5
    )
    batch, replay = labelled([7, 2, 9, 4, 7, 1], seed=50), labelled([6, 9, 0, 2], seed=51)
    logits = [learner.net(part.x / 255) for part in (batch, replay)]
    new, old = (separated(rows, part.y, OLD, NEW) for rows, part in zip(logits, (batch, replay), strict=True))
    with torch.no_grad():
        theirs = teacher(torch.cat([batch.x, replay.x]) / 255)
    kept = distilled(torch.cat(logits), theirs, [(6, 1, 3), (0, 4)], softening)
    assert kept > 0.01
    expected = united(new, old, (6, 4), combine) + distil * kept
    loss = learner.loss(batch, replay)
    torch.testing.assert_close(loss, expected)
    assert_close(gradients(learner, loss), gradients(learner, expected), rtol=1e-4, atol=1e-6)


def test_student_and_teacher_see_the_same_views() -> None:
    learner, teacher = in_third_task(augment="digits", lr=0.5)
    batch, replay, state = labelled([7, 2, 7], seed=50), labelled([6, 9], seed=51), learner.rng.get_state()
    loss = learner.loss(batch, replay)
    learner.rng.set_state(state)
    (x, y), (z, w) = learner.views(batch, replay)
    assert (len(x), len(z)) == (6, 4)
    logits = learner.net(torch.cat([x, z]))
    with torch.no_grad():
        kept = distilled(logits, teacher(torch.cat([x, z])), [(6, 1, 3), (0, 4)], 2.0)
    torch.testing.assert_close(loss, separated(logits, torch.cat([y, w]), OLD, NEW) + kept)


@pytest.mark.parametrize("forward", ["separate", "joint"])
def test_the_student_normalises_by_its_batches_and_the_teacher_by_its_running_statistics(forward: str) -> None:
    learner, teacher = in_third_task(normed_net(10, N), forward=forward, combine="sum")
    batch, replay = labelled([7, 2, 9, 7, 2], seed=50), labelled([6, 9, 0], seed=51)
    twin = copy.deepcopy(learner.net).train()
    x, z = batch.x / 255, replay.x / 255
    ours, theirs = twin(torch.cat([x, z])).split([5, 3]) if forward == "joint" else (twin(x), twin(z))
    with torch.no_grad():
        kept = distilled(torch.cat([ours, theirs]), teacher(torch.cat([x, z])), [(6, 1, 3), (0, 4)], 2.0)
    expected = separated(ours, batch.y, OLD, NEW) + separated(theirs, replay.y, OLD, NEW) + kept
    torch.testing.assert_close(learner.loss(batch, replay), expected)
    assert_close(copied(learner.net), copied(twin))  # the new batch first, and no pass beside these


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_without_old_classes_it_is_cross_entropy_over_the_first_tasks_columns(combine: str) -> None:
    learner = ssil(combine=combine)
    learner.begin_task(TASKS[0])
    batch, replay = labelled([6, 1, 3, 6, 1], seed=50), labelled([3, 6], seed=51)
    columns = [1, 3, 6]

    def entropy(part: Batch) -> Tensor:
        labels = torch.tensor([columns.index(c) for c in part.y.tolist()])
        return F.cross_entropy(learner.net(part.x / 255)[:, columns], labels)

    expected = united(entropy(batch), entropy(replay), (5, 2), combine)
    torch.testing.assert_close(learner.loss(batch, replay), expected)
    torch.testing.assert_close(learner.loss(batch, no_replay(learner)), entropy(batch))


def test_new_rows_leave_old_classes_alone_and_old_rows_new_ones() -> None:
    learner, _ = in_third_task(distil=0.0)
    for labels, group in (([7, 2, 9, 7], NEW), ([6, 1, 0], OLD)):
        for term in ((labelled(labels), no_replay(learner)), (labelled([7]), labelled(labels))):
            found = gradients(learner, learner.loss(*term))
            if len(term[1]):
                alone = gradients(learner, learner.loss(labelled([7]), no_replay(learner)))
                found = {name: found[name] * (1 + len(labels)) - alone[name] for name in found}
            for name in ("head.weight", "head.bias"):
                touched = found[name].reshape(N, -1).abs().sum(dim=1) > 1e-6
                assert touched.nonzero().flatten().tolist() == group


def test_without_distillation_classes_outside_a_rows_group_have_a_gradient_of_exactly_zero() -> None:
    learner, _ = in_third_task(distil=0.0)
    batch = labelled([7, 2, 9, 7])
    found = gradients(learner, learner.loss(batch, no_replay(learner)))
    for name in ("head.weight", "head.bias"):
        assert (found[name][[*OLD, 5, 8]] == 0).all()
        assert (found[name][NEW] != 0).reshape(3, -1).any(dim=1).all()
    learner, _ = in_third_task(distil=1.0)
    found = gradients(learner, learner.loss(batch, labelled([6, 2, 0])))
    for name in ("head.weight", "head.bias"):
        assert (found[name][[5, 8]] == 0).all()  # classes to come have none at all


def test_a_finished_task_of_one_class_has_nothing_to_distil() -> None:
    learner = ssil(lr=0.5)
    learner.begin_task(Task(0, (3,)))
    learner.observe(labelled([3, 3]))
    learner.end_task()
    learner.begin_task(Task(1, (0, 4)))
    learner.observe(labelled([0, 4, 0]))
    batch = labelled([0, 4, 4], seed=50)
    kept = learner.loss(batch, labelled([3, 3], seed=51))  # alone in its group, too
    torch.testing.assert_close(kept, 3 / 5 * separated(learner.net(batch.x / 255), batch.y, [3], [0, 4]))


def test_with_a_network_still_as_its_teacher_nothing_is_lost_in_evaluation_mode() -> None:
    learner, _ = in_third_task(normed_net(10, N), steps=0)
    batch, replay = labelled([7, 2, 9, 7], seed=50), labelled([6, 3, 0], seed=51)
    for mode in (False, True):  # training last: it moves the running statistics
        learner.train(mode)
        twin = copy.deepcopy(learner.net)
        logits = torch.cat([twin(part.x / 255) for part in (batch, replay)])
        kept = learner.loss(batch, replay) - separated(logits, torch.cat([batch.y, replay.y]), OLD, NEW)
        assert kept > 1e-3 if mode else kept.abs() < 1e-5


# The teacher.


def test_the_teacher_is_the_network_of_the_last_tasks_end_and_stays_it() -> None:
    learner = learn(ssil(normed_net(10, N), augment="digits"), TASKS[:1])
    ended = copied(learner.net)
    for index, classes in ((1, (0, 4)), (2, (7, 2))):
        learner.begin_task(Task(index, classes))
        assert_same_bits(copied(learner.teacher.module), ended)
        observe_all(learner, [some_batch(5, classes, seed=i) for i in range(12)])
        assert_same_bits(copied(learner.teacher.module), ended)
        assert not torch.equal(learner.net.head.weight, ended["head.weight"])
        learner.end_task()
        ended = copied(learner.net)
        assert_same_bits(copied(learner.teacher.module), ended)


def test_the_teacher_is_no_part_of_what_is_trained_and_never_in_training_mode() -> None:
    learner, _ = in_third_task(normed_net(10, N))
    assert all(not p.requires_grad and p.grad is None for p in learner.teacher.parameters())
    trained = {id(p) for group in learner.optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for p in learner.net.parameters()}
    learner.train()
    assert not any(module.training for module in learner.teacher.module.modules())


def test_without_announced_tasks_the_teacher_is_copied_before_the_first_step_on_new_classes() -> None:
    learner = ssil()
    for seed in range(SETTLING_STEPS):
        learner.observe(labelled([6, 1, 3], seed=seed))
    before = copied(learner.net)
    learner.observe(labelled([0, 4, 0]))
    assert_same_bits(copied(learner.teacher.module), before)
    assert not torch.equal(learner.net.head.weight, before["head.weight"])
    assert [sorted(classes) for classes in learner.past] == [[1, 3, 6]]


def test_the_teacher_looks_once_at_each_image_and_only_if_there_is_something_to_distil() -> None:
    learner = ssil(augment="digits")
    sizes = passes_of(learner.teacher.module.body)
    learn(learner, TASKS[:1])
    assert sizes == []  # nothing before the first task has ended
    learner.begin_task(TASKS[1])
    learner.loss(labelled([0, 4, 0]), labelled([6, 1]))
    assert sum(sizes) == 10
    off = ssil(augment="digits", distil=0.0)
    sizes = passes_of(off.teacher.module.body)
    learn(off, TASKS)
    assert sizes == []


def test_the_classes_of_finished_tasks_are_kept_task_by_task() -> None:
    learner = ssil()
    assert learner.past == []
    for index, task in enumerate(TASKS):
        learner.begin_task(task)
        assert len(learner.past) == index
        observe_all(learner, [some_batch(5, task.classes, seed=i) for i in range(2)])
        learner.end_task()
        assert [sorted(classes) for classes in learner.past] == [sorted(t.classes) for t in TASKS[: index + 1]]
    learner.end_task()  # a second time
    learner.begin_task(Task(3, (1, 9)))  # brings no class
    learner.end_task()
    assert len(learner.past) == 3


# In the stream.


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_the_first_task_is_learned_as_by_er(combine: str) -> None:
    ours, theirs = (make(cls, normed_net(10, N), augment="digits", combine=combine, replay=4) for cls in (SSIL, ER))
    for learner in (ours, theirs):
        learner.begin_task(TASKS[0])
    for seed in range(4):
        batch = some_batch(5, TASKS[0].classes, seed=seed)
        torch.testing.assert_close(*(learner.observe(batch) for learner in (ours, theirs)))
    assert_close(copied(ours.net), copied(theirs.net), rtol=1e-4, atol=1e-6)


def test_other_names_for_the_classes_change_nothing() -> None:
    names = torch.tensor([3, 7, 0, 5, 9, 1, 6, 2, 4, 8])
    ours, theirs = ssil(replay=4), ssil(replay=4)
    take_renamed_head(theirs, ours, names)
    theirs.teacher.follow(theirs.net)
    assert_names_change_nothing(ours, theirs, names, TASKS, end=True)


def test_both_groups_are_compared_at_prediction() -> None:
    learner, _ = in_third_task()
    images = some_images(200, seed=8)
    with torch.no_grad():
        rows = learner.net.eval()(images / 255).tolist()
    expected = [max([*OLD, *NEW], key=row.__getitem__) for row in rows]
    assert learner.predict(images).tolist() == expected


def test_three_tasks_are_learned_step_by_step_as_written_out() -> None:
    learner, net = ssil(lr=0.2, memory=1000, replay=1000), plain_net(10, N)
    stored: list[Batch] = []
    past: list[Sequence[int]] = []
    teacher = net
    for task in TASKS:
        learner.begin_task(task)
        for batch in task_batches(task):
            both = joined(batch, *stored)
            logits = net(both.x / 255)
            with torch.no_grad():
                theirs = teacher(both.x / 255)
            loss = separated(logits, both.y, [c for classes in past for c in classes], task.classes)
            loss = loss + distilled(logits, theirs, past, 2.0)
            descend(net.parameters(), loss, 0.2)
            stored.append(batch)
            assert learner.observe(batch).item() == pytest.approx(loss.item(), rel=1e-4)
        learner.end_task()
        past.append(task.classes)
        teacher = copy.deepcopy(net)
    assert_close(copied(learner.net), copied(net), rtol=1e-3, atol=1e-5)


def test_a_task_that_ended_without_a_sample_leaves_the_first_step_finite() -> None:
    learner = learn(ssil(), TASKS[:1], n=0)
    learner.begin_task(TASKS[1])
    assert math.isfinite(learner.observe(labelled([0, 4, 0])))


def test_a_grown_learner_has_a_grown_teacher_and_goes_on() -> None:
    learner, _ = in_third_task(lr=0.5)
    batch, replay = labelled([7, 2, 9, 4], seed=50), labelled([6, 9, 0], seed=51)
    before = learner.loss(batch, replay).detach()
    learner.grow(12)
    torch.testing.assert_close(learner.loss(batch, replay).detach(), before)  # nobody has seen the new classes
    learner.end_task()
    assert_same_bits(copied(learner.teacher.module), copied(learner.net))
    learner.begin_task(Task(3, (11, 10)))
    rows = learner.net.head.weight.detach().clone()
    for seed in range(2):
        assert math.isfinite(learner.observe(labelled([11, 10, 11], seed=seed)))
    assert (learner.net.head.weight.detach() != rows)[[10, 11]].any(dim=1).all()
