"""MOSE: an expert at each stage, balanced groups of samples, reverse self-distillation, prediction by class means."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contrast_helpers import NEAR, dimmed
from helpers import (
    SHAPE,
    assert_close,
    cloned,
    everything,
    labelled,
    make,
    no_replay,
    plain_net,
    rng,
    slopes_of,
    some_batch,
    some_images,
)
from method_helpers import entropies, entropy, inputs_of, into_second_task
from onepass.errors import UsageError
from onepass.learner.batch import Batch, Task
from onepass.learner.net import NETS, Net, Pool, make_net
from onepass.learner.problem import Problem
from onepass.methods import mose as module
from onepass.methods.mose import MOSE
from onepass.methods.ocm import light_view

D, C = 5, 6  # features, classes
OLD, NEW = (1, 4), (0, 5)
SEEN = (0, 1, 4, 5)


def staged_net(seed: int = 0) -> Net:
    """Three stages: maps of 3x4x4, 4x2x2 and 5x2x2."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first, second, third = (
            nn.Conv2d(inputs, outputs, 3, stride, padding=1)
            for inputs, outputs, stride in ((1, 3, 1), (3, 4, 2), (4, D, 1))
        )
        return Net(nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), third, nn.Tanh(), Pool()), D, C)


def mose(net: Net | None = None, **settings: Any) -> MOSE:
    return make(MOSE, staged_net() if net is None else net, **{"memory": 40, "replay": 6, **settings})


def in_first_task(net: Net | None = None, **settings: Any) -> MOSE:
    learner = mose(net, **settings)
    learner.begin_task(Task(0, OLD))
    return learner


def in_second_task(net: Net | None = None, **settings: Any) -> MOSE:
    return into_second_task(mose(net, **settings), OLD, NEW, size=4)


@pytest.fixture
def known_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "light_view", lambda x, *_, **__: dimmed(x))


def parameters(learner: MOSE) -> dict[str, Tensor]:
    return dict(learner.named_parameters())


# The method, interpreted again: experts, rows and pairs are taken one at a time.


def contrast(vectors: Tensor, labels: Sequence[int], temperature: float) -> Tensor:
    total, unit = torch.zeros(()), [v / v.square().sum().sqrt() for v in vectors]
    for a, u in enumerate(unit):
        s = {b: u @ v / temperature for b, v in enumerate(unit) if b != a}
        below = torch.logsumexp(torch.stack(list(s.values())), 0)
        positives = [s[b] - below for b in s if labels[b] == labels[a]]
        total = total - sum(positives) / len(positives)
    return total / len(unit)


def layers_of(net: Net) -> nn.Sequential:
    assert isinstance(net.body, nn.Sequential)
    return net.body


def four(x: Tensor) -> Tensor:
    mirrored = torch.stack([torch.stack(list(reversed(image.unbind(2))), dim=2) for image in x])
    return torch.cat([x, mirrored, dimmed(x), dimmed(mirrored)])


def expected(
    learner: MOSE, new: Batch, balanced: Batch | None, classes: Sequence[int], temperature: float = 0.07
) -> Tensor:
    """The loss of samples of new classes, learned among these classes, and of a balanced batch of all seen."""
    groups = [new] if balanced is None else [new, balanced]
    x = torch.cat([four(group.x / 255) for group in groups if len(group)])
    y = [label for group in groups for label in group.y.tolist() * 4]
    n = 4 * len(new)
    layers = layers_of(learner.net)
    first = layers[:2](x)
    second = layers[2:4](first)
    last = layers[4:](second)
    features = [learner.every[0].body(first), learner.every[1].body(second), last]
    heads = [learner.every[0].head, learner.every[1].head, learner.net.head]
    student = learner.adapt(last)
    total = torch.zeros(())
    for z, head, project in zip(features, heads, learner.projections, strict=True):
        total = total + contrast(project(z), y, temperature)
        logits = head(z)
        if n:
            total = total + entropy(logits[:n], y[:n], classes)
        if len(y) > n:
            total = total + 2 * entropy(logits[n:], y[n:], sorted(learner.seen))
        if z is not last:
            gaps = [
                a / a.square().sum().sqrt() - b / b.square().sum().sqrt()
                for a, b in zip(student, z.detach(), strict=True)
            ]
            total = total + torch.stack([gap.square().sum() for gap in gaps]).sum().sqrt()
    return total


