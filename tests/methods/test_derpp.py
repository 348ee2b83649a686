"""DER++: what the network answered when it first saw a sample is stored with it, and replayed beside the label."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import (
    assert_close,
    assert_finite,
    assert_same_bits,
    copied,
    everything,
    gradients,
    make,
    no_replay,
    normed_net,
    observe_all,
    passes_counted,
    plain_net,
    rng,
    some_batch,
)
from method_helpers import descend, entropy, inputs_of, into_second_task
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net
from onepass.methods.derpp import DERPP
from onepass.methods.er import ER
from onepass.methods.finetune import FineTune

D, C = 8, 6
OLD, NEW = (1, 4), (0, 5)
SEEN = (0, 1, 4, 5)


def derpp(net: Net | None = None, **settings: Any) -> DERPP:
    return make(DERPP, plain_net(D, C) if net is None else net, **{"memory": 40, **settings})


def in_second_task(net: Net | None = None, **settings: Any) -> DERPP:
    """Twelve samples of the first task are stored, with what the network then answered."""
    return into_second_task(derpp(net, **settings), OLD, NEW)


def distance(logits: Tensor, stored: Tensor) -> Tensor:
    """The mean over rows and classes of squared differences; what was not stored counts as no difference."""
    total = logits.new_zeros(())
    for row, then in zip(logits, stored.tolist(), strict=True):
        for value, target in zip(row, then, strict=True):
            if target == target:
                total = total + (value - target) ** 2
    return total / logits.numel()


def key(image: Tensor) -> bytes:
    """An image as something to look up by."""
    return (image * 255 if image.is_floating_point() else image).round().to(torch.uint8).numpy().tobytes()


# The loss.


def test_the_defaults_are_the_recommended_ones() -> None:
    config = DERPP.Config()
    assert (config.alpha, config.beta, config.draws) == (0.2, 0.5, "two")


@pytest.mark.parametrize("scope", ["seen", "all"])
@pytest.mark.parametrize(("alpha", "beta"), [(0.2, 0.5), (3.0, 0.1), (1.0, 0.0), (0.0, 2.0)])
def test_with_two_draws_logits_are_matched_on_one_and_labels_learned_on_the_other(
    alpha: float, beta: float, scope: str
) -> None:
    """The second draw is all of the memory here, so it is known. The labels' softmax has a scope, the logits none."""
    learner = in_second_task(alpha=alpha, beta=beta, scope=scope, replay=50)
    classes = SEEN if scope == "seen" else range(C)
    batch, a = some_batch(5, NEW), learner.memory.read(torch.tensor([7, 2, 9]))
    b = learner.memory.read(torch.arange(12))
    net = learner.net
    expected = entropy(net(batch.x / 255), batch.y.tolist(), classes)
    expected = expected + alpha * distance(net(a.x / 255), learner.memory.field("logits")[[7, 2, 9]])
    expected = expected + beta * entropy(net(b.x / 255), b.y.tolist(), classes)
    loss = learner.loss(batch, a)
    torch.testing.assert_close(loss, expected)
    assert_close(gradients(learner, loss), gradients(learner, expected), rtol=1e-4, atol=1e-6)


def test_with_one_draw_both_terms_are_of_what_was_retrieved() -> None:
    learner = in_second_task(alpha=0.7, beta=0.4, draws="one", replay=50)
    batch, a = some_batch(5, NEW), learner.memory.read(torch.tensor([7, 2, 9]))
    net = learner.net
    expected = entropy(net(batch.x / 255), batch.y.tolist(), SEEN) + 0.7 * distance(net(a.x / 255), a.extra["logits"])
    expected = expected + 0.4 * entropy(net(a.x / 255), a.y.tolist(), SEEN)
    loss = learner.loss(batch, a)
    torch.testing.assert_close(loss, expected)
    assert_close(gradients(learner, loss), gradients(learner, expected), rtol=1e-4, atol=1e-6)


def test_logits_of_classes_that_nobody_has_seen_are_matched_too() -> None:
    learner = in_second_task(alpha=1.0, beta=0.0)
    a = learner.memory.read(torch.tensor([0, 1]))
    batch = some_batch(5, NEW)
    before = learner.loss(batch, a)
    with torch.no_grad():
        learner.net.head.bias[3] += 2.0
    difference = learner.net(a.x / 255)[:, 3] - a.extra["logits"][:, 3]
    added = ((difference**2) - (difference - 2) ** 2).sum() / (2 * C)
    torch.testing.assert_close(learner.loss(batch, a) - before, added)


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({}, [5, 4, 4]),
        ({"alpha": 0.0}, [5, 4]),
        ({"beta": 0.0}, [5, 4]),
        ({"alpha": 0.0, "beta": 0.0}, [5]),
        ({"draws": "one"}, [5, 4]),
        ({"draws": "one", "alpha": 0.0}, [5, 4]),
        ({"draws": "one", "beta": 0.0}, [5, 4]),
    ],
)
def test_every_term_has_its_own_pass_and_a_term_without_weight_has_none(
    settings: dict[str, Any], rows: list[int]
) -> None:
    learner = in_second_task(normed_net(D, C), replay=4, **settings)
    moved = passes_counted(learner.net)
    with inputs_of(learner.net.body) as passes:
        learner.observe(some_batch(5, NEW))
    assert [len(x) for x in passes] == rows
    assert passes_counted(learner.net) - moved == len(rows)


