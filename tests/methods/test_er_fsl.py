"""ER-FSL: new samples in the task's own columns S, replay and prediction in the columns A used so far (eq. 5 to 11)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import (
    assert_close,
    assert_finite,
    assert_same_bits,
    chosen,
    copied,
    gradients,
    hidden_layer,
    joined,
    make,
    no_replay,
    normed_net,
    observe_all,
    passes_counted,
    plain_net,
    rng,
    some_batch,
    some_images,
    state_of,
)
from method_helpers import descend, entropy, learn, task_batches
from onepass.errors import UsageError
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net
from onepass.learner.problem import Problem
from onepass.methods.er import ER
from onepass.methods.er_fsl import ERFSL, Space, stretches
from onepass.methods.factory import build

D, K = 12, 4  # features, and dimensions of a subspace with three tasks
TASKS = [Task(0, (5, 1)), Task(1, (0, 4)), Task(2, (3, 2))]
FIRST, SECOND, THIRD = (list(range(start, start + K)) for start in (0, 4, 8))


def fsl(net: Net | None = None, **settings: Any) -> ERFSL:
    return make(ERFSL, plain_net(D, 6) if net is None else net, **settings)


def in_second_task(**settings: Any) -> ERFSL:
    """A learner that has learned a task and has begun the next: S is 4..7, A is 0..7, and 8..11 are blank."""
    learner = learn(fsl(**settings), TASKS[:1])
    learner.begin_task(TASKS[1])
    return learner


def scores(learner: ERFSL, x: Tensor, dims: list[int]) -> Tensor:
    """Every class's score from indexed columns alone: z[:, S] W[:, S]^T."""
    z: Tensor = learner.net.body(x / 255)
    return z[:, dims] @ learner.net.head.weight[:, dims].T


def loss_in(learner: ERFSL, batch: Batch, dims: list[int], classes: Sequence[int]) -> Tensor:
    """Eq. 6 and 9: minus the log of the label's share among the classes, by indexed columns."""
    return entropy(scores(learner, batch.x, dims), batch.y, classes)


# Which columns: eq. 7, 8 and 10.


def test_each_task_has_its_own_columns_and_the_used_ones_accumulate() -> None:
    learner = fsl()
    for task, own, used in zip(TASKS, (FIRST, SECOND, THIRD), (4, 8, 12), strict=True):
        learner.begin_task(task)
        assert chosen(learner.space("task")) == own
        assert chosen(learner.space("used")) == list(range(used))
        assert chosen(learner.space("first")) == FIRST
        assert chosen(learner.space("all")) == list(range(D))


def test_the_last_columns_that_fit_exactly_are_still_blank() -> None:
    """t k = d."""
    learner = learn(fsl(), TASKS[:2])
    with torch.no_grad():
        learner.net.head.weight[:, 8:] *= 100  # reuse would never choose these
    learner.begin_task(TASKS[2])
    assert chosen(learner.space("task")) == THIRD


def test_columns_depend_on_the_tasks_begun_and_not_on_their_numbers() -> None:
    learner = fsl()
    for number, own in ((7, FIRST), (3, SECOND), (9, THIRD)):
        learner.begin_task(Task(number, (number % 6,)))
        assert chosen(learner.space("task")) == own


@pytest.mark.parametrize(
    ("k", "blank"), [(10, 10), (20, 10), (50, 10), (51, 10), (100, 5), (200, 2), (300, 1), (400, 1), (512, 1)]
)
def test_the_papers_sizes_have_as_many_blank_tasks_as_fit(k: int, blank: int) -> None:
    """d = 512 and ten tasks of ten classes: the columns of table 4."""
    learner = fsl(plain_net(512, 100), subspace=k, n_tasks=10)
    for t in range(10):
        learner.begin_task(Task(t, tuple(range(10 * t, 10 * t + 10))))
        own, used = chosen(learner.space("task")), chosen(learner.space("used"))
        assert len(own) == k
        if t < blank:
            assert own == list(range(t * k, (t + 1) * k))
            assert used == list(range((t + 1) * k))
        else:
            assert used == list(range(512))


