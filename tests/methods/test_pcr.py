"""PCR: every sample against the proxies of the samples beside it, by cosine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import (
    assert_close,
    assert_finite,
    assert_same_bits,
    copied,
    gradients,
    hidden_layer,
    joined,
    make,
    normed_net,
    observe_all,
    pixel_net,
    plain_net,
    rng,
    some_batch,
    some_images,
)
from method_helpers import descend, inputs_of, into_second_task
from onepass.learner.batch import Batch, Task
from onepass.learner.losses import proxy_contrast
from onepass.learner.net import Net
from onepass.methods.pcr import PCR

D, TAU = 8, 0.09
OLD, NEW = (1, 4), (0, 5)
NEAR: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}  # norms may have 1e-6 added to them


def pcr(net: Net | None = None, **settings: Any) -> PCR:
    return make(PCR, plain_net(D, 6) if net is None else net, **{"memory": 40, **settings})


def begun(net: Net | None = None, **settings: Any) -> PCR:
    learner = pcr(net, **settings)
    learner.begin_task(Task(0, tuple(range(6))))
    return learner


def in_second_task(net: Net | None = None, **settings: Any) -> PCR:
    return into_second_task(pcr(net, **settings), OLD, NEW)


def by_loops(features: Tensor, proxies: Tensor, labels: Sequence[int], temperature: float) -> Tensor:
    """One pair of samples at a time: the denominator runs over samples, so frequent classes count often."""
    total = features.new_zeros(())
    for z, label in zip(features, labels, strict=True):
        cosines = [z @ proxies[other] / (z.norm() * proxies[other].norm()) for other in labels]
        own = z @ proxies[label] / (z.norm() * proxies[label].norm())
        total = total - own / temperature + torch.stack(cosines).div(temperature).logsumexp(0)
    return total / len(labels)


def double(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=rng(seed))


LABELS = [3, 0, 3, 2, 0, 3, 2, 2, 2, 2]  # three, two and five of a class; 1, 4 and 5 are absent


# The loss function.


@pytest.mark.parametrize("temperature", [0.09, 0.5, 2.0])
def test_the_loss_equals_a_double_loop_in_value_and_gradient(temperature: float) -> None:
    features, proxies = double(10, D).requires_grad_(), double(6, D, seed=1).requires_grad_()
    expected = by_loops(features, proxies, LABELS, temperature)
    loss = proxy_contrast(features, proxies, torch.tensor(LABELS), temperature)
    assert loss.shape == ()
    torch.testing.assert_close(loss, expected, **NEAR)
    ours, theirs = (torch.autograd.grad(value, (features, proxies)) for value in (loss, expected))
    torch.testing.assert_close(ours, theirs, **NEAR)
    assert theirs[1][[0, 2, 3]].abs().min() > 1e-4


def test_the_gradient_is_that_of_a_cross_entropy_with_the_log_of_the_counts_added() -> None:
    """Over the classes of the batch; the values differ by the mean log count."""
    features, proxies, y = double(10, D).requires_grad_(), double(6, D, seed=1).requires_grad_(), torch.tensor(LABELS)
    classes, position, counts = y.unique(return_inverse=True, return_counts=True)
    cosine = F.normalize(features) @ F.normalize(proxies[classes]).T
    expected = F.cross_entropy(cosine / TAU + counts.log(), position)
    loss = proxy_contrast(features, proxies, y, TAU)
    torch.testing.assert_close(loss, expected + counts[position].log().double().mean(), **NEAR)
    ours, theirs = (torch.autograd.grad(value, (features, proxies)) for value in (loss, expected))
    torch.testing.assert_close(ours, theirs, **NEAR)


def test_proxies_of_absent_classes_have_exactly_no_gradient_and_no_say() -> None:
    features, proxies, y = double(10, D), double(6, D, seed=1).requires_grad_(), torch.tensor(LABELS)
    loss = proxy_contrast(features, proxies, y, TAU)
    [slope] = torch.autograd.grad(loss, proxies)
    assert (slope.abs().sum(dim=1) > 0).nonzero().flatten().tolist() == [0, 2, 3]
    other = proxies.detach().clone()
    other[[1, 4, 5]] = 50.0
    assert torch.equal(proxy_contrast(features, other, y, TAU), loss.detach())


def test_lengths_of_features_and_proxies_do_not_matter() -> None:
    features, proxies, y = double(10, D), double(6, D, seed=1), torch.tensor(LABELS)
    loss = proxy_contrast(features, proxies, y, TAU)
    longer = proxy_contrast(features * torch.arange(1.0, 11)[:, None], proxies, y, TAU)
    torch.testing.assert_close(longer, loss, **NEAR)
    longer = proxy_contrast(features, proxies * torch.arange(1.0, 7)[:, None], y, TAU)
    torch.testing.assert_close(longer, loss, **NEAR)


def test_one_class_alone_gives_the_log_of_the_count_and_no_gradient() -> None:
    features, proxies = double(7, D).requires_grad_(), double(6, D, seed=1).requires_grad_()
    loss = proxy_contrast(features, proxies, torch.full((7,), 4), TAU)
    assert loss.item() == pytest.approx(math.log(7))
    assert all(slope.abs().max() < 1e-9 for slope in torch.autograd.grad(loss, (features, proxies)))


def test_the_loss_stays_a_number_where_exponentials_overflow() -> None:
    features, proxies = double(10, D), double(6, D, seed=1)
    loss = proxy_contrast(features.float(), proxies.float(), torch.tensor(LABELS), 0.002)  # exp(500) is no float32
    torch.testing.assert_close(loss.double(), by_loops(features, proxies, LABELS, 0.002), rtol=1e-3, atol=1e-3)


# The loss of a step.


def test_the_default_temperature_is_the_published_one() -> None:
    assert (PCR.Config().temperature, PCR.Config().forward) == (0.09, "separate")


def test_the_head_has_no_bias_and_keeps_its_rows() -> None:
    learner = pcr()
    assert learner.net.head.bias is None
    assert torch.equal(learner.net.head.weight, plain_net(D, 6).head.weight)


@pytest.mark.parametrize("scope", ["seen", "all"])
@pytest.mark.parametrize("forward", ["separate", "joint"])
@pytest.mark.parametrize("sizes", [(5, 3), (2, 6)])
def test_new_and_replayed_samples_are_rows_of_one_contrast(forward: str, sizes: tuple[int, int], scope: str) -> None:
    """Each row meets the proxies of both batches, and all rows weigh the same."""
    learner = begun(forward=forward, scope=scope, temperature=0.3)
    batch, replay = some_batch(sizes[0], NEW), some_batch(sizes[1], (*OLD, 5), seed=1)
    features = learner.net.body(torch.cat([batch.x, replay.x]) / 255)
    expected = by_loops(features, learner.net.head.weight, batch.y.tolist() + replay.y.tolist(), 0.3)
    loss = learner.loss(batch, replay)
    torch.testing.assert_close(loss, expected, **NEAR)
    assert_close(gradients(learner, loss), gradients(learner, expected), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("forward", ["separate", "joint"])
def test_new_and_replayed_images_are_normalised_apart_or_together(forward: str) -> None:
    learner, twin = begun(normed_net(D, 6), forward=forward), normed_net(D, 6)
    batch, replay = some_batch(5, NEW), some_batch(3, OLD, seed=1)
    x, z = batch.x / 255, replay.x / 255
    features = twin.body(torch.cat([x, z])) if forward == "joint" else torch.cat([twin.body(x), twin.body(z)])
    expected = by_loops(features, twin.head.weight, batch.y.tolist() + replay.y.tolist(), TAU)
    torch.testing.assert_close(learner.loss(batch, replay), expected, **NEAR)
    # the new batch first: running statistics depend on the order
    assert_same_bits(copied(learner.net.body), copied(twin.body))


def test_views_are_contrasted_beside_their_originals() -> None:
    learner, twin = begun(normed_net(D, 6), augment="digits"), normed_net(D, 6)
    batch, replay = some_batch(5, NEW), some_batch(3, OLD, seed=1)
    with inputs_of(learner.net.body) as passes:
        loss = learner.loss(batch, replay)
    assert [len(x) for x in passes] == [10, 6]
    assert torch.equal(passes[0][:5], batch.x / 255)
    assert torch.equal(passes[1][:3], replay.x / 255)
    assert not torch.equal(passes[0][5:], passes[0][:5])
    labels = batch.y.tolist() * 2 + replay.y.tolist() * 2
    expected = by_loops(torch.cat([twin.body(x) for x in passes]), twin.head.weight, labels, TAU)
    torch.testing.assert_close(loss, expected, **NEAR)


def test_a_step_is_a_hand_written_gradient_step() -> None:
    learner = begun(lr=0.2, replay=50)  # replays all it has, so what it replays is known
    first, second = some_batch(4, OLD), some_batch(3, NEW, seed=1)
    learner.observe(first)
    features = learner.net.body(torch.cat([second.x, first.x]) / 255)
    expected = by_loops(features, learner.net.head.weight, second.y.tolist() + first.y.tolist(), TAU)
    slopes = gradients(learner, expected)
    moved = {name: p.detach() - 0.2 * slopes[name] for name, p in learner.net.named_parameters()}
    assert learner.observe(second).item() == pytest.approx(expected.item(), rel=1e-4)
    assert_close({name: p.detach() for name, p in learner.net.named_parameters()}, moved, rtol=1e-3, atol=1e-5)


def test_a_step_leaves_the_proxies_of_classes_absent_from_it_bit_for_bit() -> None:
    learner = begun()
    learner.observe(some_batch(6, (1, 4)))
    before = copied(learner.net)["head.weight"]
    learner.observe(some_batch(6, (0, 4), seed=1))
    changed = (learner.net.head.weight.detach() != before).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [0, 1, 4]


def test_the_first_batch_is_stored_and_no_parameter_moves() -> None:
    learner = begun(normed_net(D, 6), augment="digits")
    before = {name: p.detach().clone() for name, p in learner.net.named_parameters()}
    batch = some_batch(5, OLD)
    assert learner.observe(batch).item() == 0
    assert_same_bits({name: p.detach() for name, p in learner.net.named_parameters()}, before)
    assert torch.equal(learner.memory.field("x")[:5], batch.x)
    assert learner.memory.field("y")[:5].tolist() == batch.y.tolist()
    assert learner.steps == 1
    assert learner.observe(some_batch(5, NEW, seed=1)).item() > 0
    assert all(not torch.equal(p, before[name]) for name, p in learner.net.named_parameters() if "weight" in name)


# Prediction.


def by_cosine(learner: PCR, images: Tensor, classes: Sequence[int], *, unit: bool = True) -> list[int]:
    best = []
    with torch.no_grad():
        for z in learner.net.body(images / 255):
            score = {}
            for c in classes:
                w = learner.net.head.weight[c]
                score[c] = float(z @ w / (z.norm() * w.norm() if unit else 1))
            best.append(max(score, key=lambda c: score[c]))
    return best


def test_predictions_are_the_seen_proxies_with_the_largest_cosine() -> None:
    """Proxies of classes that were not seen are better for many images, and longer ones for others."""
    learner = in_second_task(plain_net(D, 8))
    with torch.no_grad():
        learner.net.head.weight.copy_(torch.randn(8, D, generator=rng(2)))
        learner.net.head.weight[4] *= 10
    images = some_images(200, seed=6)
    expected = by_cosine(learner, images, (0, 1, 4, 5))
    assert learner.predict(images).tolist() == expected
    assert by_cosine(learner, images, (0, 1, 4, 5), unit=False) != expected
    assert by_cosine(learner, images, range(8)) != expected


def test_predictions_do_not_depend_on_the_length_of_a_proxy() -> None:
    learner, images = begun(), some_images(100, seed=6)
    before = learner.predict(images)
    assert len(set(before.tolist())) > 1
    with torch.no_grad():
        learner.net.head.weight *= torch.tensor([1.0, 30, 0.1, 7, 100, 2])[:, None]
    assert torch.equal(learner.predict(images), before)


def test_predictions_come_from_running_statistics() -> None:
    learner, images = begun(normed_net(D, 6)), some_images(50, seed=6)
    observe_all(learner, [some_batch(8, range(6), seed) for seed in range(5)])
    together = learner.predict(images)
    assert together.tolist() == [int(learner.predict(image[None])) for image in images]
    learner.net.eval()
    assert together.tolist() == by_cosine(learner, images, range(6))


# Streams that are not the textbook's.


def test_features_that_are_all_zero_are_no_nan() -> None:
    net = plain_net(D, 6)
    with torch.no_grad():
        hidden_layer(net).bias.fill_(-1000)
    learner = begun(net)
    learner.observe(some_batch(4, OLD))
    loss = learner.observe(some_batch(4, NEW, seed=1))
    assert loss.item() == pytest.approx(math.log(8))  # all cosines are zero
    assert_finite(learner.net)


def test_a_class_that_the_memory_has_lost_keeps_its_proxy_and_can_be_predicted() -> None:
    learner = in_second_task(pixel_net(6))
    learner.memory.field("y").fill_(OLD[0])
    lost = learner.net.head.weight.detach()[OLD[1]].clone()
    learner.observe(some_batch(6, NEW, seed=81))
    assert torch.equal(learner.net.head.weight.detach()[OLD[1]], lost)
    image = (lost.clamp(min=0) / lost.max() * 255).to(torch.uint8).view(1, 1, 4, 4)
    assert learner.predict(image).tolist() == [OLD[1]]


def test_learning_goes_on_with_classes_that_a_grown_learner_has_room_for() -> None:
    learner = in_second_task()
    learner.grow(9)
    assert learner.net.head.bias is None
    learner.begin_task(Task(2, (8, 7)))
    before = copied(learner.net)["head.weight"]
    for seed in range(4):
        assert learner.observe(some_batch(6, (8, 7), seed)).isfinite()
    changed = (learner.net.head.weight.detach() != before).any(dim=1).nonzero().flatten().tolist()
    assert {7, 8} <= set(changed) <= {0, 1, 4, 5, 7, 8}
    images = some_images(100, seed=6)
    assert learner.predict(images).tolist() == by_cosine(learner, images, (0, 1, 4, 5, 7, 8))


def test_what_is_replayed_is_learned_with_its_own_labels() -> None:
    """Five steps by hand, with a memory that holds everything."""
    learner, net = begun(lr=0.2, replay=100, memory=100), plain_net(D, 6)
    weights = [*net.body.parameters(), net.head.weight]
    past: list[Batch] = []
    for seed in range(5):
        batch = some_batch(3, range(6), seed)
        loss = learner.observe(batch)
        if past:
            rows = joined(batch, *past)
            expected = by_loops(net.body(rows.x / 255), net.head.weight, rows.y.tolist(), TAU)
            assert loss.item() == pytest.approx(expected.item(), rel=1e-3)
            descend(weights, expected, 0.2)
        past.append(batch)
    assert_close(copied(learner.net.body), copied(net.body), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learner.net.head.weight.data, net.head.weight.data, rtol=1e-3, atol=1e-4)
