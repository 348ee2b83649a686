"""CCL-DC: two networks of ER, a chain of augmentations, and what each network learns from the other along it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import (
    PIXELS,
    assert_close,
    cloned,
    everything,
    hidden_layer,
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
from method_helpers import entropy, inputs_of, learn, parameters_of, united
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net, redrawn
from onepass.methods import ccl_dc as module
from onepass.methods.ccl_dc import CCLDC

C = 6
SEEN = (0, 1, 4, 5)


def ccl_dc(net: Net | None = None, **settings: Any) -> CCLDC:
    learner = make(CCLDC, plain_net(8, C) if net is None else net, **{"memory": 40, "replay": 3, **settings})
    learner.begin_task(Task(0, SEEN))
    return learner


def steps(x: Tensor) -> list[Tensor]:
    """A chain that needs no draw."""
    return [x, x.flip(3), x.flip(3) ** 2, (x.flip(3) ** 2).flip(2) * 0.5]


@pytest.fixture
def known_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CCLDC, "links", lambda self, x: steps(x))


def parameters(learner: CCLDC) -> dict[str, Tensor]:
    return parameters_of(net=learner.net, peer=learner.peer)


# The method, interpreted again: one network, one link, one row and one class at a time.


def divergence(student: Tensor, teacher: Tensor, classes: list[int], temperature: float) -> Tensor:
    """T^2 times the mean over rows of KL(teacher || student)."""
    rows = []
    for own, other in zip(student, teacher.detach(), strict=True):
        p, q = (torch.stack([row[c] / temperature for c in classes]) for row in (other, own))
        p, q = p - torch.logsumexp(p, 0), q - torch.logsumexp(q, 0)
        rows.append(torch.stack([torch.exp(a) * (a - b) for a, b in zip(p, q, strict=True)]).sum())
    return temperature**2 * torch.stack(rows).mean()


def in_parts(net: Net, x: Tensor, sizes: list[int]) -> Tensor:
    return torch.cat([net(part) for part in x.split(sizes)])


def expected(
    learner: CCLDC,
    batch: Batch,
    replay: Batch,
    *,
    joint: bool = False,
    combine: str = "mean",
    weight: float = 2.0,
    temperature: float = 4.0,
    classes: list[int] | None = None,
) -> Tensor:
    """The loss of a learner whose stream has no augmentation."""
    classes = sorted(learner.seen) if classes is None else classes
    images, y = torch.cat([batch.x, replay.x]) / 255, torch.cat([batch.y, replay.y])
    n = len(batch)
    sizes = [len(y)] if joint or not len(replay) else [n, len(replay)]
    networks = (learner.net, learner.peer)
    plain = [in_parts(net, images, sizes) for net in networks]
    said = [[in_parts(net, x, sizes) for x in steps(images)] for net in networks]
    total = torch.zeros(())
    for own, other in ((0, 1), (1, 0)):
        er = entropy(plain[own][:n], y[:n], classes)
        if len(replay):
            er = united(er, entropy(plain[own][n:], y[n:], classes), (n, len(replay)), combine)
        labels = er + sum(entropy(link, y, classes) for link in said[own])
        pairs = ((0, 1), (1, 2), (2, 3), (3, 3))
        taught = sum(divergence(said[own][i], said[other][j], classes, temperature) for i, j in pairs)
        total = total + labels / 2 + weight * taught
    return total


@pytest.mark.usefixtures("known_chain")
@pytest.mark.parametrize(
    ("settings", "interpretation"),
    [
        ({}, {}),
        ({"combine": "sum"}, {"combine": "sum"}),
        ({"distill": 0.5, "temperature": 1.5}, {"weight": 0.5, "temperature": 1.5}),
        ({"scope": "all"}, {"classes": list(range(C))}),
    ],
    ids=["defaults", "sum", "distillation", "all classes"],
)
def test_the_loss_is_that_of_both_networks(settings: dict[str, Any], interpretation: dict[str, Any]) -> None:
    learner = ccl_dc(**settings)
    batch, replay = labelled([0, 5, 1], seed=3), labelled([4, 1], seed=4)
    loss, theirs = learner.loss(batch, replay), expected(learner, batch, replay, **interpretation)
    torch.testing.assert_close(loss, theirs, rtol=1e-4, atol=1e-5)
    ours = slopes_of(parameters(learner), loss)
    assert_close(ours, slopes_of(parameters(learner), theirs), rtol=1e-3, atol=1e-5)
    assert all(slope.abs().sum() > 0 for slope in ours.values())


@pytest.mark.usefixtures("known_chain")
@pytest.mark.parametrize("joint", [False, True])
def test_new_and_replayed_images_share_passes_of_every_link_or_do_not(joint: bool) -> None:
    learner = ccl_dc(normed_net(8, C), forward="joint" if joint else "separate")
    batch, replay = labelled([0, 5, 1], seed=3), labelled([4, 1], seed=4)
    loss = learner.loss(batch, replay)
    torch.testing.assert_close(loss, expected(learner, batch, replay, joint=joint), rtol=1e-4, atol=1e-5)
    for net in (learner.net, learner.peer):
        with inputs_of(net.body) as passes:
            learner.loss(batch, replay)
        assert [len(x) for x in passes] == ([5] * 5 if joint else [3, 2] * 5)


@pytest.mark.usefixtures("known_chain")
def test_the_first_step_learns_from_new_samples_alone() -> None:
    learner = ccl_dc()
    batch = labelled([0, 5, 1], seed=3)
    theirs = expected(learner, batch, no_replay(learner))
    torch.testing.assert_close(learner.loss(batch, no_replay(learner)), theirs, rtol=1e-4, atol=1e-5)
    assert learner.observe(batch).isfinite()


def test_the_last_link_teaches_itself_and_each_other_link_is_taught_by_the_next() -> None:
    """Logits of two classes, one row, T = 1: only what is compared with something else costs."""
    learner = ccl_dc(temperature=1.0)
    even, odd = torch.tensor([0.0, 0.0]), torch.tensor([math.log(3), 0.0])  # halves; three quarters and a quarter
    zero = torch.stack([even, even])[None]

    def one_odd(link: int, network: int) -> float:
        logits = torch.stack([zero] * 4)
        logits[link, 0, network] = odd
        return float(learner.taught(logits))

    student = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)  # KL(halves || quarters)
    teacher = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)  # KL(quarters || halves)
    for network in (0, 1):
        assert one_odd(0, network) == pytest.approx(student, abs=1e-6)
        assert one_odd(1, network) == pytest.approx(student + teacher, abs=1e-6)
        assert one_odd(2, network) == pytest.approx(student + teacher, abs=1e-6)
        assert one_odd(3, network) == pytest.approx(student + 2 * teacher, abs=1e-6)


def test_a_step_is_one_of_adamw_for_both_networks() -> None:
    """The first: the gradient's sign, and the weights shrink by the learning rate times 0.0001 of themselves."""
    learner = ccl_dc(operations=0)
    batch, before, state = some_batch(3, SEEN, seed=3), cloned(parameters(learner)), learner.rng.get_state()
    found = slopes_of(parameters(learner), learner.loss(batch, no_replay(learner)))
    learner.rng.set_state(state)
    learner.observe(batch)
    for name, value in parameters(learner).items():
        g = found[name]
        moved = (1 - 0.0005 * 1e-4) * before[name] - 0.0005 * g / (g.abs() + 1e-8)
        torch.testing.assert_close(value, moved, rtol=1e-4, atol=1e-6)
    assert learner.optimizer.param_groups[0]["betas"] == (0.9, 0.999)


