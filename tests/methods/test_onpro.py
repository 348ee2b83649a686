"""OnPro: OCM's contrast, a contrast of class prototypes, and mixtures of classes whose prototypes are close."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contrast_helpers import NEAR, dimmed, kept_term, likeness, nearest, new_term, tags, turned_pair
from helpers import (
    assert_close,
    assert_finite,
    cloned,
    everything,
    labelled,
    make,
    no_replay,
    normed_net,
    plain_net,
    rng,
    slopes_of,
    some_batch,
    some_images,
)
from method_helpers import entropies, entropy, inputs_of, into_second_task, parameters_of
from onepass.errors import Diverged, UsageError
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net
from onepass.learner.problem import Problem
from onepass.methods import onpro as module
from onepass.methods.onpro import Mixed, OnPro

D, P, C = 8, 4, 6  # features, projected features, classes
OLD, NEW = (1, 4), (0, 5)
SEEN = (0, 1, 4, 5)
UNMIXED: dict[str, Any] = {"mix": 0.0, "at_random": 1.0}


def onpro(net: Net | None = None, **settings: Any) -> OnPro:
    return make(OnPro, plain_net(D, C) if net is None else net, **{"memory": 40, "replay": 4, **settings})


def in_first_task(net: Net | None = None, **settings: Any) -> OnPro:
    learner = onpro(net, **settings)
    learner.begin_task(Task(0, OLD))
    return learner


def in_second_task(net: Net | None = None, **settings: Any) -> OnPro:
    return into_second_task(onpro(net, **{"lr": 0.01, **settings}), OLD, NEW, size=3)


@pytest.fixture
def known_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "light_view", lambda x, *_: dimmed(x))


def parameters(learner: OnPro) -> dict[str, Tensor]:
    return parameters_of(net=learner.net, project=learner.project)


def slopes(learner: OnPro, loss: Tensor) -> dict[str, Tensor]:
    return slopes_of(parameters(learner), loss)


# The method, interpreted again: rows and classes are taken one at a time.


def direction(v: Tensor) -> Tensor:
    return v / v.square().sum().sqrt()


def projected(learner: OnPro, net: Net, x: Tensor) -> list[Tensor]:
    return [direction(row) for row in learner.project(net.body(x))]


def prototype_term(plain: list[Tensor], augmented: list[Tensor], y: Tensor, temperature: float = 0.5) -> Tensor:
    """Each prototype must tell its partner from all other prototypes."""
    classes = sorted(set(y.tolist()))
    rows = [[i for i, label in enumerate(y.tolist()) if label == c] for c in classes]
    found = [
        direction(torch.stack([u[i] for i in members]).mean(dim=0)) for u in (plain, augmented) for members in rows
    ]
    k, total = len(classes), torch.zeros(())
    for a, p in enumerate(found):
        e = {b: torch.exp(p @ q / temperature) for b, q in enumerate(found) if b != a}
        total = total - torch.log(e[(a + k) % (2 * k)] / sum(e.values()))
    return total / (2 * k)


def both_views(learner: OnPro, net: Net, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
    x = batch.x / 255
    u = projected(learner, net, torch.cat([x, dimmed(x)]))
    return u[: len(batch)], u[len(batch) :]


def losses(
    learner: OnPro,
    net: Net,
    batch: Batch,
    replay: Batch,
    mixed: Mixed | None = None,
    scale: float = 1.0,
    t: float = 0.5,
) -> list[Tensor]:
    """The loss for each place, or pair of places, at which the slices of the features may begin."""
    pairs = [turned_pair(batch)]
    if mixed is not None:
        pairs.append(turned_pair(Batch(mixed.x, mixed.y)))
    f, *g = net.body(torch.cat(pairs)).split([len(pair) for pair in pairs])
    u = learner.project(f)
    new = [new_term(likeness(u, f, r, scale), tags(batch.y) * 2, 0.07) for r in range(D - P)]
    first, middle = [direction(row) for row in u[: len(batch)]], len(u) // 2
    second = [direction(row) for row in u[middle : middle + len(batch)]]
    rest = prototype_term(first, second, batch.y, t)
    if len(replay):
        rest = rest + prototype_term(*both_views(learner, net, replay), replay.y, t)
    if mixed is None:
        rest = rest + entropy(net(dimmed(batch.x / 255)), batch.y, sorted(learner.seen))
        return [a + rest for a in new]
    names = [
        (a if w == 0 or a == b else (a, b, i))
        for i, (a, b, w) in enumerate(zip(mixed.y.tolist(), mixed.other.tolist(), mixed.weight.tolist(), strict=True))
    ]
    labels = [(name, turn) for turn in range(16) for name in names] * 2
    v = learner.project(g[0])
    kept = [kept_term(likeness(v, g[0], r, scale), labels, 0.07) for r in range(D - P)]
    logits = net(dimmed(mixed.x))
    a, b = (entropies(logits, y, sorted(learner.seen)) for y in (mixed.y, mixed.other))
    rest = rest + ((1 - mixed.weight) * a + mixed.weight * b).mean()
    return [x + y + rest for x in new for y in kept]


# The loss of the first task.


def test_the_defaults_are_those_of_the_published_code() -> None:
    config = OnPro.Config()
    assert (config.temperature, config.prototype_temperature, config.scale) == (0.07, 0.5, 0.5)
    assert (config.mix, config.at_random, config.lr) == (0.6, 0.75, 0.0005)


@pytest.mark.usefixtures("known_view")
@pytest.mark.parametrize("t", [0.5, 0.2])
def test_the_first_step_contrasts_images_and_prototypes_and_learns_labels(t: float) -> None:
    learner = in_first_task(prototype_temperature=t)
    batch = labelled([1, 4, 1], seed=3)
    candidates = losses(learner, learner.net, batch, no_replay(learner), t=t)
    loss = learner.loss(batch, no_replay(learner))
    found = nearest(loss, candidates)
    assert_close(slopes(learner, loss), slopes(learner, candidates[found]), rtol=1e-3, atol=1e-4)
    assert not learner.prototypes.any()


@pytest.mark.usefixtures("known_view")
def test_replayed_samples_of_the_first_task_add_a_contrast_of_their_prototypes_alone() -> None:
    learner = in_first_task()
    batch, replay = labelled([1, 4, 1], seed=3), labelled([4, 1, 4, 4], seed=4)
    candidates = losses(learner, learner.net, batch, replay)
    loss = learner.loss(batch, replay)
    found = nearest(loss, candidates)
    assert_close(slopes(learner, loss), slopes(learner, candidates[found]), rtol=1e-3, atol=1e-4)


def test_prototypes_of_one_class_alone_are_no_loss() -> None:
    learner = onpro()
    u = F.normalize(torch.randn(6, P, generator=rng()))
    loss, classes, _ = learner.equilibrium(u[:3], u[3:], torch.tensor([2, 2, 2]))
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert classes.tolist() == [2]


def test_the_contrast_of_two_classes_whose_prototypes_are_right_angles_is_known() -> None:
    """Each has its partner at 1 and two others at 0: -log(e^2 / (e^2 + 2)) at temperature 0.5."""
    learner = onpro()
    e = torch.eye(P)
    loss, classes, means = learner.equilibrium(e[[0, 1]], e[[0, 1]], torch.tensor([5, 3]))
    assert loss.item() == pytest.approx(math.log(1 + 2 / math.e**2), abs=1e-6)
    assert classes.tolist() == [3, 5]
    assert torch.equal(means, e[[1, 0]])


def test_a_prototype_is_the_direction_of_the_mean_and_what_is_kept_is_the_mean() -> None:
    learner = onpro()
    e = torch.eye(P)
    plain, augmented = e[[0, 1, 2]], e[[0, 0, 3]]
    loss, _, means = learner.equilibrium(plain, augmented, torch.tensor([0, 0, 1]))
    torch.testing.assert_close(means, torch.stack([(e[0] + e[1]) / 4 + e[0] / 2, (e[2] + e[3]) / 2]))
    s = math.sqrt(0.5)  # of (1, 1, 0, 0) / sqrt 2 with (1, 0, 0, 0); all other pairs are at right angles
    rows = [math.log(math.exp(2 * s) + 2) - 2 * s, math.log(3), math.log(math.exp(2 * s) + 2) - 2 * s, math.log(3)]
    assert loss.item() == pytest.approx(sum(rows) / 4, abs=1e-6)


def test_passes_of_the_first_task() -> None:
    learner = in_first_task(normed_net(D, C), replay=4)
    for seed, sizes in enumerate(([2, 64], [2, 4, 64], [2, 8, 64])):
        with inputs_of(learner.net.body) as passes:
            learner.observe(some_batch(2, OLD, seed))
        assert sorted(len(x) for x in passes) == sizes


# The loss of later tasks.


@pytest.mark.usefixtures("known_view")
@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_without_mixing_a_later_task_contrasts_and_learns_what_is_replayed(scale: float) -> None:
    learner = in_second_task(scale=scale, **UNMIXED)
    batch, replay = labelled([0, 5], seed=3), labelled([1, 4, 0], seed=4)
    same = Mixed(replay.x / 255, replay.y, replay.y, torch.zeros(3))
    candidates = losses(learner, learner.net, batch, replay, same, scale)
    loss = learner.loss(batch, replay)
    found = nearest(loss, candidates)
    assert_close(slopes(learner, loss), slopes(learner, candidates[found]), rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("known_view")
def test_a_mixture_has_two_labels_by_weight_and_is_alike_to_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = in_second_task()
    batch, replay = labelled([0, 5], seed=3), labelled([1, 4, 0, 1], seed=4)
    known = Mixed(
        some_images(5, seed=9) / 255,
        torch.tensor([1, 1, 4, 0, 1]),
        torch.tensor([4, 4, 4, 1, 4]),
        torch.tensor([0.3, 0.3, 0.5, 0.0, 0.0]),
    )
    monkeypatch.setattr(learner, "mix", lambda given: known if given is replay else None)
    candidates = losses(learner, learner.net, batch, replay, known, 0.5)
    loss = learner.loss(batch, replay)
    found = nearest(loss, candidates)
    assert_close(slopes(learner, loss), slopes(learner, candidates[found]), rtol=1e-3, atol=1e-4)


def test_passes_of_a_later_task() -> None:
    learner = in_second_task(normed_net(D, C), replay=4)
    with inputs_of(learner.net.body) as passes:
        learner.observe(some_batch(2, NEW))
    assert sorted(len(x) for x in passes) == [4, 8, 32 * (2 + 4)]


def test_new_samples_of_a_later_task_reach_the_head_through_the_memory_alone() -> None:
    learners = [in_second_task() for _ in range(2)]
    for learner, labels in zip(learners, ([0, 5, 0], [0, 5, 5]), strict=True):
        learner.observe(labelled(labels, seed=3))
    assert torch.equal(learners[0].net.head.weight, learners[1].net.head.weight)
    assert not torch.equal(learners[0].project.weight, learners[1].project.weight)


@pytest.mark.usefixtures("known_view")
def test_a_step_is_one_of_adam_with_the_authors_numbers() -> None:
    """The first: m = (1 - b1) g and v = (1 - b2) g^2, both corrected to g and g^2; g holds 0.0001 of the weights."""
    learner = in_first_task()
    batch, before, state = some_batch(3, OLD, seed=3), cloned(parameters(learner)), learner.rng.get_state()
    found = slopes(learner, learner.loss(batch, no_replay(learner)))
    learner.rng.set_state(state)
    learner.observe(batch)
    assert learner.optimizer.param_groups[0]["betas"] == (0.9, 0.99)
    for name, value in parameters(learner).items():
        g = found[name] + 1e-4 * before[name]
        torch.testing.assert_close(value, before[name] - 0.0005 * g / (g.abs() + 1e-8), rtol=1e-4, atol=1e-6)


# Prototypes that are kept, and what they choose.


@pytest.mark.usefixtures("known_view")
def test_a_step_keeps_the_prototypes_of_what_it_replayed_and_forgets_the_others() -> None:
    learner = in_second_task()
    learner.prototypes.fill_(7)
    replay = labelled([4, 1, 4], seed=4)
    first, second = both_views(learner, learner.net, replay)
    learner.loss(labelled([0, 5], seed=3), replay)
    expected = torch.zeros(C, P)
    expected[1] = (first[1] + second[1]) / 2
    expected[4] = (first[0] + first[2] + second[0] + second[2]) / 4
    torch.testing.assert_close(learner.prototypes, expected.detach(), **NEAR)
    assert not learner.prototypes.requires_grad


def test_a_refused_step_keeps_the_prototypes_of_the_step_before() -> None:
    learner = in_second_task()
    learner.observe(some_batch(3, NEW, seed=5))
    before = learner.prototypes.clone()
    assert before.any()
    learner.optimizer.param_groups[0]["lr"] = math.inf
    with pytest.raises(Diverged):
        learner.observe(some_batch(3, NEW, seed=6))
    assert torch.equal(learner.prototypes, before)


def stored(labels: list[int], **settings: Any) -> OnPro:
    """A learner whose memory holds these labels; slot i is an image of grey i."""
    learner = in_second_task(**settings)
    images = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 4, 4)
    learner.memory.filled = 0
    learner.memory.write(torch.arange(len(labels)), Batch(images, torch.tensor(labels)))
    return learner


def test_pairs_of_classes_are_drawn_by_a_softmax_of_one_over_their_distance() -> None:
    learner = stored([0, 1, 1, 4, 5, 5])
    learner.prototypes.zero_()
    learner.prototypes[[1, 4, 5], 0] = torch.tensor([0.1, 0.6, 2.1])  # 0 has none
    n = 4000
    slots = learner.close_pairs(n)
    assert slots.shape == (2, n)
    y = everything(learner).y[slots]
    distances = {(1, 4): 0.5, (1, 5): 2.0, (4, 5): 1.5}
    total = sum(math.exp(1 / d) for d in distances.values())
    found = dict.fromkeys(distances, 0)
    for pair in zip(*y.tolist(), strict=True):
        found[pair] += 1
    for pair, d in distances.items():
        assert found[pair] / n == pytest.approx(math.exp(1 / d) / total, abs=0.03)


def test_each_stored_sample_of_a_class_is_drawn_equally_often() -> None:
    learner = stored([1, 4, 4, 1, 4, 1])
    learner.prototypes.zero_()
    learner.prototypes[1], learner.prototypes[4] = 1, 2
    first, second = learner.close_pairs(3000)
    for slots, members in ((first, [0, 3, 5]), (second, [1, 2, 4])):
        assert sorted(set(slots.tolist())) == members
        assert all(abs((slots == slot).float().mean() - 1 / 3) < 0.04 for slot in members)


@pytest.mark.parametrize("known", [(), (1,), (0, 1), (3, 2)])
def test_fewer_than_two_stored_classes_with_a_prototype_give_no_pair(known: tuple[int, ...]) -> None:
    learner = stored([1, 4, 5, 5, 4, 1])
    learner.prototypes.zero_()
    learner.prototypes[list(known)] = 1
    assert learner.close_pairs(5).shape == (2, 0)
    mixed = learner.mix(everything(learner))
    assert sorted(mixed.y.tolist()) == [1, 1, 4, 4, 5, 5]


def test_prototypes_at_one_place_are_no_division_by_zero() -> None:
    learner = stored([1, 4, 5, 5, 4, 1])
    learner.prototypes.fill_(1)
    assert learner.close_pairs(5).shape == (2, 5)


# Mixtures.


@pytest.mark.parametrize(("n", "close"), [(1, 1), (4, 1), (10, 3), (16, 4)])
def test_a_quarter_of_the_mixtures_is_of_close_classes(n: int, close: int) -> None:
    learner = stored([1, 4] * 10)
    learner.prototypes[1], learner.prototypes[4] = 1, 2
    replay = learner.memory.read(torch.arange(2, 2 + n))
    mixed = learner.mix(replay)
    assert len(mixed.x) == len(mixed.y) == len(mixed.other) == len(mixed.weight) == n
    assert mixed.y[n - close :].tolist() == [1] * close
    assert mixed.other[n - close :].tolist() == [4] * close


def test_a_mixture_is_the_weighted_mean_of_an_image_of_either_class() -> None:
    """Slot i has grey i: which two slots a mixture is of must be possible, for each of many."""
    labels = [1, 4, 1, 5, 5, 4, 1, 4]
    learner = stored(labels, mix=1.0, at_random=0.5)
    learner.prototypes[1], learner.prototypes[4], learner.prototypes[5] = 1, 2, 4
    replay = learner.memory.read(torch.arange(8))
    for _ in range(20):
        mixed = learner.mix(replay)
        assert (mixed.x.flatten(1).std(dim=1) < 1e-6).all()
        for grey, a, b, w in zip(255 * mixed.x[:, 0, 0, 0], mixed.y, mixed.other, mixed.weight, strict=True):
            possible = [
                (1 - w) * i + w * j
                for i, j in itertools.product(range(8), repeat=2)
                if labels[i] == a and labels[j] == b
            ]
            assert min(abs(value - grey) for value in possible) < 1e-3
        assert len(set(mixed.y[4:].tolist()) | set(mixed.other[4:].tolist())) > 1


def test_random_pairs_are_of_the_replayed_samples_each_once_in_either_place() -> None:
    learner = stored([1, 4, 1, 5, 5, 4, 1, 4], mix=0.0, at_random=1.0)
    replay = learner.memory.read(torch.tensor([2, 3, 5]))
    mixed = learner.mix(replay)
    assert sorted((255 * mixed.x[:, 0, 0, 0]).round().tolist()) == [2, 3, 5]
    assert sorted(mixed.y.tolist()) == sorted(mixed.other.tolist()) == [1, 4, 5]


def test_weights_are_uniform_below_six_tenths_at_random_and_of_a_beta_distribution_for_close_classes() -> None:
    n = 2000
    learner = stored([1, 4], mix=1.0, at_random=0.5)
    learner.prototypes[1], learner.prototypes[4] = 1, 2
    replay = learner.memory.read(torch.tensor([0, 1]).repeat(n))
    weight = learner.mix(replay).weight
    uniform, beta = weight.split(n)
    assert uniform.min() >= 0
    assert 0.55 < uniform.max() <= 0.6
    assert uniform.mean().item() == pytest.approx(0.3, abs=0.015)
    assert uniform.var().item() == pytest.approx(0.6**2 / 12, abs=0.003)
    assert beta.mean().item() == pytest.approx(0.5, abs=0.03)
    assert beta.var().item() == pytest.approx(1 / (4 * (2 * 0.4 + 1)), abs=0.01)


@pytest.mark.parametrize("p", [0.0, 0.6, 1.0])
def test_so_many_are_mixed_and_the_others_are_what_they_were(p: float) -> None:
    learner = stored([1, 4], mix=p)
    learner.prototypes[1], learner.prototypes[4] = 1, 2
    mixed = learner.mix(learner.memory.read(torch.tensor([0, 1]).repeat(1000)))
    assert (mixed.weight > 0).float().mean().item() == pytest.approx(p, abs=0.04)
    whole = mixed.weight == 0
    assert torch.equal((255 * mixed.x[whole][:, 0, 0, 0]).round().long(), (mixed.y[whole] == 4).long())


# Streams that are not the textbook's, and more classes.


@pytest.mark.parametrize("shape", [(1, 5, 5), (1, 4, 6), (3, 7, 8)])
def test_images_that_cannot_be_halved_and_turned_are_refused(shape: tuple[int, int, int]) -> None:
    net = Net(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), D)), D, C)
    with pytest.raises(UsageError, match="onpro turns images and halves of them: expected even squares"):
        OnPro(net, Problem(C, shape), OnPro.Config(), seed=0)


@pytest.mark.usefixtures("known_view")
def test_a_later_task_with_an_empty_memory_has_the_first_tasks_terms() -> None:
    learner = onpro()
    learner.begin_task(Task(0, OLD))
    learner.end_task()
    learner.begin_task(Task(1, NEW))
    batch = labelled([0, 5], seed=3)
    nearest(learner.loss(batch, no_replay(learner)), losses(learner, learner.net, batch, no_replay(learner), scale=0.5))


def test_predictions_are_those_of_the_head() -> None:
    learner, images = in_second_task(), some_images(60, seed=6)
    with torch.no_grad():
        rows = learner.net(images / 255).tolist()
    assert learner.predict(images).tolist() == [max(SEEN, key=lambda c: row[c]) for row in rows]


def test_a_grown_learner_keeps_its_prototypes_and_mixes_classes_it_has_room_for() -> None:
    learner = in_second_task(mix=1.0, at_random=0.0)
    learner.observe(some_batch(3, NEW, seed=5))
    before = learner.prototypes.clone()
    learner.grow(9)
    assert torch.equal(learner.prototypes, F.pad(before, (0, 0, 0, 3)))
    learner.end_task()
    learner.begin_task(Task(2, (8, 7)))
    for seed in range(4):
        assert learner.observe(some_batch(3, (8, 7), seed)).isfinite()
    learner.prototypes.zero_()
    learner.prototypes[7], learner.prototypes[8] = 1, 2
    mixed = learner.mix(everything(learner))
    assert (set(mixed.y.tolist()), set(mixed.other.tolist())) == ({7}, {8})
    assert_finite(learner.net)
