"""ER-LODE: the loss of a new sample is split into "which group" and "which class of it", and the first counts less."""

from __future__ import annotations

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
    gradients,
    joined,
    labelled,
    make,
    no_replay,
    normed_net,
    observe_all,
    plain_net,
)
from method_helpers import assert_names_change_nothing, descend, entropy, learn, take_renamed_head, united
from onepass.learner.base import SETTLING_STEPS
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net
from onepass.methods.er import ER, ERConfig
from onepass.methods.er_ace import ERACE
from onepass.methods.er_lode import ERLODE, ERLODEConfig

TASKS = [Task(0, (6, 1, 3)), Task(1, (0, 4)), Task(2, (7, 2, 9))]
OLD, NEW = [0, 1, 3, 4, 6], [2, 7, 9]  # in the third task; 5 and 8 are to come
N = 10
FORMS = pytest.mark.parametrize(("combine", "forward"), [("mean", "separate"), ("sum", "joint")])


def lode(net: Net | None = None, **settings: Any) -> ERLODE:
    return make(ERLODE, plain_net(10, N) if net is None else net, **settings)


def batches_of(task: Task, n: int) -> list[Batch]:
    """Every batch has every class of the task."""
    labels = [*task.classes, *task.classes[:2]]
    return [labelled(labels, seed=100 * task.index + i) for i in range(n)]


def in_third_task(**settings: Any) -> ERLODE:
    learner = learn(lode(**settings), TASKS[:2], batches=batches_of)
    learner.begin_task(TASKS[2])
    return learner


def share(row: Tensor, part: Sequence[int], whole: Sequence[int]) -> Tensor:
    """Minus the log of the part's share of all exponentials."""
    sums = [torch.stack([row[c].exp() for c in classes]).sum() for classes in (part, whole)]
    return -(sums[0] / sums[1]).log()


def decoupled(logits: Tensor, y: Tensor, old: Sequence[int], new: Sequence[int], beta: float) -> Tensor:
    rows = []
    for row, label in zip(logits, y.tolist(), strict=True):
        group = old if label in old else new
        rows.append(beta * share(row, group, [*old, *new]) + share(row, [label], group))
    return torch.stack(rows).mean()


def test_its_settings_are_those_of_er_with_one_more() -> None:
    assert ERLODE.Config is ERLODEConfig
    assert ERLODEConfig() == ERLODEConfig(rho=0.1)
    assert issubclass(ERLODEConfig, ERConfig)
    assert issubclass(ERLODE, ER)


# The loss.