# The chain.


def test_the_chain_is_the_images_a_crop_and_randaugment_once_and_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Tensor, dict[str, int]]] = []

    def noted(x: Tensor, generator: torch.Generator, **settings: int) -> Tensor:
        given.append((x, settings))
        return x * 0.5

    monkeypatch.setattr(module, "randaugment", noted)
    learner = ccl_dc(operations=2, magnitude=11)
    x = some_images(5) / 255
    links = learner.links(x)
    assert len(links) == 4
    assert torch.equal(links[0], x)
    assert [settings for _, settings in given] == [{"operations": 2, "magnitude": 11}] * 2
    assert given[0][0] is links[1]
    assert given[1][0] is links[2]
    assert torch.equal(links[2], links[1] * 0.5)
    assert torch.equal(links[3], links[1] * 0.25)


def test_the_second_link_is_a_crop_of_most_of_the_image_mirrored_half_of_the_time() -> None:
    learner, side, n = ccl_dc(), 32, 400
    line = torch.arange(float(side)) / (side - 1)
    red, green = line.expand(side, side), line[:, None].expand(side, side)
    x = torch.stack([red, green, red]).expand(n, 3, side, side).contiguous()
    cut = learner.links(x)[1]
    red, green = cut[:, 0], cut[:, 1]
    mirrored = red[:, 0, 0] > red[:, 0, -1]
    assert 0.4 < mirrored.float().mean() < 0.6
    assert (green[:, 0, 0] < green[:, -1, 0]).all()
    width, height = ((part.flatten(1).amax(1) - part.flatten(1).amin(1)) * (side - 1) + 1 for part in (red, green))
    area = width * height / side**2
    assert 0.55 < area.min() < 0.68
    assert area.max() > 0.95


