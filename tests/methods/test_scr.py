"""SCR: a contrastive loss over new and replayed views, and the nearest mean of what the memory holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import (
    assert_close,
    assert_same_bits,
    cloned,
    copied,
    everything,
    hidden_layer,
    joined,
    make,
    norm_layer,
    normed_net,
    plain_net,
    rng,
    some_batch,
    some_images,
)
from method_helpers import descended, inputs_of, into_second_task, parameters_of
from onepass.learner.batch import Batch, Task
from onepass.learner.losses import supcon
from onepass.learner.net import Net
from onepass.methods.scr import SCR

D = 8
OLD, NEW = (1, 4), (0, 5)


def scr(net: Net | None = None, **settings: Any) -> SCR:
    return make(SCR, plain_net(D, 6) if net is None else net, **{"memory": 40, **settings})


def in_second_task(net: Net | None = None, **settings: Any) -> SCR:
    return into_second_task(scr(net, **settings), OLD, NEW)


def by_loops(vectors: Tensor, labels: Sequence[int], temperature: float) -> Tensor:
    """Every anchor against every positive and every other, one pair at a time."""
    n, total = len(vectors), vectors.new_zeros(())
    for a in range(n):
        likeness = {b: vectors[a] @ vectors[b] / temperature for b in range(n) if b != a}
        rest = torch.stack(list(likeness.values())).logsumexp(0)
        positives = [b for b in likeness if labels[b] == labels[a]]
        total = total - sum(likeness[b] - rest for b in positives) / len(positives)
    return total / n


def unit_rows(n: int, width: int = 5, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(n, width, dtype=torch.float64, generator=rng(seed)))


def parameters(learner: SCR) -> dict[str, Tensor]:
    return parameters_of(body=learner.net.body, project=learner.project)


def slopes(learner: SCR, loss: Tensor) -> dict[str, Tensor]:
    named = parameters(learner)
    return dict(zip(named, torch.autograd.grad(loss, list(named.values()), retain_graph=True), strict=True))


# The loss function.


@pytest.mark.parametrize("temperature", [0.07, 0.5, 2.0])
def test_supcon_equals_a_double_loop_in_value_and_gradient(temperature: float) -> None:
    """Classes of two, three and five rows, so that a mean over all positive pairs is another number."""
    labels = [3, 0, 3, 7, 0, 3, 7, 7, 7, 7]
    vectors = unit_rows(10).requires_grad_()
    expected = by_loops(vectors, labels, temperature)
    loss = supcon(vectors, torch.tensor(labels), temperature)
    assert loss.shape == ()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(value, vectors)[0] for value in (loss, expected)))


def test_supcon_of_labels_that_all_differ_is_nt_xent() -> None:
    """Each row must find its other view among all the others: a cross-entropy."""
    n, tau = 5, 0.3
    vectors = unit_rows(2 * n)
    likeness = vectors @ vectors.T / tau
    rows = [
        F.cross_entropy(torch.cat([likeness[i, :i], likeness[i, i + 1 :]])[None], torch.tensor([j - (j > i)]))
        for i, j in ((i, (i + n) % (2 * n)) for i in range(2 * n))
    ]
    loss = supcon(vectors, torch.tensor([9, 2, 5, 0, 1]).repeat(2), tau)
    torch.testing.assert_close(loss, torch.stack(rows).mean())


def test_supcon_of_equal_rows_of_one_class_is_the_log_of_the_others() -> None:
    loss = supcon(unit_rows(1).expand(6, -1), torch.zeros(6, dtype=torch.int64), 0.1)
    assert loss.item() == pytest.approx(math.log(5))


def test_supcon_neither_knows_the_order_of_rows_nor_the_names_of_classes() -> None:
    vectors, labels, order = unit_rows(10), torch.tensor([0, 1, 2, 1, 0] * 2), torch.randperm(10, generator=rng(4))
    loss = supcon(vectors, labels, 0.1)
    torch.testing.assert_close(supcon(vectors[order], labels[order], 0.1), loss)
    torch.testing.assert_close(supcon(vectors, torch.tensor([50, 3, 20])[labels], 0.1), loss)


def test_supcon_stays_a_number_where_exponentials_overflow() -> None:
    labels = [0, 1, 2, 1, 0] * 2
    vectors = unit_rows(10).float().requires_grad_()
    loss = supcon(vectors, torch.tensor(labels), 0.002)  # exp(500) is no float32
    torch.testing.assert_close(loss.double(), by_loops(vectors.double(), labels, 0.002), rtol=1e-5, atol=1e-5)
    assert torch.autograd.grad(loss, vectors)[0].isfinite().all()


# The loss of a step.


def test_the_projection_has_a_hidden_layer_as_wide_as_the_features_and_128_outputs() -> None:
    linear = [m for m in scr().project.modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(D, D), (D, 128)]
    assert sum(isinstance(m, nn.ReLU) for m in scr().project.modules()) == 1


def test_the_default_temperature_is_a_tenth() -> None:
    assert SCR.Config().temperature == 0.1


def test_a_step_trains_the_body_and_the_projection_and_nothing_else() -> None:
    learner = scr()
    assert {id(p) for p in learner.trainable()} == {id(p) for p in parameters(learner).values()}


@pytest.mark.parametrize("views", ["none", "digits"])
@pytest.mark.parametrize("temperature", [0.1, 0.7])
def test_the_loss_is_that_of_a_pass_of_originals_and_a_pass_of_views(views: str, temperature: float) -> None:
    """New and replayed images share a pass, originals and views do not: batch-norm tells."""
    learner, twin = scr(normed_net(D, 6), augment=views, temperature=temperature), normed_net(D, 6)
    learner.begin_task(Task(0, tuple(range(6))))
    batch, replay = some_batch(4, NEW), some_batch(3, OLD, seed=1)
    both = joined(replay, batch)
    with inputs_of(learner.net.body) as passes:
        loss = learner.loss(batch, replay)
    assert len(passes) == 2
    torch.testing.assert_close(passes[0], both.x / 255)
    assert passes[1].shape == passes[0].shape
    changed = (passes[1] != passes[0]).flatten(1).any(dim=1)
    assert changed.any() == (views != "none")
    vectors = torch.cat([F.normalize(learner.project(twin.body(x))) for x in passes])
    expected = by_loops(vectors, both.y.tolist() * 2, temperature)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    assert_close(copied(learner.net), copied(twin))  # the running statistics, moved twice


def test_the_gradient_reaches_body_and_projection_as_through_the_double_loop() -> None:
    learner = scr()
    learner.begin_task(Task(0, tuple(range(6))))
    batch, replay = some_batch(4, NEW), some_batch(3, OLD, seed=1)
    both = joined(replay, batch)
    vectors = F.normalize(learner.project(learner.net.body(both.x / 255))).repeat(2, 1)
    expected = by_loops(vectors, both.y.tolist() * 2, 0.1)
    loss = learner.loss(batch, replay)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    ours, theirs = slopes(learner, loss), slopes(learner, expected)
    assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    assert all(slope.abs().sum() > 0 for slope in theirs.values())


def test_a_longer_output_of_the_projection_changes_nothing() -> None:
    learner = scr()
    learner.begin_task(Task(0, tuple(range(6))))
    batch, replay = some_batch(4, NEW), some_batch(3, OLD, seed=1)
    before = learner.loss(batch, replay)
    last = [m for m in learner.project.modules() if isinstance(m, nn.Linear)][-1]
    with torch.no_grad():
        last.weight.mul_(7)
        last.bias.mul_(7)
    torch.testing.assert_close(learner.loss(batch, replay), before, rtol=1e-4, atol=1e-5)


def test_a_step_is_a_hand_written_gradient_step_and_the_head_stays() -> None:
    learner = scr(lr=0.3, replay=50)  # replays all it has, so what it replays is known
    learner.begin_task(Task(0, tuple(range(6))))
    first, second = some_batch(4, OLD), some_batch(3, NEW, seed=1)
    learner.observe(first)
    head = copied(learner.net.head)
    both = joined(first, second)
    vectors = F.normalize(learner.project(learner.net.body(both.x / 255))).repeat(2, 1)
    expected = by_loops(vectors, both.y.tolist() * 2, 0.1)
    moved = descended(parameters(learner), expected, 0.3)
    assert learner.observe(second).item() == pytest.approx(expected.item(), rel=1e-4)
    assert_close(cloned(parameters(learner)), moved, rtol=1e-3, atol=1e-5)
    assert_same_bits(copied(learner.net.head), head)


def test_the_first_batch_is_stored_and_not_learned() -> None:
    learner = scr(normed_net(D, 6), augment="digits")
    learner.begin_task(Task(0, OLD))
    before = copied(learner.net), copied(learner.project)
    batch = some_batch(5, OLD)
    assert learner.observe(batch).item() == 0
    assert_same_bits(copied(learner.net), before[0])
    assert_same_bits(copied(learner.project), before[1])
    assert torch.equal(learner.memory.field("x")[:5], batch.x)
    assert learner.memory.field("y")[:5].tolist() == batch.y.tolist()
    assert learner.steps == 1
    assert learner.observe(some_batch(5, OLD, seed=1)).item() > 0
    assert not torch.equal(hidden_layer(learner.net).weight, before[0]["body.1.weight"])
    assert any(not torch.equal(value, before[1][name]) for name, value in copied(learner.project).items())


# Prediction: the nearest class mean.


def filled(net: Net, stored: Batch, memory: int | None = None) -> SCR:
    learner = scr(net, memory=memory or len(stored))
    learner.begin_task(Task(0, tuple(range(6))))
    learner.memory.write(torch.arange(len(stored)), stored)
    return learner


def rough_net(seed: int = 0) -> Net:
    """Batch-norm whose running statistics are far from any batch's, and features of very different lengths."""
    net = normed_net(D, 6, seed)
    norm = norm_layer(net)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    with torch.no_grad():
        norm.running_mean.copy_(torch.randn(D, generator=rng(seed)) / 4)
        norm.running_var.copy_(0.05 + torch.rand(D, generator=rng(seed + 1)) / 4)
        norm.weight.copy_(0.1 + 2 * torch.rand(D, generator=rng(seed + 2)))
    return net


