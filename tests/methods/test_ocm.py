"""OCM: contrasts over sixteen turned copies of new and of replayed images, and a frozen network of the task before."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contrast_helpers import (
    NEAR,
    dimmed,
    kept_term,
    likeness,
    nearest,
    new_term,
    operators,
    tags,
    turned_pair,
)
from helpers import (
    assert_close,
    assert_finite,
    assert_same_bits,
    cloned,
    copied,
    everything,
    hidden_layer,
    labelled,
    make,
    no_replay,
    normed_net,
    passes_counted,
    plain_net,
    rng,
    slopes_of,
    some_batch,
    some_images,
)
from method_helpers import descended, entropy, inputs_of, into_second_task, parameters_of
from onepass.errors import UsageError
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net
from onepass.learner.problem import Problem
from onepass.methods import ocm as module
from onepass.methods.ocm import OCM, light_view, transforms

D, P, C = 8, 4, 6  # features, projected features, classes
TAU = 0.07
OLD, NEW = (1, 4), (0, 5)
SEEN = (0, 1, 4, 5)


def ocm(net: Net | None = None, **settings: Any) -> OCM:
    return make(OCM, plain_net(D, C) if net is None else net, **{"memory": 40, "replay": 3, **settings})


def in_first_task(net: Net | None = None, **settings: Any) -> OCM:
    learner = ocm(net, **settings)
    learner.begin_task(Task(0, OLD))
    return learner


def in_second_task(net: Net | None = None, **settings: Any) -> OCM:
    """The network has moved on since the first task ended, so it and its frozen copy differ."""
    learner = into_second_task(ocm(net, **{"lr": 0.01, **settings}), OLD, NEW, size=3)
    with torch.no_grad():
        for i, parameter in enumerate(learner.trainable()):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=rng(i)))
    return learner


@pytest.fixture
def known_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "light_view", lambda x, *_, **__: dimmed(x))


def parameters(learner: OCM) -> dict[str, Tensor]:
    return parameters_of(net=learner.net, project=learner.project)


def slopes(learner: OCM, loss: Tensor) -> dict[str, Tensor]:
    return slopes_of(parameters(learner), loss)


# The method, read again: rows are taken one at a time.


def first_losses(learner: OCM, net: Net, batch: Batch, temperature: float = TAU) -> list[Tensor]:
    """The loss in the first task, for each place at which the slice of the features may begin."""
    f = net.body(turned_pair(batch))
    u = learner.project(f)
    ce = entropy(net(dimmed(batch.x / 255)), batch.y, sorted(learner.seen))
    d, p = f.shape[1], u.shape[1]
    return [new_term(likeness(u, f, r, 1.0), tags(batch.y) * 2, temperature) + ce for r in range(d - p)]


def later_losses(
    learner: OCM, net: Net, batch: Batch, replay: Batch, scale: float = 0.5, temperature: float = TAU
) -> list[Tensor]:
    """The loss in a later task, for each pair of places at which the slices of new and replayed features may begin."""
    pairs = turned_pair(batch), turned_pair(replay)
    features = net.body(torch.cat(pairs)).split([len(pair) for pair in pairs])
    (f, u), (g, v) = ((part, learner.project(part)) for part in features)
    d, p = f.shape[1], u.shape[1]
    new = [new_term(likeness(u, f, r, scale), tags(batch.y) * 2, temperature) for r in range(d - p)]
    kept = [kept_term(likeness(v, g, r, scale), tags(replay.y) * 2, temperature) for r in range(d - p)]
    turned = pairs[1][: 16 * len(replay)]
    before, project = learner.previous.module, learner.previous_project.module
    with torch.no_grad():
        w = F.normalize(project(before.body(turned)))
        old_logits = before(dimmed(replay.x / 255))
    rest = kept_term(F.normalize(v[: len(turned)]) @ w.T, tags(replay.y), temperature)
    logits = net(dimmed(replay.x / 255))
    old = sorted(learner.classes_before_task)
    rest = rest + entropy(logits, replay.y, sorted(learner.seen))
    rest = rest + torch.stack([(old_logits[:, c] - logits[:, c]) ** 2 for c in old]).mean()
    return [a + b + rest for a in new for b in kept]


# The sixteen operators and the light view.


@pytest.mark.parametrize("side", [2, 4, 6])
def test_the_sixteen_operators_are_those_of_the_halves_and_rotations_one_after_the_other(side: int) -> None:
    """Whatever their order: block by block, each operator on all images."""
    images = some_images(3, (3, side, side)) / 255
    made, expected = transforms(images), operators(images)
    assert made.shape == (48, 3, side, side)
    order = []
    for block in made.split(3):
        [match] = [g for g, images in enumerate(expected) if torch.equal(images, block)]
        order.append(match)
    assert sorted(order) == list(range(16))
    assert torch.equal(made[:3], images)


def test_the_operators_move_pixels_and_all_differ() -> None:
    images = torch.arange(2.0 * 3 * 16).view(2, 3, 4, 4)
    made = transforms(images).view(16, 2, 3, 16)
    assert torch.equal(made.sort(dim=3).values, images.view(2, 3, 16).expand(16, 2, 3, 16))
    assert len({tuple(block.flatten().tolist()) for block in made}) == 16
    assert torch.equal(images, torch.arange(2.0 * 3 * 16).view(2, 3, 4, 4))


def ramps(n: int, side: int = 32) -> Tensor:
    """Images that tell where each pixel came from: red is the column, green the row."""
    line = torch.arange(float(side)) / (side - 1)
    red, green = line.expand(side, side), line[:, None].expand(side, side)
    return torch.stack([red, green, torch.full((side, side), 0.5)]).expand(n, 3, side, side).contiguous()


def test_light_views_are_crops_flips_and_a_quarter_of_them_grey() -> None:
    n, side = 400, 32
    images = ramps(n, side)
    views = light_view(images, rng(1))
    assert views.shape == images.shape
    assert views.min() >= 0
    assert views.max() <= 1
    assert torch.equal(images, ramps(n, side))
    grey = (views - views.mean(dim=1, keepdim=True)).flatten(1).abs().amax(dim=1) < 1e-5
    assert 0.18 < grey.float().mean() < 0.32
    red, green = views[~grey][:, 0], views[~grey][:, 1]
    mirrored = red[:, 0, 0] > red[:, 0, -1]
    assert 0.4 < mirrored.float().mean() < 0.6
    assert (green[:, 0, 0] < green[:, -1, 0]).all()
    width, height = ((part.flatten(1).amax(1) - part.flatten(1).amin(1)) * (side - 1) + 1 for part in (red, green))
    area = width * height / side**2
    assert area.min() > 0.3 - 0.05
    assert area.min() < 0.38
    assert area.max() > 0.9
    aspect = width / height
    assert aspect.min() > 3 / 4 - 0.1
    assert aspect.max() < 4 / 3 + 0.1
    assert len({(float(a), float(b), float(c)) for a, b, c in zip(width, height, red[:, 0, 0], strict=True)}) > 200


def test_light_views_change_no_colour_but_to_grey() -> None:
    colour = torch.tensor([0.9, 0.2, 0.4])
    views = light_view(colour[None, :, None, None].expand(200, 3, 8, 8).contiguous(), rng(2))
    assert (views - views[:, :, :1, :1]).abs().max() < 1e-5
    pixels = views[:, :, 0, 0]
    kept = (pixels - colour).abs().amax(dim=1) < 1e-5
    luma = 0.299 * 0.9 + 0.587 * 0.2 + 0.114 * 0.4
    assert ((pixels[~kept] - luma).abs() < 1e-3).all()
    assert 20 < int((~kept).sum()) < 80


def test_light_views_of_one_channel_and_of_the_same_draws_are_known() -> None:
    images = some_images(20) / 255
    state = torch.random.get_rng_state()
    once, again, other = (light_view(images, rng(seed)) for seed in (3, 3, 4))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert torch.equal(torch.random.get_rng_state(), state)  # drawn from nothing but the given generator
    flat = torch.full((5, 1, 4, 4), 0.25)
    torch.testing.assert_close(light_view(flat, rng()), flat)


@pytest.mark.parametrize("shape", [(1, 5, 5), (1, 4, 6), (3, 6, 4), (3, 7, 8)])
def test_images_that_cannot_be_halved_and_turned_are_refused(shape: tuple[int, int, int]) -> None:
    net = Net(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), D)), D, C)
    with pytest.raises(UsageError):
        OCM(net, Problem(C, shape), OCM.Config(), seed=0)


# The parts.


def test_the_defaults_are_the_published_ones() -> None:
    assert (OCM.Config().temperature, OCM.Config().scale) == (0.07, 0.5)


@pytest.mark.parametrize(("width", "projected"), [(512, 128), (129, 128), (128, 64), (9, 4), (2, 1), (1, 1)])
def test_the_projection_is_narrower_than_the_features(width: int, projected: int) -> None:
    learner = ocm(plain_net(width, C))
    assert (learner.project.in_features, learner.project.out_features) == (width, projected)


def test_a_step_trains_network_and_projection_and_nothing_else() -> None:
    learner = ocm()
    assert {id(p) for p in learner.trainable()} == {id(p) for p in parameters(learner).values()}


# The loss of the first task.


@pytest.mark.usefixtures("known_view")
@pytest.mark.parametrize(("temperature", "scale"), [(0.07, 0.5), (0.5, 0.2)])
def test_the_first_task_contrasts_new_images_at_full_scale_and_learns_their_labels(
    temperature: float, scale: float
) -> None:
    learner = in_first_task(temperature=temperature, scale=scale)
    batch = some_batch(2, OLD, seed=3)
    candidates = first_losses(learner, learner.net, batch, temperature)
    loss = learner.loss(batch, no_replay(learner))
    found = nearest(loss, candidates)
    assert_close(slopes(learner, loss), slopes(learner, candidates[found]), rtol=1e-3, atol=1e-4)
    assert all(slope.abs().sum() > 0 for slope in slopes(learner, loss).values())


@pytest.mark.usefixtures("known_view")
def test_several_samples_of_a_class_are_positives_of_each_other_under_the_same_operator_alone() -> None:
    learner = in_first_task()
    batch = labelled([4, 1, 4], seed=4)
    nearest(learner.loss(batch, no_replay(learner)), first_losses(learner, learner.net, batch))


@pytest.mark.usefixtures("known_view")
def test_the_slice_of_the_features_begins_anywhere_below_d_minus_p() -> None:
    learner = in_first_task()
    batch = some_batch(1, OLD, seed=3)
    candidates = first_losses(learner, learner.net, batch)
    values = sorted(candidate.item() for candidate in candidates)
    assert len(values) == D - P
    assert min(b - a for a, b in itertools.pairwise(values)) > 1e-3
    found = [nearest(learner.loss(batch, no_replay(learner)), candidates) for _ in range(40)]
    assert set(found) == set(range(D - P))


@pytest.mark.usefixtures("known_view")
@pytest.mark.parametrize("scope", ["seen", "all"])
def test_the_labels_of_the_first_task_have_a_softmax_over_the_classes_in_scope(scope: str) -> None:
    learner = in_first_task(scope=scope)
    batch = some_batch(1, OLD, seed=3)
    classes = OLD if scope == "seen" else range(C)
    ce, theirs = (
        entropy(learner.net(dimmed(batch.x / 255)), batch.y, which) for which in (classes, sorted(learner.seen))
    )
    candidates = [value - theirs + ce for value in first_losses(learner, learner.net, batch)]
    nearest(learner.loss(batch, no_replay(learner)), candidates)


@pytest.mark.usefixtures("known_view")
def test_the_first_tasks_contrast_and_labels_are_normalised_apart() -> None:
    learner, twin = in_first_task(normed_net(D, C)), normed_net(D, C)
    batch = some_batch(3, OLD, seed=3)
    nearest(learner.loss(batch, no_replay(learner)), first_losses(learner, twin, batch))
    assert passes_counted(learner.net) == 2


def test_the_first_task_does_not_replay_though_the_memory_fills() -> None:
    learner = in_first_task(normed_net(D, C))
    for seed in range(3):
        with inputs_of(learner.net.body) as passes, inputs_of(learner.previous.module.body) as before:
            learner.observe(some_batch(2, OLD, seed))
        assert sorted(len(x) for x in passes) == [2, 64]
        assert not before
    assert len(learner.memory) == 6


def test_a_step_of_the_first_task_does_not_depend_on_what_is_stored() -> None:
    learners = [in_first_task(normed_net(D, C)) for _ in range(2)]
    for learner in learners:
        learner.observe(some_batch(3, OLD))
    learners[1].memory.field("x")[:3] = some_images(3, seed=9)
    learners[1].memory.field("y")[:3] = OLD[0]
    losses = [learner.observe(some_batch(3, OLD, seed=1)) for learner in learners]
    assert torch.equal(*losses)
    assert_same_bits(copied(learners[0].net), copied(learners[1].net))
    assert_same_bits(copied(learners[0].project), copied(learners[1].project))


# The loss of later tasks.


@pytest.mark.usefixtures("known_view")
@pytest.mark.parametrize(("temperature", "scale"), [(0.07, 0.5), (0.5, 1.0)])
def test_a_later_task_contrasts_new_and_replayed_images_and_distils(temperature: float, scale: float) -> None:
    learner = in_second_task(temperature=temperature, scale=scale)
    batch, replay = some_batch(1, NEW, seed=3), labelled([4, 0], seed=4)
    candidates = later_losses(learner, learner.net, batch, replay, scale, temperature)
    loss = learner.loss(batch, replay)
    found = nearest(loss, candidates)
    assert_close(slopes(learner, loss), slopes(learner, candidates[found]), rtol=1e-3, atol=1e-4)
    assert all(slope.abs().sum() > 0 for slope in slopes(learner, loss).values())


@pytest.mark.usefixtures("known_view")
def test_replayed_samples_of_one_class_are_positives_of_each_other_under_the_same_operator_alone() -> None:
    learner = in_second_task()
    batch = labelled([5, 5], seed=3)
    replay = labelled([4, 1, 4], seed=4)
    nearest(learner.loss(batch, replay), later_losses(learner, learner.net, batch, replay))


@pytest.mark.usefixtures("known_view")
def test_new_and_replayed_images_share_a_pass() -> None:
    learner = in_second_task(normed_net(D, C))
    assert copied(learner.previous.module)["body.2.running_mean"].any()
    batch, replay = some_batch(2, NEW, seed=3), some_batch(2, OLD, seed=4)
    twin = copy.deepcopy(learner.net)
    moved = passes_counted(twin)
    nearest(learner.loss(batch, replay), later_losses(learner, twin, batch, replay))
    assert passes_counted(learner.net) - moved == 2


@pytest.mark.parametrize("sizes", [(3, 2), (1, 4)])
def test_images_through_the_networks_are_as_many_as_the_card_counts(sizes: tuple[int, int]) -> None:
    """32 (b + m) + m through the network, 17 m through its frozen copy."""
    b, m = sizes
    learner = in_second_task(replay=m)
    with inputs_of(learner.net.body) as passes, inputs_of(learner.previous.module.body) as before:
        learner.observe(some_batch(b, NEW))
    assert sorted(len(x) for x in passes) == sorted([32 * (b + m), m])
    assert sum(len(x) for x in before) == 17 * m


def test_labels_and_distillation_are_of_two_independent_views_of_what_is_replayed() -> None:
    learner = in_second_task(normed_net(D, C), replay=3)
    batch = some_batch(2, NEW)
    with inputs_of(learner.net.body) as passes, inputs_of(learner.previous.module.body) as before:
        loss = learner.observe(batch)
    joint, light = sorted(passes, key=len, reverse=True)
    rows = [row for x in before for row in x]
    inside = [any(torch.equal(row, other) for other in joint) for row in rows]  # the turned images, without views
    assert sum(inside) >= 48
    other = torch.stack([row for x in before if len(x) == 3 for row in x])
    assert not torch.equal(light, other)
    assert loss.isfinite()


@pytest.mark.usefixtures("known_view")
def test_the_distillation_is_over_the_logits_of_old_classes_alone() -> None:
    learner = in_second_task()
    batch, replay = some_batch(1, NEW, seed=3), some_batch(2, OLD, seed=4)
    state = learner.rng.get_state()
    before = learner.loss(batch, replay)
    for row in (0, 2, 3, 5):
        with torch.no_grad():
            learner.previous.module.head.bias[row] += 5
        learner.rng.set_state(state)
        assert torch.equal(learner.loss(batch, replay), before)
    view = dimmed(replay.x / 255)
    gap = (learner.previous.module(view) - learner.net(view))[:, OLD[1]]
    with torch.no_grad():
        learner.previous.module.head.bias[OLD[1]] += 5
    learner.rng.set_state(state)
    added = ((gap + 5) ** 2 - gap**2).sum() / (2 * len(OLD))
    torch.testing.assert_close(learner.loss(batch, replay) - before, added, **NEAR)


def test_new_samples_reach_the_head_through_the_memory_alone() -> None:
    """The cross-entropy of later tasks is of replayed samples: other new labels, the same head after the step."""
    learners = [in_second_task() for _ in range(2)]
    for learner, labels in zip(learners, ([0, 5, 0], [0, 5, 5]), strict=True):
        learner.observe(labelled(labels, seed=3))
    assert torch.equal(learners[0].net.head.weight, learners[1].net.head.weight)
    assert not torch.equal(hidden_layer(learners[0].net).weight, hidden_layer(learners[1].net).weight)


@pytest.mark.usefixtures("known_view")
def test_a_step_is_a_hand_written_gradient_step() -> None:
    # replays all it has, so what it replays is known; the twin stays as the learner was
    learner, twin = (in_second_task(replay=50) for _ in range(2))
    learner.optimizer = torch.optim.SGD(learner.trainable(), lr=0.02)
    replay, batch = twin.memory.read(torch.arange(6)), some_batch(1, NEW, seed=3)
    candidates = later_losses(twin, twin.net, batch, replay)
    moved = descended(parameters(twin), candidates[nearest(learner.observe(batch), candidates)], 0.02)
    assert_close(cloned(parameters(learner)), moved, rtol=1e-3, atol=1e-4)
    assert torch.equal(learner.memory.field("x")[6:7], batch.x)


@pytest.mark.usefixtures("known_view")
def test_by_default_a_step_is_one_of_adam_with_the_authors_numbers() -> None:
    """The first: m = (1 - b1) g and v = (1 - b2) g^2, both corrected to g and g^2; g holds 0.0001 of the weights."""
    learner = in_first_task()
    batch, before, state = some_batch(3, OLD, seed=3), cloned(parameters(learner)), learner.rng.get_state()
    found = slopes(learner, learner.loss(batch, no_replay(learner)))
    learner.rng.set_state(state)
    learner.observe(batch)
    for name, value in parameters(learner).items():
        g = found[name] + 1e-4 * before[name]
        torch.testing.assert_close(value, before[name] - 0.001 * g / (g.abs() + 1e-8), rtol=1e-4, atol=1e-6)


# The frozen copies.


def test_the_copy_normalises_by_the_batch_that_passes_as_the_network_does() -> None:
    """By its running statistics its logits would be far from the network's before a single step, and the squared
    distance to them large enough to drive the network apart."""
    learner = in_second_task(normed_net(D, C))
    learner.end_task()
    x = some_images(4, seed=7) / 255
    for mode in (True, False):
        learner.train(mode)
        assert torch.equal(learner.previous(x), copy.deepcopy(learner.net).train()(x))
        assert torch.equal(learner.previous.module.features(x), copy.deepcopy(learner.net).train().features(x))
    assert not torch.allclose(learner.previous(x), copy.deepcopy(learner.net).eval()(x), atol=1e-2)


def test_the_copies_follow_at_the_end_of_a_task_and_stay_inside_it() -> None:
    learner = in_first_task(normed_net(D, C), lr=0.05)
    start = copied(learner.net), copied(learner.project)
    for task, following in ((Task(0, OLD), Task(1, NEW)), (Task(1, NEW), Task(2, (2, 3)))):
        for seed in range(2):
            learner.observe(some_batch(3, task.classes, seed))
            assert_same_bits(copied(learner.previous.module), start[0])
            assert_same_bits(copied(learner.previous_project.module), start[1])
            frozen = (*learner.previous.parameters(), *learner.previous_project.parameters())
            assert all(p.grad is None and not p.requires_grad for p in frozen)
        assert not torch.equal(hidden_layer(learner.net).weight, start[0]["body.1.weight"])
        learner.end_task()
        start = copied(learner.net), copied(learner.project)
        assert_same_bits(copied(learner.previous.module), start[0])
        assert_same_bits(copied(learner.previous_project.module), start[1])
        learner.begin_task(following)
        assert_same_bits(copied(learner.previous.module), start[0])


def test_predictions_are_those_of_the_head() -> None:
    learner, images = in_second_task(), some_images(60, seed=6)
    with torch.no_grad():
        rows = learner.net(images / 255).tolist()
    assert learner.predict(images).tolist() == [max(SEEN, key=lambda c: row[c]) for row in rows]


# Streams that are not the textbook's, and more classes.


@pytest.mark.parametrize("width", [1, 2, 3])
def test_networks_with_hardly_any_features_are_learned(width: int) -> None:
    learner = in_second_task(plain_net(width, C))
    assert learner.observe(some_batch(3, NEW)).isfinite()
    assert_finite(learner.net)


def test_a_later_task_with_an_empty_memory_is_learned() -> None:
    learner = ocm()
    learner.begin_task(Task(0, OLD))
    learner.end_task()
    learner.begin_task(Task(1, NEW))
    assert learner.observe(some_batch(3, NEW)).isfinite()
    assert learner.observe(some_batch(3, NEW, seed=1)).isfinite()
    assert_finite(learner.net)


@pytest.mark.usefixtures("known_view")
def test_a_replay_of_new_classes_alone_is_still_distilled_in_the_old_logits() -> None:
    learner = in_second_task()
    batch, replay = some_batch(1, NEW, seed=3), some_batch(2, NEW, seed=4)
    nearest(learner.loss(batch, replay), later_losses(learner, learner.net, batch, replay))


@pytest.mark.usefixtures("known_view")
def test_learning_goes_on_with_classes_that_a_grown_learner_has_room_for() -> None:
    learner = in_second_task()
    learner.grow(9)
    assert learner.previous.module.head.weight.shape == (9, D)
    batch, replay = some_batch(1, NEW, seed=3), some_batch(2, OLD, seed=4)
    nearest(learner.loss(batch, replay), later_losses(learner, learner.net, batch, replay))
    learner.end_task()
    learner.begin_task(Task(2, (8, 7)))
    for seed in range(3):
        assert learner.observe(some_batch(3, (8, 7), seed)).isfinite()
    stored = everything(learner)
    assert {7, 8} & set(stored.y.tolist())
    batch, replay = some_batch(1, (8, 7), seed=3), stored[torch.tensor([0, len(stored) - 1])]
    nearest(learner.loss(batch, replay), later_losses(learner, learner.net, batch, replay))
    assert set(learner.predict(some_images(20)).tolist()) <= {0, 1, 4, 5, 7, 8}