def test_the_defaults_are_those_of_the_published_settings_for_er() -> None:
    config = CCLDC.Config()
    assert (config.distill, config.temperature, config.operations, config.magnitude) == (2.0, 4.0, 3, 15)
    assert config.lr == 0.0005


# The two networks.


def test_the_second_network_has_weights_of_its_own_that_the_seed_decides() -> None:
    learners = [make(CCLDC, plain_net(8, C), seed=seed) for seed in (0, 0, 1)]
    first, again, other = (hidden_layer(learner.peer).weight for learner in learners)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, hidden_layer(learners[0].net).weight)
    bound = PIXELS**-0.5
    assert first.abs().max() <= bound
    assert first.abs().max() > 0.8 * bound


def test_a_redrawn_network_keeps_what_is_not_trained_and_draws_from_the_given_generator() -> None:
    net = normed_net(8, C)
    hidden_layer(net).requires_grad_(False)
    norm = net.body[2]  # type: ignore[index]  # a Sequential
    assert isinstance(norm, nn.BatchNorm1d)
    with torch.no_grad():
        norm.weight.fill_(7)
    state = torch.get_rng_state()
    made = redrawn(net, rng(3))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(hidden_layer(made).weight, hidden_layer(net).weight)
    assert not hidden_layer(made).weight.requires_grad
    assert torch.equal(made.body[2].weight, torch.ones(8))  # type: ignore[index]
    assert (norm.weight == 7).all()
    assert not torch.equal(made.head.weight, net.head.weight)
    assert torch.equal(made.head.weight, redrawn(net, rng(3)).head.weight)


def test_prediction_is_by_the_mean_of_both_networks_logits() -> None:
    learner = learn(ccl_dc(lr=0.01), [Task(0, SEEN)])
    images = some_images(60, seed=6)
    with torch.no_grad():
        ours, theirs = learner.net(images / 255), learner.peer(images / 255)
    rows = (ours + theirs).tolist()
    assert learner.predict(images).tolist() == [max(SEEN, key=lambda c: row[c]) for row in rows]
    alone = [[max(SEEN, key=lambda c: row[c]) for row in logits.tolist()] for logits in (ours, theirs)]
    assert learner.predict(images).tolist() not in alone


def test_both_networks_grow_and_learn_the_new_classes() -> None:
    learner = learn(ccl_dc(lr=0.01), [Task(0, SEEN)])
    learner.grow(9)
    assert learner.net.head.out_features == learner.peer.head.out_features == 9
    learner.begin_task(Task(1, (7, 8)))
    before = [net.head.weight.detach().clone() for net in (learner.net, learner.peer)]
    for seed in range(4):
        assert learner.observe(some_batch(4, (7, 8), seed)).isfinite()
    for net, rows in zip((learner.net, learner.peer), before, strict=True):
        assert (net.head.weight.detach() != rows).any(dim=1)[[7, 8]].all()
    assert {7, 8} & set(everything(learner).y.tolist())
