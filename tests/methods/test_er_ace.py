"""ER-ACE: new samples compete among the classes of their own batch, replayed ones among all that were seen.

Letters in brackets name the properties that were asked of the method.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from helpers import (
    assert_close,
    assert_finite,
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
    some_batch,
)
from method_helpers import assert_names_change_nothing, descend, entropy, learn, take_renamed_head, task_batches, united
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net
from onepass.methods.er import ER, ERConfig
from onepass.methods.er_ace import ERACE

TASKS = [Task(0, (6, 1, 3)), Task(1, (0, 4, 7)), Task(2, (5, 2))]
SEEN = [0, 1, 3, 4, 6, 7]  # in the second task; 2 and 5 are to come
N = 8
LOSSES = pytest.mark.parametrize(
    ("combine", "forward", "scope"),
    [("mean", "separate", "seen"), ("sum", "joint", "seen"), ("mean", "joint", "all"), ("sum", "separate", "all")],
)


def ace(net: Net | None = None, **settings: Any) -> ERACE:
    return make(ERACE, plain_net(10, N) if net is None else net, **settings)


def in_second_task(**settings: Any) -> ERACE:
    learner = learn(ace(**settings), TASKS[:1])
    learner.begin_task(TASKS[1])
    return learner


# The loss.


def test_it_has_the_settings_of_er_and_no_others() -> None:
    assert ERACE.Config is ERConfig
    assert issubclass(ERACE, ER)


@LOSSES
def test_new_rows_compete_in_their_batch_and_replayed_rows_among_all_in_scope(
    combine: str, forward: str, scope: str
) -> None:
    learner = in_second_task(combine=combine, forward=forward, scope=scope)
    batch, replay = labelled([7, 0, 7, 7, 0], seed=50), labelled([6, 4, 1, 7, 6, 1, 4], seed=51)
    everywhere = SEEN if scope == "seen" else list(range(N))
    new = entropy(learner.net(batch.x / 255), batch.y, [0, 7])
    old = entropy(learner.net(replay.x / 255), replay.y, everywhere)
    expected = united(new, old, (5, 7), combine)
    loss = learner.loss(batch, replay)
    torch.testing.assert_close(loss, expected)
    assert_close(gradients(learner, loss), gradients(learner, expected), rtol=1e-4, atol=1e-6)


@LOSSES
def test_an_old_class_in_a_new_batch_competes_there_like_the_others(combine: str, forward: str, scope: str) -> None:
    learner = in_second_task(combine=combine, forward=forward, scope=scope)
    batch, replay = labelled([3, 0, 7, 3], seed=50), labelled([6, 3], seed=51)
    new = entropy(learner.net(batch.x / 255), batch.y, [0, 3, 7])
    old = entropy(learner.net(replay.x / 255), replay.y, SEEN if scope == "seen" else list(range(N)))
    torch.testing.assert_close(learner.loss(batch, replay), united(new, old, (4, 2), combine))


def test_the_classes_of_a_batch_do_not_depend_on_the_order_of_its_rows() -> None:
    learner = in_second_task()
    batch, replay = labelled([7, 0, 4, 7, 0], seed=50), labelled([6, 4, 1], seed=51)
    losses = [learner.loss(batch[rows], replay) for rows in (torch.arange(5), torch.tensor([2, 4, 1, 3, 0]))]
    torch.testing.assert_close(*losses)


def test_views_are_learned_with_their_originals_in_both_terms() -> None:
    learner = in_second_task(augment="digits")
    batch, replay, state = labelled([7, 0, 7], seed=50), labelled([6, 4], seed=51), learner.rng.get_state()
    loss = learner.loss(batch, replay)
    learner.rng.set_state(state)
    (x, y), (z, w) = learner.views(batch, replay)
    assert (len(x), len(z)) == (6, 4)
    new, old = entropy(learner.net(x), y, [0, 7]), entropy(learner.net(z), w, SEEN)
    torch.testing.assert_close(loss, united(new, old, (6, 4), "mean"))


@pytest.mark.parametrize("forward", ["separate", "joint"])
def test_new_and_replayed_images_are_normalised_apart_or_together(forward: str) -> None:
    learner = ace(normed_net(10, N), forward=forward, combine="sum")
    learner.begin_task(Task(0, tuple(range(N))))
    batch, replay = labelled([7, 0, 7, 0, 7], seed=50), labelled([6, 4, 1], seed=51)
    twin = normed_net(10, N)
    x, z = batch.x / 255, replay.x / 255
    ours, theirs = twin(torch.cat([x, z])).split([5, 3]) if forward == "joint" else (twin(x), twin(z))
    expected = entropy(ours, batch.y, [0, 7]) + F.cross_entropy(theirs, replay.y)
    torch.testing.assert_close(learner.loss(batch, replay), expected)
    # the new batch first, and no pass beside these: running statistics tell
    assert_close(copied(learner.net), copied(twin))


# What new samples leave alone.


@pytest.mark.parametrize("scope", ["seen", "all"])
def test_new_samples_have_no_gradient_for_any_class_outside_their_batch(scope: str) -> None:
    """[a] Not for old classes, not for the running task's other classes, not for classes to come."""
    learner = in_second_task(scope=scope)
    found = gradients(learner, learner.loss(labelled([7, 0, 7, 7]), no_replay(learner)))
    for name in ("head.weight", "head.bias"):
        touched = found[name].reshape(N, -1).abs().sum(dim=1) > 0
        assert touched.nonzero().flatten().tolist() == [0, 7]