@FORMS
@pytest.mark.parametrize("rho", [0.0, 0.1, 3.0])
@pytest.mark.parametrize("labels", [[7, 2, 7, 7, 2], [7, 6, 2, 0]], ids=["new", "two are old"])
def test_new_rows_have_the_two_parts_and_replayed_rows_the_whole(
    labels: list[int], rho: float, combine: str, forward: str
) -> None:
    """In the third task, so beta1 = rho / 2; replayed rows of the running task are whole, too."""
    learner = in_third_task(rho=rho, combine=combine, forward=forward)
    batch, replay = labelled(labels, seed=50), labelled([6, 9, 0, 2, 4, 7], seed=51)
    new = decoupled(learner.net(batch.x / 255), batch.y, OLD, NEW, rho / 2)
    old = entropy(learner.net(replay.x / 255), replay.y, [*OLD, *NEW])
    expected = united(new, old, (len(labels), 6), combine)
    loss = learner.loss(batch, replay)
    torch.testing.assert_close(loss, expected)
    assert_close(gradients(learner, loss), gradients(learner, expected), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_the_share_of_the_first_part_falls_with_the_number_of_finished_tasks(tasks: int) -> None:
    learner = lode(rho=0.6)
    every = [Task(0, (6,)), Task(1, (0, 4)), Task(2, (7, 2, 9)), Task(3, (1, 3))]
    learn(learner, every[:tasks], n=2, batches=batches_of)
    learner.begin_task(every[tasks])
    old = [c for task in every[:tasks] for c in task.classes]
    batch = labelled([every[tasks].classes[i] for i in (0, 1, 1)], seed=50)
    expected = decoupled(learner.net(batch.x / 255), batch.y, old, every[tasks].classes, 0.6 / tasks)
    torch.testing.assert_close(learner.loss(batch, no_replay(learner)), expected)


def test_the_share_depends_on_the_tasks_begun_and_not_on_their_numbers() -> None:
    """Also in a learner that is saved and loaded in between, which has not seen the first ones begin."""
    learner, loaded = (lode(rho=0.6) for _ in range(2))
    for task in (Task(7, (6, 1, 3)), Task(3, (0, 4)), Task(7, (7, 2, 9))):
        loaded.load_state_dict(learner.state_dict())
        for one in (learner, loaded):
            one.begin_task(task)
        batch = labelled([task.classes[i] for i in (0, 1, 1)], seed=50)
        assert torch.equal(*(one.loss(batch, no_replay(one)) for one in (learner, loaded)))
    expected = decoupled(learner.net(batch.x / 255), batch.y, OLD, NEW, 0.6 / 2)
    torch.testing.assert_close(learner.loss(batch, no_replay(learner)), expected)


def test_views_are_learned_with_their_originals_in_both_terms() -> None:
    learner = in_third_task(augment="digits")
    batch, replay, state = labelled([7, 2, 7], seed=50), labelled([6, 9], seed=51), learner.rng.get_state()
    loss = learner.loss(batch, replay)
    learner.rng.set_state(state)
    (x, y), (z, w) = learner.views(batch, replay)
    assert (len(x), len(z)) == (6, 4)
    new = decoupled(learner.net(x), y, OLD, NEW, 0.05)
    torch.testing.assert_close(loss, united(new, entropy(learner.net(z), w, [*OLD, *NEW]), (6, 4), "mean"))


@pytest.mark.parametrize("forward", ["separate", "joint"])
def test_new_and_replayed_images_are_normalised_apart_or_together(forward: str) -> None:
    learner, twin = lode(normed_net(10, N), forward=forward, combine="sum"), normed_net(10, N)
    learner.begin_task(Task(0, tuple(OLD)))
    learner.begin_task(Task(1, tuple(NEW)))
    batch, replay = labelled([7, 2, 9, 7, 2], seed=50), labelled([6, 9, 0], seed=51)
    x, z = batch.x / 255, replay.x / 255
    ours, theirs = twin(torch.cat([x, z])).split([5, 3]) if forward == "joint" else (twin(x), twin(z))
    expected = decoupled(ours, batch.y, OLD, NEW, 0.1) + entropy(theirs, replay.y, [*OLD, *NEW])
    torch.testing.assert_close(learner.loss(batch, replay), expected)
    assert_close(copied(learner.net), copied(twin))  # the new batch first, and no pass beside these


# Beside ER and ER-ACE.


@pytest.mark.parametrize("scope", ["seen", "all"])
@FORMS
def test_with_both_parts_counted_in_full_it_is_er(combine: str, forward: str, scope: str) -> None:
    """rho = t0."""
    learner = in_third_task(rho=2.0, combine=combine, forward=forward, scope=scope)
    er = make(ER, plain_net(10, N), combine=combine, forward=forward, scope=scope)
    er.net.load_state_dict(learner.net.state_dict())
    for task in TASKS:
        er.begin_task(task)
    batch, replay = labelled([7, 2, 7, 0, 2], seed=50), labelled([6, 9, 0], seed=51)
    ours, theirs = (one.loss(batch, replay) for one in (learner, er))
    torch.testing.assert_close(ours, theirs)
    assert_close(gradients(learner, ours), gradients(er, theirs), rtol=1e-4, atol=1e-6)


def test_two_tasks_at_rho_one_are_learned_as_by_er() -> None:
    """Views, batch-norm, draws and all."""
    made = [make(cls, normed_net(10, N), augment="digits", replay=4, memory=12) for cls in (ER,)]
    made.append(make(ERLODE, normed_net(10, N), augment="digits", replay=4, memory=12, rho=1.0))
    for learner in made:
        learn(learner, TASKS[:2], batches=batches_of)
    assert_close(copied(made[0].net), copied(made[1].net), rtol=1e-3, atol=1e-5)


def test_the_first_task_is_er_bit_by_bit_whatever_rho() -> None:
    er = learn(make(ER, normed_net(10, N), augment="digits", replay=4), TASKS[:1], batches=batches_of)
    for rho in (0.0, 0.1, 5.0):
        learner = learn(lode(normed_net(10, N), augment="digits", replay=4, rho=rho), TASKS[:1], batches=batches_of)
        assert_same_bits(copied(learner.net), copied(er.net))


def test_new_rows_move_old_classes_in_proportion_to_rho_and_not_at_all_without_it() -> None:
    found = {}
    for rho in (0.0, 0.1, 0.4):
        learner = in_third_task(rho=rho)
        learner.net.load_state_dict(plain_net(10, N).state_dict())  # earlier tasks depend on rho, too
        slope = gradients(learner, learner.loss(labelled([7, 2, 9, 7]), no_replay(learner)))
        found[rho] = torch.cat([slope["head.weight"], slope["head.bias"][:, None]], dim=1)[OLD]
        assert (slope["head.bias"][[5, 8]] == 0).all()
    assert (found[0.0] == 0).all()
    assert (found[0.1].abs().sum(dim=1) > 0).all()
    assert (found[0.1][:, -1] > 0).all()  # pushed down
    torch.testing.assert_close(found[0.4], 4 * found[0.1], rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_without_the_first_part_it_is_er_ace_on_batches_of_all_new_classes(combine: str) -> None:
    learner = in_third_task(rho=0.0, combine=combine)
    other = make(ERACE, plain_net(10, N), combine=combine)
    other.net.load_state_dict(learner.net.state_dict())
    for task in TASKS:
        other.begin_task(task)
    batch, replay = labelled([7, 2, 9, 7], seed=50), labelled([6, 9, 0], seed=51)
    torch.testing.assert_close(learner.loss(batch, replay), other.loss(batch, replay))


def test_other_names_for_the_classes_change_nothing() -> None:
    names = torch.tensor([3, 7, 0, 5, 9, 1, 6, 2, 4, 8])
    ours, theirs = lode(replay=4), lode(replay=4)
    take_renamed_head(theirs, ours, names)
    assert_names_change_nothing(ours, theirs, names, TASKS, batches=batches_of)


# In the stream.


def test_three_tasks_are_learned_step_by_step_as_written_out() -> None:
    learner, net = lode(lr=0.2, rho=0.5, memory=1000, replay=1000), plain_net(10, N)
    past: list[Batch] = []
    old: list[int] = []
    for task in TASKS:
        learner.begin_task(task)
        for batch in batches_of(task, 4):
            logits = net(batch.x / 255)
            if old:
                loss = decoupled(logits, batch.y, old, task.classes, 0.5 / task.index)
            else:
                loss = entropy(logits, batch.y, task.classes)
            if past:
                stored = joined(*past)
                whole = entropy(net(stored.x / 255), stored.y, [*old, *task.classes])
                loss = united(loss, whole, (len(batch), len(stored)), "mean")
            descend(net.parameters(), loss, 0.2)
            past.append(batch)
            assert learner.observe(batch).item() == pytest.approx(loss.item(), rel=1e-4)
        learner.end_task()
        old += task.classes
    assert_close(copied(learner.net), copied(net), rtol=1e-3, atol=1e-5)


def test_tasks_that_begin_by_themselves_are_counted_like_announced_ones() -> None:
    told, untold = (lode(replay=4, rho=0.5) for _ in range(2))
    learn(told, TASKS, n=SETTLING_STEPS, batches=batches_of)
    for task in TASKS:
        observe_all(untold, batches_of(task, SETTLING_STEPS))
    assert_same_bits(copied(told.net), copied(untold.net))


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_an_empty_memory_leaves_the_new_term_whole(combine: str) -> None:
    learner = lode(combine=combine)
    learner.begin_task(TASKS[0])
    batch = labelled([6, 1, 6])
    expected = entropy(learner.net(batch.x / 255), batch.y, [1, 3, 6])
    torch.testing.assert_close(learner.loss(batch, no_replay(learner)), expected)
    learner.begin_task(TASKS[1])  # no sample of the first came
    batch = labelled([0, 4, 0])
    expected = decoupled(learner.net(batch.x / 255), batch.y, [1, 3, 6], [0, 4], 0.1)
    torch.testing.assert_close(learner.observe(batch), expected.detach())


def test_a_grown_learner_goes_on_by_the_same_rule() -> None:
    learner = in_third_task(memory=50, replay=50)
    learner.grow(12)
    learner.begin_task(Task(3, (11, 10)))
    batch = labelled([11, 10, 11, 0], seed=60)
    stored = everything(learner)
    new = decoupled(learner.net(batch.x / 255), batch.y, [*OLD, *NEW], [10, 11], 0.1 / 3)
    old = entropy(learner.net(stored.x / 255), stored.y, [*OLD, *NEW, 10, 11])
    before = learner.net.head.weight.detach().clone()
    torch.testing.assert_close(learner.observe(batch), united(new, old, (4, len(stored)), "mean").detach())
    assert (learner.net.head.weight.detach() != before)[[10, 11]].any(dim=1).all()
