"""ER-ACE: new samples compete among the classes of their own batch, replayed ones among all that were seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
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
    some_images,
)
from method_helpers import assert_names_change_nothing, descend, entropy, learn, take_renamed_head, task_batches, united
from onepass.bench.run_config import RunConfig
from onepass.config import stored_options
from onepass.errors import UsageError
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net
from onepass.methods.er import ER, ERConfig
from onepass.methods.er_ace import ERACE

TASKS = [Task(0, (6, 1, 3)), Task(1, (0, 4, 7)), Task(2, (5, 2))]
SEEN = [0, 1, 3, 4, 6, 7]  # in the second task; 2 and 5 are to come
N = 8


def ace(net: Net | None = None, **settings: Any) -> ERACE:
    return make(ERACE, plain_net(10, N) if net is None else net, **settings)


def in_second_task(**settings: Any) -> ERACE:
    learner = learn(ace(**settings), TASKS[:1])
    learner.begin_task(TASKS[1])
    return learner


def test_beside_its_head_it_has_the_settings_of_er() -> None:
    assert ERACE.Config().to_json() == {**ERConfig().to_json(), "head": "linear"}
    assert issubclass(ERACE, ER)


def test_runs_with_a_linear_head_keep_the_keys_that_they_had_before_there_was_a_choice() -> None:
    plain, cosine = (RunConfig("er-ace", settings={"memory": 100, **more}) for more in ({}, {"head": "cosine"}))
    assert "head" not in stored_options(plain.settings)
    assert stored_options(cosine.settings)["head"] == "cosine"
    assert plain.key != cosine.key
    with pytest.raises(UsageError, match="head='cos': allowed are linear, cosine"):
        RunConfig("er-ace", settings={"head": "cos"})


@pytest.mark.parametrize("labels", [[7, 0, 7, 7, 0], [3, 0, 7, 3], [7, 7]], ids=["new", "one is old", "one class"])
@pytest.mark.parametrize(
    ("combine", "forward", "scope", "augment"),
    [
        ("mean", "separate", "seen", "none"),
        ("sum", "joint", "seen", "none"),
        ("mean", "joint", "all", "none"),
        ("sum", "separate", "all", "none"),
        ("mean", "separate", "seen", "digits"),
    ],
)
def test_new_rows_compete_in_their_batch_and_replayed_rows_among_all_in_scope(
    combine: str, forward: str, scope: str, augment: str, labels: list[int]
) -> None:
    learner = in_second_task(combine=combine, forward=forward, scope=scope, augment=augment)
    batch, replay, state = labelled(labels, seed=50), labelled([6, 4, 1, 7, 6, 1, 4], seed=51), learner.rng.get_state()
    loss = learner.loss(batch, replay)
    learner.rng.set_state(state)
    (x, y), (z, w) = learner.views(batch, replay)
    assert len(x) == len(labels) * (1 if augment == "none" else 2)
    new = entropy(learner.net(x), y, sorted(set(labels)))
    old = entropy(learner.net(z), w, SEEN if scope == "seen" else range(N))
    expected = united(new, old, (len(x), len(z)), combine)
    torch.testing.assert_close(loss, expected)
    assert_close(gradients(learner, loss), gradients(learner, expected), rtol=1e-4, atol=1e-6)


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


@pytest.mark.parametrize(("scope", "combine"), [("seen", "mean"), ("all", "sum")])
def test_new_samples_move_the_classes_of_their_batch_alone_and_replayed_ones_push_down_all(
    scope: str, combine: str
) -> None:
    """Alone, new samples leave old classes, the task's other classes and those to come at exactly zero."""
    learner, batch = in_second_task(scope=scope, combine=combine), labelled([7, 0, 7, 7])
    loss = learner.loss(batch, no_replay(learner))
    torch.testing.assert_close(loss, entropy(learner.net(batch.x / 255), batch.y, [0, 7]))  # whole, with either combine
    alone, both = (gradients(learner, value) for value in (loss, learner.loss(batch, labelled([6, 1, 6], seed=1))))
    for name in ("head.weight", "head.bias"):
        touched = alone[name].reshape(N, -1).abs().sum(dim=1) > 0
        assert touched.nonzero().flatten().tolist() == [0, 7]
    absent = [3, 4] if scope == "seen" else [2, 3, 4, 5]  # neither new nor replayed
    assert (both["head.bias"][absent] > 0).all()
    assert (both["head.bias"] != 0).nonzero().flatten().tolist() == (SEEN if scope == "seen" else list(range(N)))