def test_replayed_samples_push_down_every_class_in_scope() -> None:
    learner = in_second_task()
    batch, replay = labelled([7, 0, 7]), labelled([6, 1, 6], seed=1)
    found = gradients(learner, learner.loss(batch, replay))["head.bias"]
    assert (found != 0).nonzero().flatten().tolist() == SEEN
    alone = gradients(learner, entropy(learner.net(replay.x / 255), replay.y, SEEN))["head.bias"]
    for absent in (3, 4):  # neither in the batch nor replayed: a class that the memory has lost is one of these
        assert found[absent] > 0
        torch.testing.assert_close(found[absent], alone[absent] / 2)


def test_with_all_in_scope_classes_to_come_are_pushed_down_by_replay_alone() -> None:
    learner = in_second_task(scope="all")
    batch, replay = labelled([7, 0, 7]), labelled([6, 1, 6], seed=1)
    assert (gradients(learner, learner.loss(batch, no_replay(learner)))["head.bias"][[2, 5]] == 0).all()
    assert (gradients(learner, learner.loss(batch, replay))["head.bias"][[2, 5]] > 0).all()


# One class in a batch.


def test_a_batch_of_one_class_and_an_empty_memory_change_no_weight() -> None:
    """[c] The batch is stored and counted all the same."""
    learner = ace(augment="digits")
    learner.begin_task(TASKS[0])
    before = copied(learner.net)
    assert learner.observe(labelled([3, 3, 3, 3])).item() == 0
    assert_same_bits(copied(learner.net), before)
    assert (len(learner.memory), learner.steps) == (4, 1)


@pytest.mark.parametrize(("combine", "share"), [("mean", 4 / 6), ("sum", 1.0)])
def test_a_batch_of_one_class_leaves_the_step_to_the_replay(combine: str, share: float) -> None:
    learner = ace(combine=combine, lr=0.3, memory=50, replay=50)
    learner.begin_task(TASKS[0])
    first = labelled([3, 6, 3, 1])
    learner.observe(first)
    before = {name: value.detach().clone() for name, value in learner.net.named_parameters()}
    slope = gradients(learner, entropy(learner.net(first.x / 255), first.y, [1, 3, 6]))
    learner.observe(labelled([6, 6], seed=1))
    expected = {name: before[name] - 0.3 * share * slope[name] for name in before}
    after = {name: value.detach() for name, value in learner.net.named_parameters()}
    assert_close(after, expected, rtol=1e-4, atol=1e-6)
    assert not torch.equal(after["head.weight"], before["head.weight"])