def nearest(
    net: Net, stored: Batch, images: Tensor, *, unit_features: bool = True, unit_means: bool = True
) -> list[int]:
    """One image, one class, one stored sample at a time."""

    def feature(image: Tensor) -> Tensor:
        value = net.body(image[None] / 255)[0].double()
        return F.normalize(value, dim=0) if unit_features else value

    was, best = net.training, []
    net.eval()
    with torch.no_grad():
        means = {}
        for c in sorted(set(stored.y.tolist())):
            mine = [feature(image) for image, y in zip(stored.x, stored.y.tolist(), strict=True) if y == c]
            mean = torch.stack(mine).mean(dim=0)
            means[c] = F.normalize(mean, dim=0) if unit_means else mean
        for image in images:
            f = feature(image)
            best.append(min(means, key=lambda c: float(((f - means[c]) ** 2).sum())))
    net.train(was)
    return best


def test_predictions_are_those_of_the_nearest_mean_of_normalised_features() -> None:
    stored, images = some_batch(30, range(6), seed=5), some_images(80, seed=6)
    learner = filled(rough_net(), stored)
    expected = nearest(learner.net, stored, images)
    assert learner.predict(images).tolist() == expected
    for plausible in ({"unit_features": False}, {"unit_means": False}):  # so that this test can tell them apart
        assert nearest(learner.net, stored, images, **plausible) != expected