@pytest.mark.parametrize("draws", ["two", "one"])
def test_a_step_with_views_and_batch_norm_is_the_sum_of_its_passes(draws: str) -> None:
    """New, A and B are normalised apart; each stored answer belongs to an image and to its view."""
    learner = in_second_task(normed_net(D, C), augment="digits", replay=4, draws=draws, alpha=0.7, beta=0.4)
    apart = 0
    for seed in range(5):
        batch, twin = some_batch(5, NEW, seed), copy.deepcopy(learner.net)
        stored = everything(learner)
        slot = {key(image): i for i, image in enumerate(stored.x)}
        with inputs_of(learner.net.body) as passes:
            loss = learner.observe(batch)
        assert [len(x) for x in passes] == ([10, 8, 8] if draws == "two" else [10, 8])
        assert torch.equal(passes[0][:5], batch.x / 255)
        a, b = ([slot[key(image)] for image in x[:4]] for x in (passes[1], passes[-1]))
        assert len(set(a)) == len(set(b)) == 4
        apart += set(a) != set(b)
        outputs = [twin(x) for x in passes]
        expected = entropy(outputs[0], batch.y.tolist() * 2, SEEN)
        expected = expected + 0.7 * distance(outputs[1], stored.extra["logits"][a + a])
        expected = expected + 0.4 * entropy(outputs[-1], stored.y[b + b].tolist(), SEEN)
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-4, atol=1e-5)
        statistics = {name: value for name, value in copied(twin).items() if "running" in name}
        assert_close({name: copied(learner.net)[name] for name in statistics}, statistics)
    assert apart >= (3 if draws == "two" else 0)
    assert draws == "two" or not apart


def test_an_empty_memory_leaves_the_loss_of_the_new_batch() -> None:
    learner = derpp()
    learner.begin_task(Task(0, OLD))
    batch = some_batch(5, OLD)
    expected = entropy(learner.net(batch.x / 255), batch.y.tolist(), OLD)
    torch.testing.assert_close(learner.loss(batch, no_replay(learner)), expected)
    torch.testing.assert_close(learner.observe(batch), expected.detach())


# What it becomes when a weight is zero.


def test_without_both_terms_it_is_fine_tuning_step_by_step() -> None:
    ours, theirs = derpp(normed_net(D, C), alpha=0.0, beta=0.0, lr=0.2), make(FineTune, normed_net(D, C), lr=0.2)
    for learner in (ours, theirs):
        learner.begin_task(Task(0, SEEN))
    for seed in range(6):
        batch = some_batch(5, SEEN, seed)
        losses = [learner.observe(batch) for learner in (ours, theirs)]
        assert torch.equal(*losses)
        assert_same_bits(copied(ours.net), copied(theirs.net))


@pytest.mark.parametrize("views", ["none", "digits"])
def test_with_one_draw_and_labels_alone_it_is_er_with_the_sum(views: str) -> None:
    settings: dict[str, Any] = {"lr": 0.2, "replay": 4, "memory": 12, "augment": views}
    ours = derpp(normed_net(D, C), alpha=0.0, beta=1.0, draws="one", **settings)
    theirs = make(ER, normed_net(D, C), combine="sum", forward="separate", **settings)
    for learner in (ours, theirs):
        learner.begin_task(Task(0, SEEN))
    for seed in range(8):
        batch = some_batch(5, SEEN, seed)
        losses = [learner.observe(batch) for learner in (ours, theirs)]
        torch.testing.assert_close(*losses)
        assert_close(copied(ours.net), copied(theirs.net), rtol=1e-4, atol=1e-6)


# What is stored.


def test_every_slot_holds_the_training_logits_of_exactly_its_image() -> None:
    """Those of the original rows, before the step, normalised by the batch and its views."""
    learner = derpp(normed_net(D, C), augment="digits", memory=7, replay=3, lr=0.5)
    learner.begin_task(Task(0, SEEN))
    recorded: dict[bytes, tuple[int, Tensor]] = {}
    wrong: dict[str, dict[bytes, Tensor]] = {"views": {}, "eval": {}, "after": {}}
    for seed in range(12):
        batch, twin = some_batch(5, SEEN, seed), copy.deepcopy(learner.net)
        with inputs_of(learner.net.body) as passes:
            learner.observe(batch)
        with torch.no_grad():
            answers, after = twin(passes[0]), copy.deepcopy(learner.net)(passes[0])
            evaluated = copy.deepcopy(twin).eval()(passes[0])
        for i, image in enumerate(batch.x):
            recorded[key(image)] = int(batch.y[i]), answers[i]
            for name, rows in (("views", answers[5:]), ("eval", evaluated), ("after", after)):
                wrong[name][key(image)] = rows[i]
    memory = learner.memory
    assert len(memory) == 7
    found = [key(image) for image in memory.field("x")]
    assert memory.field("y").tolist() == [recorded[k][0] for k in found]
    torch.testing.assert_close(memory.field("logits"), torch.stack([recorded[k][1] for k in found]))
    for other in wrong.values():  # so that this test can tell them apart
        assert (memory.field("logits") - torch.stack([other[k] for k in found])).abs().min(dim=0).values.max() > 1e-3