# Beside ER.


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_batches_of_every_seen_class_are_learned_as_by_er(combine: str) -> None:
    """[b]"""
    ours, theirs = (make(cls, normed_net(10, N), augment="digits", combine=combine, replay=4) for cls in (ERACE, ER))
    for learner in (ours, theirs):
        learner.begin_task(TASKS[0])
    for seed in range(4):
        batch = labelled([6, 1, 3, 1, 6], seed=seed)
        torch.testing.assert_close(*(learner.observe(batch) for learner in (ours, theirs)))
    assert_close(copied(ours.net), copied(theirs.net), rtol=1e-4, atol=1e-6)


def test_a_batch_without_one_of_the_seen_classes_is_not() -> None:
    ours, theirs = (make(cls, plain_net(10, N)) for cls in (ERACE, ER))
    losses = []
    for learner in (ours, theirs):
        learner.begin_task(TASKS[0])
        losses.append(learner.observe(labelled([6, 1, 1, 6])))
    assert losses[0] < losses[1] - 0.01


def test_boundaries_play_no_part() -> None:
    told, untold = (ace(normed_net(10, N), scope="all", augment="digits", replay=4) for _ in range(2))
    learn(told, TASKS)
    for task in TASKS:
        observe_all(untold, task_batches(task))
    assert_same_bits(copied(told.net), copied(untold.net))


def test_other_names_for_the_classes_change_nothing() -> None:
    names = torch.tensor([3, 7, 0, 5, 1, 6, 2, 4])
    ours, theirs = ace(replay=4), ace(replay=4)
    take_renamed_head(theirs, ours, names)
    assert_names_change_nothing(ours, theirs, names, TASKS)


# The whole, and what may happen on the way.


def test_three_tasks_are_learned_step_by_step_as_written_out() -> None:
    learner, net = ace(lr=0.2, memory=1000, replay=1000), plain_net(10, N)
    past: list[Batch] = []
    seen: set[int] = set()
    for task in TASKS:
        learner.begin_task(task)
        seen |= set(task.classes)
        for batch in task_batches(task):
            loss = entropy(net(batch.x / 255), batch.y, sorted(set(batch.y.tolist())))
            if past:
                old = joined(*past)
                loss = united(loss, entropy(net(old.x / 255), old.y, sorted(seen)), (5, len(old)), "mean")
            descend(net.parameters(), loss, 0.2)
            past.append(batch)
            assert learner.observe(batch).item() == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)
    assert_close(copied(learner.net), copied(net), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_an_empty_memory_leaves_the_new_term_whole(combine: str) -> None:
    learner = ace(combine=combine)
    learner.begin_task(TASKS[0])
    batch = labelled([6, 3, 6, 3])
    expected = entropy(learner.net(batch.x / 255), batch.y, [3, 6])
    torch.testing.assert_close(learner.loss(batch, no_replay(learner)), expected)


def test_classes_that_the_memory_has_lost_leave_every_loss_finite() -> None:
    learner = learn(ace(memory=1, replay=1), TASKS[:2])
    assert len(set(learner.memory.field("y").tolist())) == 1
    learner.begin_task(TASKS[2])
    for seed in range(4):
        assert learner.observe(some_batch(5, (5, 2, 1, 0), seed=seed)).isfinite()
    assert_finite(learner.net)


def test_a_grown_learner_goes_on_by_the_same_rule() -> None:
    learner = in_second_task(memory=50, replay=50)
    learner.grow(10)
    learner.begin_task(Task(2, (9, 8)))
    batch = labelled([9, 8, 9, 0], seed=60)
    stored = everything(learner)
    new = entropy(learner.net(batch.x / 255), batch.y, [0, 8, 9])
    old = entropy(learner.net(stored.x / 255), stored.y, [*SEEN, 8, 9])
    before = learner.net.head.weight.detach().clone()
    torch.testing.assert_close(learner.observe(batch), united(new, old, (4, len(stored)), "mean").detach())
    assert (learner.net.head.weight.detach() != before)[[8, 9]].any(dim=1).all()