def test_a_mean_over_a_memory_larger_than_a_chunk_weighs_every_sample_alike() -> None:
    stored = some_batch(700, range(6), seed=5)
    stored = stored[torch.cat([torch.arange(500), 500 + stored.y[500:].argsort()])]
    images = some_images(40, seed=6)
    learner = filled(rough_net(3), stored)
    learner.net.eval()
    with torch.no_grad():
        f = F.normalize(learner.net.body(stored.x / 255).double())
        means = F.normalize(torch.stack([f[stored.y == c].mean(dim=0) for c in range(6)]))
        expected = torch.cdist(F.normalize(learner.net.body(images / 255).double()), means).argmin(dim=1)
        scores = learner.scorer()(images / 255)
    assert scores.shape == (40, 6)
    assert torch.equal(scores.argmax(dim=1), expected)
    learner.train()
    assert torch.equal(learner.predict(images), expected)


def test_scores_fall_with_the_distance() -> None:
    stored, images = some_batch(30, range(6), seed=5), some_images(20, seed=6)
    learner = filled(rough_net(), stored).eval()
    with torch.no_grad():
        f = F.normalize(learner.net.body(stored.x / 255))
        means = F.normalize(torch.stack([f[stored.y == c].mean(dim=0) for c in range(6)]))
        distance = torch.cdist(F.normalize(learner.net.body(images / 255)), means)
        assert torch.equal(learner.scorer()(images / 255).argsort(dim=1, descending=True), distance.argsort(dim=1))