def assert_same_loss(learner: MOSE, loss: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(loss, theirs, **NEAR)
    ours = slopes_of(parameters(learner), loss)
    assert_close(ours, slopes_of(parameters(learner), theirs), rtol=1e-3, atol=1e-4)
    assert all(slope.abs().sum() > 0 for slope in ours.values())


# The loss.


@pytest.mark.usefixtures("known_view")
@pytest.mark.parametrize("temperature", [0.07, 0.3])
def test_the_first_task_learns_new_and_replayed_samples_as_one(temperature: float) -> None:
    learner = in_first_task(temperature=temperature)
    batch, replay = labelled([1, 4, 1], seed=3), labelled([4, 1], seed=4)
    both = Batch(torch.cat([batch.x, replay.x]), torch.cat([batch.y, replay.y]))
    assert_same_loss(learner, learner.loss(batch, replay), expected(learner, both, None, OLD, temperature))


@pytest.mark.usefixtures("known_view")
def test_the_first_step_of_all_learns_the_new_samples() -> None:
    learner = in_first_task()
    batch = labelled([1, 4, 1], seed=3)
    assert_same_loss(learner, learner.loss(batch, no_replay(learner)), expected(learner, batch, None, OLD))


@pytest.mark.usefixtures("known_view")
def test_the_first_task_has_a_softmax_over_the_classes_in_scope() -> None:
    learner = in_first_task(scope="all")
    batch = labelled([1, 4, 1], seed=3)
    assert_same_loss(learner, learner.loss(batch, no_replay(learner)), expected(learner, batch, None, range(C)))


@pytest.mark.usefixtures("known_view")
def test_a_later_task_learns_new_classes_among_themselves_and_a_balanced_batch_among_all() -> None:
    """Half of the classes are new: three of six samples of the balanced batch."""
    learner = in_second_task()
    batch, replay = labelled([0, 5, 0, 5], seed=3), labelled([4, 1, 1], seed=4)
    balanced = Batch(torch.cat([batch.x[:3], replay.x]), torch.cat([batch.y[:3], replay.y]))
    assert_same_loss(learner, learner.loss(batch, replay), expected(learner, batch, balanced, NEW))


@pytest.mark.usefixtures("known_view")
def test_replayed_samples_of_new_classes_are_learned_with_the_new_ones() -> None:
    learner = in_second_task(replay=4)
    batch, replay = labelled([0, 5, 0], seed=3), labelled([4, 5, 1, 0], seed=4)
    new = Batch(torch.cat([batch.x, replay.x[[1, 3]]]), torch.cat([batch.y, replay.y[[1, 3]]]))
    balanced = Batch(torch.cat([batch.x[:2], replay.x[[0, 2]]]), torch.cat([batch.y[:2], replay.y[[0, 2]]]))
    assert_same_loss(learner, learner.loss(batch, replay), expected(learner, new, balanced, NEW))


@pytest.mark.usefixtures("known_view")
def test_old_classes_in_the_stream_belong_to_the_balanced_batch() -> None:
    learner = in_second_task(replay=2)
    batch, replay = labelled([4, 0, 1, 5], seed=3), labelled([1], seed=4)
    new = batch[torch.tensor([1, 3])]
    balanced = Batch(torch.cat([batch.x[[0, 1, 2]], replay.x]), torch.cat([batch.y[[0, 1, 2]], replay.y]))
    assert_same_loss(learner, learner.loss(batch, replay), expected(learner, new, balanced, NEW))


@pytest.mark.usefixtures("known_view")
def test_a_task_without_new_classes_is_learned_among_all() -> None:
    learner = in_second_task()
    learner.end_task()
    learner.begin_task(Task(2, OLD))
    batch, replay = labelled([4, 1, 1], seed=3), labelled([0, 4], seed=4)
    both = Batch(torch.cat([batch.x, replay.x]), torch.cat([batch.y, replay.y]))
    assert_same_loss(learner, learner.loss(batch, replay), expected(learner, no_replay(learner), both, ()))


def test_the_last_expert_alone_learns_from_the_others() -> None:
    """The distance has no slope in the other experts, and one in the last and in its adaptor."""
    learner = in_first_task()
    features = learner.features(some_images(4) / 255)
    student = F.normalize(learner.adapt(features[-1]))
    apart = torch.linalg.vector_norm(student - F.normalize(features[0].detach()))
    slopes = slopes_of(parameters(learner), apart)
    moved = {name.split(".")[0] for name, slope in slopes.items() if slope.abs().sum() > 0}
    assert moved == {"net", "adapt"}


def test_a_step_passes_four_of_each_sample_at_once() -> None:
    learner = in_second_task(replay=6)
    with inputs_of(layers_of(learner.net)[0]) as passes:
        learner.observe(labelled([0, 5, 0, 5], seed=3))
    assert [len(x) for x in passes] == [4 * (4 + 6)]


def test_a_step_is_one_of_adam_with_the_authors_numbers() -> None:
    learner = in_first_task()
    batch, before, state = some_batch(3, OLD, seed=3), cloned(parameters(learner)), learner.rng.get_state()
    found = slopes_of(parameters(learner), learner.loss(batch, no_replay(learner)))
    learner.rng.set_state(state)
    learner.observe(batch)
    for name, value in parameters(learner).items():
        g = found[name] + 1e-4 * before[name]
        sure = g.abs() > 1e-5  # where rounding does not decide the sign
        moved = before[name] - 0.001 * g / (g.abs() + 1e-8)
        torch.testing.assert_close(value[sure], moved[sure], rtol=1e-4, atol=1e-5)
    assert learner.optimizer.param_groups[0]["betas"] == (0.9, 0.999)


# What is replayed.


def filled(labels: Sequence[int], **settings: Any) -> MOSE:
    learner = in_second_task(**settings)
    learner.memory.filled = 0
    learner.memory.write(torch.arange(len(labels)), labelled(labels))
    return learner


@pytest.mark.parametrize(
    ("replay", "size", "new", "old"),
    [(10, 10, 0, 5), (10, 3, 2, 7), (64, 10, 22, 54), (64, 40, 0, 32), (1, 10, 0, 1)],
)
def test_old_classes_fill_up_the_balanced_batch_and_new_ones_half_of_the_replay(
    replay: int, size: int, new: int, old: int
) -> None:
    """Half of the seen classes are new; the authors' numbers with the replay in place of 64."""
    learner = filled([*SEEN] * 25, replay=replay, memory=100)
    for seed in range(3):
        found = learner.retrieve(some_batch(size, NEW, seed)).y.tolist()
        assert sum(label in NEW for label in found) == min(new, 50)
        assert sum(label in OLD for label in found) == min(old, 50)


def test_replayed_slots_differ_and_each_is_drawn_equally_often() -> None:
    learner = filled([1, 0, 4, 5, 1, 0], replay=4)
    batch = some_batch(2, NEW)
    counts = torch.zeros(6)
    for _ in range(600):
        found = learner.retrieve(batch).slots
        assert found is not None
        assert len(set(found.tolist())) == len(found) == 2
        counts[found] += 1
    assert counts[[1, 3, 5]].tolist() == [0, 0, 0]
    assert (counts[[0, 2, 4]] / 1200 - 1 / 3).abs().max() < 0.05


def test_the_first_task_replays_whatever_is_stored() -> None:
    learner = in_first_task(replay=6)
    learner.observe(some_batch(4, OLD))
    assert len(learner.retrieve(some_batch(4, OLD, seed=1))) == 4


def test_the_new_classes_share_is_rounded_down() -> None:
    learner = in_second_task(replay=10)
    learner.end_task()
    learner.begin_task(Task(2, (2,)))  # one of five classes
    assert learner.balanced(labelled([2] * 10)) == 2
    assert learner.balanced(labelled([2])) == 1
    new, balanced = learner.groups(labelled([2] * 10), labelled([1, 4, 0]))
    assert (len(new), balanced.y.tolist()) == (10, [2, 2, 1, 4, 0])


# Stages and experts.


def test_resnets_have_four_experts_and_the_small_network_three() -> None:
    for name, channels in (("resnet18", [64, 128, 256]), ("slim-resnet18", [20, 40, 80]), ("small-cnn", [32, 64])):
        with torch.device("meta"):
            net = make_net(name, (3, 32, 32), 10, seed=0)
            learner = MOSE(net, Problem(10, (3, 32, 32)), MOSE.Config(), seed=0)
        assert learner.find_stages() == channels
        assert len(learner.experts) == len(channels)
    assert set(NETS) >= {"resnet18", "slim-resnet18", "small-cnn"}


def test_experts_see_what_each_stage_gives_to_the_next() -> None:
    shape = (3, 32, 32)
    learner = MOSE(make_net("slim-resnet18", shape, C, seed=0), Problem(C, shape), MOSE.Config(), seed=0)
    x = torch.rand(2, 3, 32, 32, generator=rng())
    recorders = [inputs_of(layers_of(expert)[0]) for expert in learner.every[:3]]
    with recorders[0] as a, recorders[1] as b, recorders[2] as c, torch.no_grad():
        learner.eval()
        features = learner.features(x)
    shapes = [tuple(found[0].shape) for found in (a, b, c)]
    assert shapes == [(2, 20, 32, 32), (2, 40, 16, 16), (2, 80, 8, 8)]
    assert [tuple(z.shape) for z in features] == [(2, 160)] * 4
    with torch.no_grad():
        torch.testing.assert_close(features[-1], learner.net.features(x))
        stage = layers_of(learner.net)[:4](x)
    torch.testing.assert_close(a[0], stage)


def by_hand(maps: Tensor, weights: dict[str, Tensor], prefix: str) -> Tensor:
    """A halving: depthwise 3x3 with stride 2 and 1x1, then both with stride 1; each pair normalised, rectified."""
    for first, stride in ((0, 2), (4, 1)):
        within, across = weights[f"{prefix}.{first}.weight"], weights[f"{prefix}.{first + 1}.weight"]
        maps = torch.cat(
            [F.conv2d(maps[:, [c]], within[[c]], stride=stride, padding=1) for c in range(maps.shape[1])],
            dim=1,
        )
        maps = torch.einsum("oi,nihw->nohw", across[:, :, 0, 0], maps)
        maps = normalised(maps, weights, f"{prefix}.{first + 2}").clamp(min=0)
    return maps


def normalised(maps: Tensor, weights: dict[str, Tensor], prefix: str) -> Tensor:
    mean, variance, scale, shift = (
        weights[f"{prefix}.{name}"][:, None, None] for name in ("running_mean", "running_var", "weight", "bias")
    )
    return (maps - mean) / (variance + 1e-5).sqrt() * scale + shift


@pytest.mark.parametrize("side", [4, 5])
def test_an_experts_features_are_attended_maps_halved_to_the_networks_width(side: int) -> None:
    learner = mose()
    for seed, module_ in enumerate(learner.experts.modules()):
        if isinstance(module_, nn.BatchNorm2d):  # statistics that are not the neutral ones
            module_.running_mean = torch.rand(module_.num_features, generator=rng(seed)) - 0.5
            module_.running_var = 0.5 + torch.rand(module_.num_features, generator=rng(seed + 100))
    learner.eval()
    for index, channels in ((0, 3), (1, 4)):
        expert = learner.every[index]
        weights = dict(expert.state_dict())
        maps = torch.rand(2, channels, side, side, generator=rng(7))
        seen = normalised(by_hand(maps, weights, "body.0.seen.0"), weights, "body.0.seen.1").clamp(min=0)
        found = maps * torch.sigmoid(F.interpolate(seen, (side, side), mode="bilinear", align_corners=False))
        for halving in range(1, 3 - index):
            found = by_hand(found, weights, f"body.{halving}")
        with torch.no_grad():
            torch.testing.assert_close(expert.features(maps), found.mean(dim=(2, 3)), rtol=1e-4, atol=1e-5)
    assert [len(layers_of(expert)) for expert in learner.every[:2]] == [4, 3]


@pytest.mark.usefixtures("known_view")
def test_a_network_of_one_stage_has_one_expert_and_no_distillation() -> None:
    learner = in_first_task(plain_net(8, C))
    assert len(learner.experts) == 0
    batch = labelled([1, 4, 1], seed=3)
    z = learner.net.body(four(batch.x / 255))
    y = batch.y.tolist() * 4
    theirs = contrast(learner.projections[0](z), y, 0.07) + entropies(learner.net.head(z), y, OLD).mean()
    torch.testing.assert_close(learner.loss(batch, no_replay(learner)), theirs, **NEAR)


def test_a_network_that_is_no_sequence_of_layers_is_refused_by_name() -> None:
    class Body(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)

    with pytest.raises(UsageError, match=r"expected an nn\.Sequential, got Body"):
        mose(Net(Body(), 16, C))


def test_finding_the_stages_leaves_the_network_as_it_was() -> None:
    net = make_net("small-cnn", SHAPE, C, seed=0)
    before = cloned(net.state_dict())
    mose(net)
    assert net.training
    assert_close(cloned(net.state_dict()), before, rtol=0, atol=0)


def test_experts_are_drawn_from_the_seed() -> None:
    first, again, other = (dict(make(MOSE, staged_net(), seed=seed).experts.named_parameters()) for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


# Augmentation.


def test_a_sample_is_seen_mirrored_or_not_and_cropped_without_another_mirror() -> None:
    learner, side, n = mose(), 16, 60
    line = torch.arange(side).mul(15).to(torch.uint8)
    x = line.expand(n, 1, side, side)
    made = learner.augmented(Batch(x, torch.zeros(n, dtype=torch.int64)))
    plain, mirrored, cropped, both = made.split(n)
    assert torch.equal(plain, x / 255)
    assert torch.equal(mirrored, x.flip(3) / 255)
    assert (cropped[:, 0, 0, 0] < cropped[:, 0, 0, -1]).all()
    assert (both[:, 0, 0, 0] > both[:, 0, 0, -1]).all()
    assert len({tuple(image.flatten().tolist()) for image in cropped}) > n / 2


@pytest.mark.parametrize(("mirrored", "share"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
def test_light_augmentations_mirror_as_often_as_told(mirrored: float, share: float) -> None:
    x = (torch.arange(16.0) / 15).expand(300, 1, 16, 16).contiguous()
    made = light_view(x, rng(3), mirrored)
    assert (made[:, 0, 0, 0] > made[:, 0, 0, -1]).float().mean().item() == pytest.approx(share, abs=0.1)


# Prediction.


@pytest.mark.parametrize("experts", ["last", "all"])
def test_prediction_is_by_the_nearest_class_mean_of_the_last_or_of_all_experts(experts: str) -> None:
    learner = in_second_task(experts=experts)
    for seed in range(3):
        learner.observe(some_batch(4, NEW, seed))
    learner.eval()
    stored, images = everything(learner), some_images(40, seed=8)
    assert set(stored.y.tolist()) == set(SEEN)
    with torch.no_grad():
        known = [F.normalize(z) for z in learner.features(stored.x / 255)]
        asked = [F.normalize(z) for z in learner.features(images / 255)]
    chosen = range(3) if experts == "all" else [2]
    predicted = []
    for i in range(len(images)):
        distances = {}
        for c in SEEN:
            rows = (stored.y == c).nonzero().flatten()
            means = {e: F.normalize(known[e][rows].mean(dim=0), dim=0) for e in chosen}
            distances[c] = sum((asked[e][i] - means[e]).square().sum().item() for e in chosen)
        predicted.append(min(distances, key=distances.__getitem__))
    assert learner.predict(images).tolist() == predicted
    assert len(set(predicted)) > 1


def test_the_last_expert_and_all_of_them_need_not_agree() -> None:
    answers = []
    for experts in ("last", "all"):
        learner = in_second_task(experts=experts)
        for seed in range(3):
            learner.observe(some_batch(4, NEW, seed))
        answers.append(learner.predict(some_images(200, seed=8)).tolist())
    assert answers[0] != answers[1]


def test_the_defaults_are_those_of_the_published_code() -> None:
    config = MOSE.Config()
    assert (config.lr, config.temperature, config.experts) == (0.001, 0.07, "last")


def test_every_head_grows_and_learns_the_new_classes() -> None:
    learner = in_second_task(experts="all")
    learner.grow(9)
    assert [expert.head.out_features for expert in learner.every] == [9, 9, 9]
    learner.begin_task(Task(2, (8, 7)))
    before = [expert.head.weight.detach().clone() for expert in learner.every]
    for seed in range(4):
        assert learner.observe(some_batch(4, (8, 7), seed)).isfinite()
    for expert, rows in zip(learner.every, before, strict=True):
        assert (expert.head.weight.detach() != rows).any(dim=1)[[7, 8]].all()
    assert set(learner.predict(some_images(60)).tolist()) <= {*SEEN, 7, 8}


def test_all_parts_of_the_learner_are_trained() -> None:
    learner = mose()
    trained = {id(p) for p in learner.trainable()}
    assert trained == {id(p) for p in parameters(learner).values()}
    assert len(list(itertools.chain(learner.trainable()))) == len(trained)