def test_the_sixth_task_of_size_100_in_512_reuses_and_then_all_columns_are_used() -> None:
    """Columns 500 to 511 were never anyone's own: they compete by variance like all others."""
    learner = fsl(plain_net(512, 70), subspace=100, n_tasks=10)
    for t in range(5):
        learner.begin_task(Task(t, tuple(range(10 * t, 10 * t + 10))))
    assert chosen(learner.space("used")) == list(range(500))
    rank = torch.randperm(512, generator=rng(3)).double()
    rank[505], rank[rank.argmin()] = 0.0, float(rank[505])
    signs = torch.tensor([1.0, -1.0] * 25)[torch.randperm(50, generator=rng(4))]
    with torch.no_grad():
        learner.net.head.weight[:50] = signs[:, None] * (1 + rank.float()) / 512 + 7  # variance (1 + rank)^2, mean 7
        learner.net.head.weight[50:] = 1000 * torch.randn(20, 512, generator=rng(5))  # not learned: must not count
    learner.begin_task(Task(5, tuple(range(50, 60))))
    own = chosen(learner.space("task"))
    assert own == sorted(rank.argsort()[:100].tolist())
    assert 505 in own
    assert len(set(own) & set(range(500, 512))) < 12
    assert chosen(learner.space("used")) == list(range(512))


# Reuse: the k smallest variances over the rows of finished classes.

VARIANCE = [9.0, 1.0, 16.0, 0.25, 4.0, 25.0, 0.01, 36.0, 2.25, 49.0, 6.25, 0.09]
SMALLEST = [1, 3, 6, 11]  # of 1, 0.25, 0.01 and 0.09


def reusing(n_classes: int = 8, old: Sequence[int] = (1, 5, 0, 4, 3, 2)) -> ERFSL:
    """A learner whose three blank subspaces are taken and whose old rows have the column variances above."""
    learner = fsl(plain_net(D, n_classes), subspace=K)
    for t in range(3):
        learner.begin_task(Task(t, tuple(old[2 * t : 2 * t + 2])))
    signs = torch.tensor([1.0, -1.0]).repeat(3)
    with torch.no_grad():
        learner.net.head.weight[list(old)] = signs[:, None] * torch.tensor(VARIANCE).sqrt() - 3
        # rows to come: over them, or over all rows, other columns have the smallest variance
        learner.net.head.weight[6:] = torch.tensor([[100.0], [-100.0]]) * (torch.tensor(VARIANCE) < 2)
    return learner


def test_reuse_picks_the_columns_with_the_smallest_variance_over_finished_classes() -> None:
    learner = reusing()
    assert torch.var(learner.net.head.weight.detach()[:6], dim=0, correction=0).tolist() == pytest.approx(
        VARIANCE, rel=1e-4
    )
    learner.begin_task(Task(3, (7, 6)))
    assert chosen(learner.space("task")) == SMALLEST
    assert chosen(learner.space("used")) == list(range(D))


def test_reuse_looks_at_the_spread_of_a_column_and_not_at_its_size() -> None:
    learner = reusing()
    with torch.no_grad():
        learner.net.head.weight[:6, SMALLEST] += 1000
    learner.begin_task(Task(3, (7, 6)))
    assert chosen(learner.space("task")) == SMALLEST


def test_reused_columns_are_chosen_once_for_each_task() -> None:
    learner = reusing()
    learner.begin_task(Task(3, (7,)))
    weight = learner.net.head.weight
    with torch.no_grad():
        weight[:6, SMALLEST] *= 100
    observe_all(learner, [some_batch(5, (7,), seed) for seed in range(3)])
    assert chosen(learner.space("task")) == SMALLEST
    with torch.no_grad():
        weight.copy_(torch.arange(8.0)[:, None] * torch.tensor([3.0, 1.0] * 6))
    learner.begin_task(Task(4, (6,)))
    assert chosen(learner.space("task")) == [1, 3, 5, 7]  # of equal variances the first
    with torch.no_grad():
        weight[:, 0] = 0.0
    learner.begin_task(Task(5, ()))
    assert chosen(learner.space("task")) == [0, 1, 3, 5]  # the same columns may come again