def test_a_batch_of_one_class_and_an_empty_memory_change_no_weight() -> None:
    """The batch is stored and counted all the same."""
    learner = ace(augment="digits")
    learner.begin_task(TASKS[0])
    before = copied(learner.net)
    assert learner.observe(labelled([3, 3, 3, 3])).item() == 0
    assert_same_bits(copied(learner.net), before)
    assert (len(learner.memory), learner.steps) == (4, 1)


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_batches_of_every_seen_class_are_learned_as_by_er(combine: str) -> None:
    ours, theirs = (make(cls, normed_net(10, N), augment="digits", combine=combine, replay=4) for cls in (ERACE, ER))
    for learner in (ours, theirs):
        learner.begin_task(TASKS[0])
    for seed in range(4):
        batch = labelled([6, 1, 3, 1, 6], seed=seed)
        torch.testing.assert_close(*(learner.observe(batch) for learner in (ours, theirs)))
    assert_close(copied(ours.net), copied(theirs.net), rtol=1e-4, atol=1e-6)


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


# The cosine head: ten times the cosine of features and weights.


def cosines(net: Net, x: Tensor) -> Tensor:
    """Pair by pair, in double precision."""
    z, w = net.body(x).double(), net.head.weight.double()
    return 10 * F.cosine_similarity(z[:, None], w[None], dim=2)


def linear(net: Net, x: Tensor) -> Tensor:
    logits: Tensor = net(x)
    return logits


HEADS: dict[str, Callable[[Net, Tensor], Tensor]] = {"linear": linear, "cosine": cosines}


@pytest.mark.parametrize("scope", ["seen", "all"])
def test_with_a_cosine_head_both_losses_are_of_ten_times_the_cosine(scope: str) -> None:
    learner = in_second_task(head="cosine", scope=scope)
    batch, replay = labelled([7, 0, 7, 3], seed=50), labelled([6, 4, 1, 7, 6], seed=51)
    new = entropy(cosines(learner.net, batch.x / 255), batch.y, [0, 3, 7])
    old = entropy(cosines(learner.net, replay.x / 255), replay.y, SEEN if scope == "seen" else range(N))
    expected = united(new, old, (4, 5), "mean")
    loss = learner.loss(batch, replay)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert_close(gradients(learner, loss), gradients(learner, expected), rtol=1e-4, atol=1e-6)


def test_a_cosine_head_predicts_by_direction_and_has_no_bias() -> None:
    learner = in_second_task(head="cosine")
    assert learner.net.head.bias is None
    assert "net.head.bias" not in learner.state_dict()
    images = some_images(200, seed=7)
    with torch.no_grad():
        scores = cosines(learner.net, images / 255)[:, SEEN]
    expected = torch.tensor(SEEN)[scores.argmax(dim=1)]
    assert torch.equal(learner.predict(images), expected)
    with torch.no_grad():
        learner.net.head.weight *= torch.arange(1, N + 1)[:, None]  # lengths tell nothing
    assert torch.equal(learner.predict(images), expected)
    by_products = (learner.net.body(images / 255) @ learner.net.head.weight.T)[:, SEEN].argmax(dim=1)
    assert not torch.equal(torch.tensor(SEEN)[by_products], expected), "or this test could not tell them apart"


@pytest.mark.parametrize("head", HEADS)
def test_three_tasks_are_learned_step_by_step_as_written_out(head: str) -> None:
    learner, net = ace(lr=0.2, memory=1000, replay=1000, head=head), plain_net(10, N)
    scores = HEADS[head]
    past: list[Batch] = []
    seen: set[int] = set()
    for task in TASKS:
        learner.begin_task(task)
        seen |= set(task.classes)
        for batch in task_batches(task):
            loss = entropy(scores(net, batch.x / 255), batch.y, sorted(set(batch.y.tolist())))
            if past:
                old = joined(*past)
                loss = united(loss, entropy(scores(net, old.x / 255), old.y, sorted(seen)), (5, len(old)), "mean")
            descend([p for name, p in net.named_parameters() if head == "linear" or name != "head.bias"], loss, 0.2)
            past.append(batch)
            assert learner.observe(batch).item() == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)
    ours = copied(learner.net)
    assert_close(ours, {name: value for name, value in copied(net).items() if name in ours}, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_a_grown_learner_goes_on_by_the_same_rule(head: str) -> None:
    learner = in_second_task(memory=50, replay=50, head=head)
    learner.grow(10)
    learner.begin_task(Task(2, (9, 8)))
    batch = labelled([9, 8, 9, 0], seed=60)
    stored = everything(learner)
    new = entropy(HEADS[head](learner.net, batch.x / 255), batch.y, [0, 8, 9])
    old = entropy(HEADS[head](learner.net, stored.x / 255), stored.y, [*SEEN, 8, 9])
    before = learner.net.head.weight.detach().clone()
    expected = united(new, old, (4, len(stored)), "mean").item()
    assert learner.observe(batch).item() == pytest.approx(expected, rel=1e-5)
    assert (learner.net.head.weight.detach() != before)[[8, 9]].any(dim=1).all()