def test_stored_logits_are_as_wide_as_the_head_and_keep_no_graph() -> None:
    learner = in_second_task()
    field = learner.memory.field("logits")
    assert (field.shape, field.dtype, field.requires_grad) == ((40, C), torch.float32, False)
    assert field[:12].isfinite().all()
    before = field[:12].clone()
    observe_all(learner, [some_batch(4, NEW, seed) for seed in range(3)])
    assert torch.equal(learner.memory.field("logits")[:12], before)  # never refreshed


def test_nothing_happens_at_task_boundaries() -> None:
    learner = in_second_task()
    before = copied(learner.net), learner.memory.field("logits")[:12].clone()
    learner.end_task()
    learner.begin_task(Task(2, (2, 3)))
    assert_same_bits(copied(learner.net), before[0])
    assert torch.equal(learner.memory.field("logits")[:12], before[1])


# The whole.


def test_ten_steps_are_those_of_the_algorithm_written_by_hand() -> None:
    """Everything is stored and everything replayed, by hand-made SGD; a task begins on the way."""
    learner, net = derpp(lr=0.2, memory=100, replay=100, alpha=0.6, beta=0.8), plain_net(D, C)
    past: list[tuple[Batch, Tensor]] = []
    seen: list[int] = []
    for task in (Task(0, OLD), Task(1, NEW)):
        learner.begin_task(task)
        seen = sorted([*seen, *task.classes])
        for step in range(5):
            batch = some_batch(3, task.classes, 10 * task.index + step)
            answers = net(batch.x / 255)
            loss = entropy(answers, batch.y.tolist(), seen)
            if past:
                logits = net(torch.cat([b.x for b, _ in past]) / 255)
                loss = loss + 0.6 * ((logits - torch.cat([rows for _, rows in past])) ** 2).mean()
                loss = loss + 0.8 * entropy(logits, torch.cat([b.y for b, _ in past]).tolist(), seen)
            past.append((batch, answers.detach()))
            descend(net.parameters(), loss, 0.2)
            assert learner.observe(batch).item() == pytest.approx(loss.item(), rel=1e-4)
    assert_close(copied(learner.net), copied(net), rtol=1e-3, atol=1e-5)


# More classes.


@pytest.mark.parametrize("draws", ["two", "one"])
def test_columns_that_did_not_exist_then_count_as_no_error(draws: str) -> None:
    """They still count: the mean is over all rows and classes."""
    learner = in_second_task(draws=draws, alpha=0.9, beta=0.0)
    then = learner.memory.field("logits")[:12].clone()
    learner.grow(C + 3)
    with torch.no_grad():
        learner.net.head.weight += torch.randn(C + 3, D, generator=rng(3))
    field = learner.memory.field("logits")
    assert field.shape == (40, C + 3)
    assert torch.equal(field[:12, :C], then)
    assert field[:12, C:].isnan().all()
    batch, a = some_batch(5, NEW), learner.memory.read(torch.tensor([7, 2, 9]))
    now = learner.net(a.x / 255)
    expected = entropy(learner.net(batch.x / 255), batch.y.tolist(), SEEN)
    expected = expected + 0.9 * ((now[:, :C] - then[[7, 2, 9]]) ** 2).sum() / (3 * (C + 3))
    loss = learner.loss(batch, a)
    torch.testing.assert_close(loss, expected)
    found = gradients(learner, loss)
    assert_close(found, gradients(learner, expected), rtol=1e-4, atol=1e-6)
    assert all(slope.isfinite().all() for slope in found.values())


def test_learning_goes_on_with_classes_that_a_grown_learner_has_room_for() -> None:
    learner = in_second_task(normed_net(D, C), augment="digits", replay=6)
    learner.grow(C + 3)
    learner.begin_task(Task(2, (8, 7)))
    for seed in range(5):
        assert learner.observe(some_batch(4, (8, 7), seed)).isfinite()
    stored = learner.memory.field("logits")[: len(learner.memory)]
    assert stored[:12, C:].isnan().all()
    assert stored[:12, :C].isfinite().all()
    assert stored[12:].isfinite().all()
    assert_finite(learner.net)
    assert {7, 8} & set(learner.predict(some_batch(4, (8, 7), 0).x).tolist())