def test_slots_that_nobody_wrote_belong_to_no_class() -> None:
    stored, images = some_batch(20, (1, 2, 4), seed=5), some_images(60, seed=6)
    learner = filled(rough_net(), stored, memory=50)
    learner.memory.field("x")[20:] = some_images(30, seed=9)
    learner.memory.field("y")[20:] = torch.arange(30) % 6
    assert learner.predict(images).tolist() == nearest(learner.net, stored, images)


def test_the_projection_and_the_head_have_no_say_in_predictions() -> None:
    learner, images = filled(rough_net(), some_batch(30, range(6), seed=5)), some_images(80, seed=6)
    before = learner.predict(images)
    with torch.no_grad():
        for parameter in (*learner.project.parameters(), *learner.net.head.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=rng(8)))
    assert torch.equal(learner.predict(images), before)
    with torch.no_grad():
        hidden_layer(learner.net).weight.mul_(-1)
    assert not torch.equal(learner.predict(images), before)


def test_means_are_computed_once_for_each_evaluation_and_afresh_for_the_next() -> None:
    stored, images = some_batch(30, range(6), seed=5), some_images(80, seed=6)
    learner = filled(rough_net(), stored)
    with inputs_of(learner.net.body) as passes, learner.predicting() as predict:
        first = [predict(images[:50]), predict(images[50:])]
    assert sum(map(len, passes)) == 30 + 80
    assert torch.equal(torch.cat(first), learner.predict(images))
    other = Batch(255 - stored.x, (stored.y + 1) % 6)
    learner.memory.write(torch.arange(30), other)
    assert learner.predict(images).tolist() == nearest(learner.net, other, images)


def test_a_class_that_the_memory_has_lost_is_never_predicted() -> None:
    learner, images = filled(rough_net(), some_batch(30, range(6), seed=5)), some_images(200, seed=6)
    assert set(learner.predict(images).tolist()) == set(range(6))
    labels = learner.memory.field("y")
    lost = labels == 3
    learner.memory.write(lost.nonzero().flatten(), some_batch(int(lost.sum()), (5,), seed=7))
    assert set(learner.predict(images).tolist()) == {0, 1, 2, 4, 5}
    learner.eval()
    with torch.no_grad():
        scores = learner.scorer()(images / 255)
    assert (scores[:, 3] == -math.inf).all()
    assert scores[:, [0, 1, 2, 4, 5]].isfinite().all()


def test_with_nothing_stored_a_prediction_is_still_some_class_that_was_seen() -> None:
    learner = scr()
    learner.begin_task(Task(0, (2, 4)))
    assert set(learner.predict(some_images(9)).tolist()) <= {2, 4}


def test_features_that_are_all_zero_are_no_nan() -> None:
    net = plain_net(D, 6)
    with torch.no_grad():
        hidden_layer(net).bias.fill_(-1000)
    learner = filled(net, some_batch(12, range(6)), memory=40)
    assert learner.observe(some_batch(4, NEW)).isfinite()
    learner.eval()
    with torch.no_grad():
        assert learner.scorer()(some_images(5) / 255).isfinite().all()


# Streams that are not the textbook's.


def test_learning_goes_on_with_classes_that_a_grown_learner_has_room_for() -> None:
    learner = in_second_task()
    learner.grow(9)
    learner.begin_task(Task(2, (8, 7)))
    before = copied(learner.project)
    for seed in range(4):
        assert learner.observe(some_batch(6, (8, 7), seed)).isfinite()
    assert any(not torch.equal(value, before[name]) for name, value in copied(learner.project).items())
    stored = everything(learner)
    images = some_images(100, seed=6)
    assert learner.predict(images).tolist() == nearest(learner.net, stored, images)
    assert {7, 8} <= set(learner.predict(images).tolist())
