"""ER-WA: ER, and at the end of a task its classes' rows are rescaled to the mean norm of the old classes' rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import (
    assert_close,
    assert_finite,
    assert_same_bits,
    copied,
    labelled,
    make,
    normed_net,
    observe_all,
    plain_net,
    rng,
    some_batch,
    some_images,
    state_of,
)
from method_helpers import learn
from onepass.learner.base import SETTLING_STEPS, Learner
from onepass.learner.batch import Task
from onepass.learner.net import Net
from onepass.methods.er import ER, ERConfig
from onepass.methods.er_wa import ERWA

TASKS = [Task(0, (6, 1, 3)), Task(1, (0, 4)), Task(2, (7, 2))]
N, D = 9, 10  # class 5 and 8 never come


def wa(net: Net | None = None, cls: type[Learner] = ERWA, **settings: Any) -> Learner:
    return make(cls, plain_net(D, N) if net is None else net, **settings)


def norms(learner: Learner) -> list[float]:
    return [sum(w * w for w in row) ** 0.5 for row in learner.net.head.weight.tolist()]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def set_norms(learner: Learner, wanted: Sequence[float]) -> Tensor:
    """Rows of random directions with these norms."""
    rows = torch.randn(len(wanted), D, generator=rng(9), dtype=torch.float64)
    rows *= torch.tensor(wanted, dtype=torch.float64)[:, None] / rows.norm(dim=1, keepdim=True)
    with torch.no_grad():
        learner.net.head.weight.copy_(rows)
    return learner.net.head.weight.detach().clone()


def in_second_task(**settings: Any) -> Learner:
    """1, 3 and 6 are old, 0 and 4 new, the others to come."""
    learner = wa(**settings)
    learner.begin_task(TASKS[0])
    learner.end_task()
    learner.begin_task(TASKS[1])
    return learner


def test_it_has_the_settings_of_er_and_no_others() -> None:
    assert ERWA.Config is ERConfig
    assert issubclass(ERWA, ER)


# The rule.

#        class:  0    1    2      3    4    5      6    7      8
SHORTER = ([8.0, 3.0, 100.0, 1.0, 4.0, 500.0, 2.0, 100.0, 0.0], 1 / 3)  # old 3, 1, 2 and new 8, 4: means 2 and 6
LONGER = ([1.0, 9.0, 100.0, 3.0, 2.0, 500.0, 6.0, 100.0, 0.0], 4.0)  # old 9, 3, 6 and new 1, 2: means 6 and 1.5


@pytest.mark.parametrize(("wanted", "gamma"), [SHORTER, LONGER])
def test_new_rows_are_scaled_by_the_ratio_of_mean_norms_down_or_up(wanted: list[float], gamma: float) -> None:
    learner = in_second_task()
    before = set_norms(learner, wanted)
    learner.end_task()
    after = learner.net.head.weight.detach()
    torch.testing.assert_close(after[[0, 4]], gamma * before[[0, 4]])
    others = [1, 2, 3, 5, 6, 7, 8]
    assert torch.equal(after[others], before[others])
    assert learner.facts() == {"gamma": pytest.approx(gamma)}
    learner.begin_task(Task(2, (1, 6)))
    learner.end_task()
    assert learner.facts() == {"gamma": None}


def test_after_it_the_mean_norms_are_equal_and_ratios_among_new_rows_are_as_before() -> None:
    learner = learn(wa(), TASKS[:1])
    learn(learner, TASKS[1:2], n=8, end=False)
    before = norms(learner)
    assert mean([before[c] for c in (0, 4)]) != pytest.approx(mean([before[c] for c in (1, 3, 6)]), rel=1e-3)
    learner.end_task()
    after = norms(learner)
    assert mean([after[c] for c in (0, 4)]) == pytest.approx(mean([after[c] for c in (1, 3, 6)]), rel=1e-6)
    assert after[0] / after[4] == pytest.approx(before[0] / before[4], rel=1e-6)


def test_a_second_call_changes_nothing_more() -> None:
    learner = in_second_task()
    set_norms(learner, SHORTER[0])
    learner.end_task()
    once = copied(learner.net)
    learner.end_task()
    assert_close(copied(learner.net), once, rtol=1e-6, atol=0.0)


def test_the_third_task_is_aligned_to_all_before_it_and_not_to_the_last_alone() -> None:
    learner = in_second_task()
    learner.begin_task(TASKS[2])
    before = set_norms(learner, [10.0, 1.0, 3.0, 2.0, 20.0, 500.0, 3.0, 9.0, 500.0])  # old: 7.2, new: 6
    learner.end_task()
    after = learner.net.head.weight.detach()
    torch.testing.assert_close(after[[2, 7]], 1.2 * before[[2, 7]])
    assert torch.equal(after[[0, 1, 3, 4, 5, 6, 8]], before[[0, 1, 3, 4, 5, 6, 8]])


def test_a_class_that_comes_again_stays_an_old_one() -> None:
    learner = in_second_task()
    learner.begin_task(Task(2, (3, 7, 0)))  # only 7 is new
    before = set_norms(learner, [1.0, 2.0, 500.0, 3.0, 4.0, 500.0, 5.0, 6.0, 500.0])  # old: 3
    learner.end_task()
    after = learner.net.head.weight.detach()
    torch.testing.assert_close(after[7], before[7] / 2)
    assert torch.equal(after[:7], before[:7])


def test_the_bias_and_the_body_stay_as_they_are() -> None:
    learner = in_second_task(net=normed_net(D, N))
    set_norms(learner, SHORTER[0])
    before = copied(learner.net)
    learner.end_task()
    after = copied(learner.net)
    assert not torch.equal(after.pop("head.weight"), before.pop("head.weight"))
    assert_same_bits(after, before)


def test_a_head_without_a_bias_is_aligned_too() -> None:
    net = plain_net(D, N)
    net.head.register_parameter("bias", None)
    learner = in_second_task(net=net)
    before = set_norms(learner, SHORTER[0])
    learner.end_task()
    torch.testing.assert_close(learner.net.head.weight.detach()[[0, 4]], before[[0, 4]] / 3)


def test_the_first_task_and_a_task_without_new_classes_change_nothing() -> None:
    learner = wa()
    learner.begin_task(TASKS[0])
    observe_all(learner, [some_batch(5, TASKS[0].classes, seed) for seed in range(3)])
    before = state_of(learner)
    learner.end_task()
    assert state_of(learner) == before
    learner.begin_task(Task(1, (1, 6)))
    observe_all(learner, [some_batch(5, (1, 6), seed) for seed in range(3)])
    before = state_of(learner)
    learner.end_task()
    assert state_of(learner) == before


def test_which_new_class_and_which_old_class_wins_stays_as_it_was() -> None:
    """Where the bias is zero: all scores of a group are scaled alike."""
    learner = learn(wa(), TASKS[:1])
    learn(learner, TASKS[1:2], end=False)
    with torch.no_grad():
        learner.net.head.bias.zero_()
    images = some_images(100, seed=8) / 255
    winners = []
    for _ in range(2):
        with torch.no_grad():
            logits = learner.net(images)
        winners.append([logits[:, group].argmax(dim=1).tolist() for group in ([0, 4], [1, 3, 6])])
        learner.end_task()
    assert winners[0] == winners[1]
    assert all(len(set(group)) > 1 for group in winners[0])


# In the stream.


def test_training_is_er_bit_by_bit_until_a_second_task_ends() -> None:
    ours, theirs = (wa(normed_net(D, N), cls, augment="digits", replay=4) for cls in (ERWA, ER))
    for task, last in ((TASKS[0], False), (TASKS[1], True)):
        for learner in (ours, theirs):
            learn(learner, [task], end=False)
        assert {**state_of(ours), "gamma": None} == {**state_of(theirs), "gamma": None}
        for learner in (ours, theirs):
            learner.end_task()
        assert torch.equal(ours.net.head.weight, theirs.net.head.weight) != last


def test_training_goes_on_from_the_scaled_rows_as_er_would() -> None:
    ours, theirs = (learn(wa(normed_net(D, N), cls, augment="digits", replay=4), TASKS[:2]) for cls in (ERWA, ER))
    weight = ours.net.head.weight
    assert weight.is_leaf
    assert weight.requires_grad
    assert not torch.equal(weight, theirs.net.head.weight)
    theirs.net.load_state_dict(ours.net.state_dict())
    for learner in (ours, theirs):
        learn(learner, TASKS[2:], end=False)
    assert {**state_of(ours), "gamma": None} == {**state_of(theirs), "gamma": None}


def test_within_a_task_predictions_are_those_of_the_head_as_it_is() -> None:
    learner = in_second_task()
    set_norms(learner, [80.0, 1.0, 0.1, 1.0, 80.0, 0.1, 1.0, 0.1, 0.1])
    images = some_images(100, seed=8)
    seen = [0, 1, 3, 4, 6]

    def by_hand() -> list[int]:
        with torch.no_grad():
            return [max(seen, key=row.__getitem__) for row in learner.net(images / 255).tolist()]

    before = by_hand()
    assert learner.predict(images).tolist() == before
    learner.end_task()
    after = by_hand()
    assert learner.predict(images).tolist() == after
    assert sum(c in (0, 4) for c in after) < sum(c in (0, 4) for c in before)


def test_without_announced_tasks_rows_are_aligned_when_the_next_classes_arrive() -> None:
    learner = wa(lr=0.0)  # so that only the alignment moves weights
    for _ in range(SETTLING_STEPS):
        learner.observe(labelled([1, 3, 6, 1]))
    before = set_norms(learner, SHORTER[0])
    for _ in range(SETTLING_STEPS):
        learner.observe(labelled([0, 4, 0, 4]))
    assert torch.equal(learner.net.head.weight.detach(), before)
    learner.observe(some_batch(4, (7,)))
    expected = before.clone()
    expected[[0, 4]] /= 3
    torch.testing.assert_close(learner.net.head.weight.detach(), expected)


def test_classes_to_come_after_growing_take_no_part() -> None:
    learner = in_second_task()
    learner.grow(12)
    before = set_norms(learner, [*SHORTER[0], 700.0, 800.0, 900.0])
    learner.end_task()
    expected = before.clone()
    expected[[0, 4]] /= 3
    torch.testing.assert_close(learner.net.head.weight.detach(), expected)
    learner.begin_task(Task(2, (11, 9)))
    assert learner.observe(some_batch(5, (11, 9))).isfinite()
    assert (learner.net.head.weight.detach() != expected)[[9, 11]].any(dim=1).all()
    learner.end_task()
    found = norms(learner)
    assert mean([found[c] for c in (9, 11)]) == pytest.approx(mean([found[c] for c in (0, 1, 3, 4, 6)]), rel=1e-6)


def test_old_classes_in_a_batch_and_classes_that_the_memory_has_lost_leave_all_finite() -> None:
    learner = learn(wa(memory=1, replay=1), TASKS[:2])
    learner.begin_task(TASKS[2])
    for seed in range(4):
        assert learner.observe(some_batch(5, (7, 2, 1, 0), seed=seed)).isfinite()
    learner.end_task()
    assert_finite(learner.net)
    found = norms(learner)
    assert mean([found[c] for c in (2, 7)]) == pytest.approx(mean([found[c] for c in (0, 1, 3, 4, 6)]), rel=1e-6)