def test_the_weights_are_not_drawn_again_when_columns_are_reused() -> None:
    learner = reusing()
    before = copied(learner.net)
    learner.begin_task(Task(3, (7, 6)))
    assert_same_bits(copied(learner.net), before)


def test_columns_left_over_by_the_division_compete_for_reuse() -> None:
    learner = fsl(plain_net(7, 4), subspace=3)  # 0..2, 3..5, and 6 is nobody's
    learner.begin_task(Task(0, (0, 1)))
    learner.begin_task(Task(1, (2,)))
    assert chosen(learner.space("used")) == [0, 1, 2, 3, 4, 5]
    with torch.no_grad():
        learner.net.head.weight[:3] = torch.tensor([[1.0], [0.0], [-1.0]]) * torch.tensor(
            [5.0, 4.0, 9.0, 8.0, 2.0, 7.0, 1.0]
        )
    learner.begin_task(Task(2, (3,)))
    assert chosen(learner.space("task")) == [1, 4, 6]
    assert chosen(learner.space("used")) == list(range(7))


def test_reuse_with_a_single_old_class_is_no_nan() -> None:
    learner = fsl(plain_net(5, 3), subspace=4)
    learner.begin_task(Task(0, (2,)))
    learner.observe(some_batch(4, (2,)))
    learner.begin_task(Task(1, (0, 1)))
    assert len(chosen(learner.space("task"))) == 4
    assert learner.observe(some_batch(4, (0, 1))).isfinite()
    assert_finite(learner.net)


# The size of a subspace.


@pytest.mark.parametrize(
    ("width", "n_tasks", "k"), [(12, 3, 4), (512, 10, 51), (512, 5, 102), (160, 10, 16), (3, 5, 1)]
)
def test_by_default_the_features_are_divided_by_the_tasks(width: int, n_tasks: int, k: int) -> None:
    assert fsl(plain_net(width, 6), n_tasks=n_tasks).subspace == k


def test_a_given_size_wins() -> None:
    assert fsl(n_tasks=3, subspace=5).subspace == 5
    assert fsl(n_tasks=None, subspace=D).subspace == D


def test_a_subspace_larger_than_the_features_is_an_error() -> None:
    message = "subspace=13: the network has 12 features, so at most that many"
    with pytest.raises(UsageError, match=re.escape(message)):
        fsl(subspace=D + 1)


def test_an_unknown_number_of_tasks_needs_a_size() -> None:
    with pytest.raises(UsageError, match="number of tasks, which is unknown: give subspace, or n_tasks"):
        fsl(n_tasks=None)


# The head.


def test_the_head_has_no_bias_and_starts_from_the_same_rows_as_every_method() -> None:
    problem = Problem(6, (1, 8, 8), n_tasks=3)
    ours, theirs = (build(name, problem, net="small-cnn", seed=4).net for name in ("er-fsl", "er"))
    assert ours.head.bias is None
    expected = copied(theirs)
    del expected["head.bias"]
    assert_same_bits(copied(ours), expected)


@pytest.mark.parametrize("space", ["task", "used", "first", "all"])
def test_masked_logits_equal_the_product_of_indexed_columns(space: Space) -> None:
    """(z S)(W S)^T = z[:, S] W[:, S]^T."""
    learner = in_second_task()
    dims = {"task": SECOND, "used": FIRST + SECOND, "first": FIRST, "all": list(range(D))}[space]
    images = some_images(9)
    ours = learner.logits(learner.net.features(images / 255), space)
    torch.testing.assert_close(ours, scores(learner, images, dims))


# The loss, and the ablations of table 3 as settings: weights of the two terms, columns to learn, replay and test in.

USED = FIRST + SECOND
ABLATIONS: dict[str, tuple[dict[str, Any], float, float, list[int], list[int], list[int]]] = {
    "1 ER-FSL": ({}, 0.7, 0.3, SECOND, USED, USED),
    "2 without L_c": ({"new_weight": 0.0}, 0.0, 0.3, SECOND, USED, USED),
    "3 without L_b": ({"replay_weight": 0.0}, 0.7, 0.0, SECOND, USED, USED),
    "4 tested in the task's own": ({"test_in": "task"}, 0.7, 0.3, SECOND, USED, SECOND),
    "5 fixed S": ({"learn_in": "first"}, 0.7, 0.3, FIRST, USED, USED),
    "6 inversion": ({"learn_in": "used", "replay_in": "task"}, 0.7, 0.3, USED, SECOND, USED),
    "7 without gamma": ({"new_weight": 1.0, "replay_weight": 1.0}, 1.0, 1.0, SECOND, USED, USED),
    "all features": (
        {"learn_in": "all", "replay_in": "all", "test_in": "all", "gamma": 0.4},
        0.6,
        0.4,
        list(range(D)),
        list(range(D)),
        list(range(D)),
    ),
}


@pytest.mark.parametrize("scope", ["seen", "all"])
@pytest.mark.parametrize("forward", ["separate", "joint"])
@pytest.mark.parametrize("ablation", ABLATIONS)
def test_every_ablation_is_a_setting_whose_loss_is_that_of_indexed_columns(
    ablation: str, forward: str, scope: str
) -> None:
    settings, new_weight, replay_weight, learn_in, replay_in, _ = ABLATIONS[ablation]
    learner = in_second_task(scope=scope, forward=forward, **settings)
    classes = [0, 1, 4, 5] if scope == "seen" else list(range(6))
    batch, replay = some_batch(7, (0, 4), seed=50), some_batch(5, (5, 1, 0), seed=51)
    expected = new_weight * loss_in(learner, batch, learn_in, classes)
    expected = expected + replay_weight * loss_in(learner, replay, replay_in, classes)
    loss = learner.loss(batch, replay)
    torch.testing.assert_close(loss, expected)
    assert_close(gradients(learner, loss), gradients(learner, expected), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_every_ablation_predicts_from_its_own_columns(ablation: str) -> None:
    settings, *_, test_in = ABLATIONS[ablation]
    learner = in_second_task(**settings)
    learner.observe(some_batch(5, (0, 4)))
    images = some_images(200, seed=8)
    best = {}
    for name, dims in {"own": SECOND, "first": FIRST, "used": USED, "all": list(range(D)), "asked": test_in}.items():
        with torch.no_grad():
            rows = scores(learner, images, dims).tolist()
        best[name] = [max((0, 1, 4, 5), key=lambda c: row[c]) for row in rows]
    assert learner.predict(images).tolist() == best.pop("asked")
    assert len({tuple(classes) for classes in best.values()}) == 4  # so that columns can be told by predictions


def test_the_fourth_ablation_differs_from_the_method_at_test_alone() -> None:
    ours, theirs = (learn(fsl(test_in=space), TASKS) for space in ("used", "task"))
    assert state_of(ours) == state_of(theirs)
    images = some_images(200, seed=8)
    assert ours.predict(images).tolist() != theirs.predict(images).tolist()


def test_replay_in_a_third_task_is_in_all_three_subspaces_and_learning_in_the_third() -> None:
    learner = learn(fsl(), TASKS[:2])
    learner.begin_task(TASKS[2])
    batch, replay = some_batch(7, (2, 3), seed=50), some_batch(5, (5, 1, 0, 4), seed=51)
    expected = 0.7 * loss_in(learner, batch, THIRD, range(6)) + 0.3 * loss_in(learner, replay, list(range(D)), range(6))
    torch.testing.assert_close(learner.loss(batch, replay), expected)


def test_views_are_learned_with_their_originals_in_both_terms() -> None:
    learner = in_second_task(augment="digits")
    batch, replay, state = some_batch(7, (0, 4), seed=50), some_batch(5, (5, 1), seed=51), learner.rng.get_state()
    loss = learner.loss(batch, replay)
    learner.rng.set_state(state)
    doubled = [Batch(x * 255, y) for x, y in learner.views(batch, replay)]
    assert [len(part) for part in doubled] == [14, 10]
    expected = 0.7 * loss_in(learner, doubled[0], SECOND, [0, 1, 4, 5])
    expected = expected + 0.3 * loss_in(learner, doubled[1], USED, [0, 1, 4, 5])
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("forward", ["separate", "joint"])
def test_new_and_replayed_images_are_normalised_apart_or_together(forward: str) -> None:
    learner = fsl(normed_net(D, 6), forward=forward)
    learner.begin_task(Task(0, tuple(range(6))))
    learner.begin_task(Task(1, ()))
    twin = normed_net(D, 6)
    batch, replay = some_batch(7, range(6)), some_batch(5, range(6), seed=51)
    x, z = batch.x / 255, replay.x / 255
    ours, theirs = twin.body(torch.cat([x, z])).split([7, 5]) if forward == "joint" else (twin.body(x), twin.body(z))
    weight = twin.head.weight
    losses = [
        torch.nn.functional.cross_entropy(features[:, dims] @ weight[:, dims].T, y)
        for features, dims, y in ((ours, SECOND, batch.y), (theirs, USED, replay.y))
    ]
    torch.testing.assert_close(learner.loss(batch, replay), 0.7 * losses[0] + 0.3 * losses[1])
    assert passes_counted(learner.net) == (1 if forward == "joint" else 2)


# What must not move.


def test_columns_outside_the_used_ones_keep_their_bits_over_a_whole_training() -> None:
    """In the head, and in the hidden layer whose rows lead there; the others all move."""
    learner = fsl(augment="digits")
    start = copied(learner.net)
    for task, used in ((TASKS[0], 4), (TASKS[1], 8)):
        learn(learner, [task], n=6)
        head, hidden = learner.net.head.weight.detach(), hidden_layer(learner.net).weight.detach()
        assert torch.equal(head[:, used:], start["head.weight"][:, used:])
        assert torch.equal(hidden[used:], start["body.1.weight"][used:])
        assert (head[:, :used] != start["head.weight"][:, :used]).any(dim=0).all()
    learn(learner, TASKS[2:], n=6)
    assert (learner.net.head.weight.detach() != start["head.weight"]).any(dim=0).all()


def test_the_new_term_alone_has_a_gradient_in_the_tasks_own_columns_alone() -> None:
    learner = in_second_task(replay_weight=0.0)
    found = gradients(learner, learner.loss(some_batch(9, (0, 4)), some_batch(5, (5, 1))))
    columns = found["head.weight"].abs().sum(dim=0) > 0
    rows = found["body.1.weight"].abs().sum(dim=1) > 0
    assert columns.nonzero().flatten().tolist() == SECOND
    assert set(rows.nonzero().flatten().tolist()) <= set(SECOND)
    assert rows.any()


def test_both_terms_together_have_no_gradient_outside_the_used_columns() -> None:
    learner = in_second_task()
    found = gradients(learner, learner.loss(some_batch(9, (0, 4)), some_batch(5, (5, 1))))
    assert (found["head.weight"].abs().sum(dim=0) > 0).nonzero().flatten().tolist() == USED


def test_predictions_do_not_depend_on_columns_outside_the_used_ones() -> None:
    learner = learn(fsl(), TASKS[:2])
    images = some_images(300, seed=8)
    before = learner.predict(images)
    assert len(set(before.tolist())) > 1
    order = torch.tensor([10, 8, 11, 9])
    hidden, head = hidden_layer(learner.net), learner.net.head
    with torch.no_grad():
        head.weight[:, 8:] = head.weight[:, order]
        assert torch.equal(learner.predict(images), before)  # the head's alone, so that products change too
        hidden.weight[8:], hidden.bias[8:] = hidden.weight[order], hidden.bias[order]
        head.weight[:, 8:] *= -50
    assert torch.equal(learner.predict(images), before)
    with torch.no_grad():
        head.weight[:, :8] = head.weight[:, torch.arange(7, -1, -1)]
    assert not torch.equal(learner.predict(images), before)


# Gamma.


def test_gamma_of_zero_never_touches_columns_outside_the_tasks_own() -> None:
    learner = learn(fsl(gamma=0.0), TASKS[:1])
    before = copied(learner.net)["head.weight"]
    learn(learner, TASKS[1:2])
    changed = (learner.net.head.weight.detach() != before).any(dim=0)
    assert changed.nonzero().flatten().tolist() == SECOND


def test_gamma_of_zero_is_the_plain_loss_of_the_new_batch_in_its_own_columns() -> None:
    learner = in_second_task(gamma=0.0)
    batch = some_batch(9, (0, 4))
    expected = loss_in(learner, batch, SECOND, [0, 1, 4, 5])
    torch.testing.assert_close(learner.loss(batch, some_batch(5, (5, 1))), expected)


def test_gamma_of_one_ignores_the_new_batch_entirely() -> None:
    """Other labels, other images: the same step. The batch is stored all the same."""
    learners = [in_second_task(gamma=1.0) for _ in range(3)]
    batch = some_batch(6, (0, 4), seed=60)
    for learner, given in zip(
        learners, (batch, Batch(batch.x, 4 - batch.y), Batch(255 - batch.x, batch.y)), strict=True
    ):
        learner.observe(given)
        assert learner.memory.seen == 26
    for other in learners[1:]:
        assert_same_bits(copied(learners[0].net), copied(other.net))
    start = in_second_task(gamma=1.0)
    assert not torch.equal(learners[0].net.head.weight, start.net.head.weight)


def test_an_empty_memory_leaves_the_new_term_with_its_weight() -> None:
    learner = fsl()
    learner.begin_task(TASKS[0])
    batch = some_batch(9, (5, 1))
    expected = 0.7 * loss_in(learner, batch, FIRST, [1, 5])
    torch.testing.assert_close(learner.loss(batch, no_replay(learner)), expected)


@pytest.mark.parametrize("settings", [{"new_weight": 0.0}, {"gamma": 1.0}])
def test_with_nothing_to_learn_from_a_step_does_nothing_but_store(settings: dict[str, float]) -> None:
    learner = fsl(normed_net(D, 6), augment="digits", **settings)
    learner.begin_task(TASKS[0])
    before = copied(learner.net)
    assert learner.observe(some_batch(9, (5, 1))).item() == 0
    assert_same_bits(copied(learner.net), before)
    assert len(learner.memory) == 9
    assert learner.observe(some_batch(9, (5, 1), seed=1)).item() > 0
    assert not torch.equal(learner.net.head.weight, before["head.weight"])


def test_weights_of_their_own_replace_both_that_gamma_gives() -> None:
    batch, replay = some_batch(9, (0, 4)), some_batch(5, (5, 1))
    learner = in_second_task(gamma=0.9, new_weight=2.0, replay_weight=0.5)
    expected = 2 * loss_in(learner, batch, SECOND, [0, 1, 4, 5]) + 0.5 * loss_in(learner, replay, USED, [0, 1, 4, 5])
    torch.testing.assert_close(learner.loss(batch, replay), expected)


# One task in the whole space is ER.


def er_without_bias(lr: float) -> ER:
    net = normed_net(D, 6)
    net.head.register_parameter("bias", None)
    return make(ER, net, augment="digits", lr=lr, replay=5, memory=30)


def test_one_task_in_the_whole_space_at_gamma_one_half_is_er() -> None:
    """With a full replay a step is one of ER; with an empty memory it is one of half its rate."""
    ours = fsl(normed_net(D, 6), augment="digits", n_tasks=1, gamma=0.5, lr=0.2, replay=5, memory=30)
    assert ours.subspace == D
    slow, theirs = er_without_bias(0.1), er_without_bias(0.2)
    task = Task(0, tuple(range(6)))
    first, *rest = task_batches(task, n=8)
    for learner in (ours, slow, theirs):
        learner.begin_task(task)
        learner.observe(first)
    assert_close(copied(ours.net), copied(slow.net))
    theirs.net.load_state_dict(ours.net.state_dict())
    for batch in rest:
        losses = [learner.observe(batch) for learner in (ours, theirs)]
        torch.testing.assert_close(*losses)
        assert_close(copied(ours.net), copied(theirs.net), rtol=1e-4, atol=1e-6)
    images = some_images(100, seed=8)
    assert ours.predict(images).tolist() == theirs.predict(images).tolist()


# The whole.


def test_three_tasks_and_a_reuse_are_learned_step_by_step_as_the_algorithm_says() -> None:
    """Algorithm 1 written out again with indexed columns, hand-made SGD and a replay of all that was stored."""
    learner = fsl(lr=0.2, memory=1000, replay=1000, subspace=5)  # 0..4, 5..9, then reuse; 10 and 11 are left over
    net = plain_net(D, 6)
    net.head.register_parameter("bias", None)
    past: list[Batch] = []
    seen: list[int] = []
    for t, task in enumerate(TASKS):
        if (t + 1) * 5 <= D:
            own, used = list(range(5 * t, 5 * t + 5)), list(range(5 * t + 5))
        else:
            spread = net.head.weight.detach()[sorted(seen)].var(dim=0)
            own, used = sorted(range(D), key=lambda i: float(spread[i]))[:5], list(range(D))
        seen += task.classes
        learner.begin_task(task)
        for batch in task_batches(task):
            terms = [(0.7, batch, own)]
            if past:
                terms.append((0.3, joined(*past), used))
            loss = torch.zeros(())
            for weight, part, dims in terms:
                logits = net.body(part.x / 255)[:, dims] @ net.head.weight[:, dims].T
                shares = torch.softmax(logits[:, sorted(seen)], dim=1)
                right = shares[torch.arange(len(part)), torch.tensor([sorted(seen).index(c) for c in part.y.tolist()])]
                loss = loss - weight * right.log().mean()
            descend(net.parameters(), loss, 0.2)
            past.append(batch)
            assert learner.observe(batch).item() == pytest.approx(loss.item(), rel=1e-4)
        assert chosen(learner.space("task")) == sorted(own)
    assert_close(copied(learner.net), copied(net), rtol=1e-3, atol=1e-5)


# What the learner says of itself: the columns that figure 4 draws.


def moved(learner: ERFSL, loss: Tensor) -> list[int]:
    """The columns of the head that a loss has a gradient in."""
    return gradients(learner, loss)["head.weight"].any(dim=0).nonzero().flatten().tolist()


def spelled(pairs: list[list[int]]) -> list[int]:
    """The columns of [first, last + 1) stretches, which must be apart, in order and not empty."""
    edges = [edge for pair in pairs for edge in pair]
    assert edges == sorted(set(edges))
    return [column for first, end in pairs for column in range(first, end)]


@pytest.mark.parametrize(
    ("mask", "pairs"),
    [
        ([1, 1, 0, 0, 1, 0, 1], [[0, 2], [4, 5], [6, 7]]),
        ([0, 1, 1, 1, 0], [[1, 4]]),
        ([1, 1, 1], [[0, 3]]),
        ([0, 0], []),
        ([1], [[0, 1]]),
    ],
)
def test_stretches_of_a_hand_worked_mask(mask: list[int], pairs: list[list[int]]) -> None:
    assert stretches(torch.tensor(mask, dtype=torch.float32)) == pairs


@pytest.mark.parametrize("ablation", ["1 ER-FSL", "5 fixed S", "6 inversion", "all features"])
def test_facts_are_the_columns_that_learning_and_replay_move_also_where_columns_are_reused(ablation: str) -> None:
    """Five of twelve columns for each of three tasks: the third finds no blank ones."""
    learner = fsl(subspace=5, lr=0.05, **ABLATIONS[ablation][0])
    replay = some_batch(60, (1, 5), seed=90)
    kinds = set()
    for task in TASKS:
        learner.begin_task(task)
        found = []
        for batch in task_batches(task, size=60):
            learned = moved(learner, learner.loss(batch, no_replay(learner)))
            replayed = moved(learner, learner.loss(no_replay(learner), replay))
            found.append((learned, replayed))
            learner.observe(batch)
        learner.end_task()
        facts = learner.facts()
        assert json.loads(json.dumps(facts)) == facts
        assert facts.keys() == {"learned_in", "replayed_in"}
        assert found == [(spelled(facts["learned_in"]), spelled(facts["replayed_in"]))] * len(found)
        kinds.add(json.dumps(facts))
    assert len(kinds) == (1 if ablation == "all features" else 3)


def test_facts_of_a_hand_worked_reuse_are_scattered_columns() -> None:
    learner = reusing()
    assert learner.facts() == {"learned_in": [[8, 12]], "replayed_in": [[0, 12]]}
    learner.begin_task(Task(3, (7, 6)))
    assert learner.facts() == {"learned_in": [[1, 2], [3, 4], [6, 7], [11, 12]], "replayed_in": [[0, 12]]}
