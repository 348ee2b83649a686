"""GDumb: a memory that holds classes alike, and a network that is trained on it from scratch when a task ends."""

from __future__ import annotations

import copy
from collections import Counter
from fractions import Fraction
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
    labelled,
    make,
    normed_net,
    observe_all,
    passes_counted,
    pixel_net,
    plain_net,
    rng,
    some_batch,
    some_images,
    state_of,
)
from method_helpers import entropy, learn, passes_of
from onepass.errors import Diverged, UsageError
from onepass.learner.base import SETTLING_STEPS
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net, Standardise
from onepass.learner.problem import Problem
from onepass.methods.gdumb import GDumb, cutmix, rate

OLD, NEW = (1, 4), (0, 5)
TASKS = [Task(0, OLD), Task(1, NEW), Task(2, (2, 3))]


def gdumb(net: Net | None = None, **settings: Any) -> GDumb:
    return make(GDumb, pixel_net(6) if net is None else net, **{"memory": 12, "epochs": 3, "replay": 5, **settings})


def test_its_settings_are_those_of_its_authors_but_for_epochs_and_cutmix() -> None:
    config = GDumb.Config()
    assert (config.lr, config.replay, config.epochs, config.cutmix, config.memory) == (0.05, 16, 32, 0, 1000)
    [group] = gdumb(lr=0.05).optimizer.param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"], group["nesterov"]) == (0.05, 0.9, 1e-6, False)


# Greedy: the memory.


def rows(learner: GDumb) -> list[tuple[bytes, int]]:
    stored = everything(learner)
    return [(x.numpy().tobytes(), y) for x, y in zip(stored.x, stored.y.tolist(), strict=True)]


@pytest.mark.parametrize("capacity", [3, 7, 12])
def test_every_sample_enters_leaves_or_is_let_go_by_the_rule(capacity: int) -> None:
    """Sample by sample: in if its class is new or below its share; of a full memory, one of the largest class goes."""
    learner = gdumb(memory=capacity)
    labels = [0] * 9 + [3] * 9 + [1, 0, 3] * 4 + [5, 5, 5, 2, 0, 4, 4, 1, 1, 2, 2, 5] + [0, 1, 2, 3, 4, 5] * 4
    happened = Counter[str]()
    for number, label in enumerate(labels):
        before, sample = rows(learner), labelled([label], seed=number)
        held = Counter(y for _, y in before)
        wanted = held[label] == 0 or held[label] < Fraction(capacity, len(held))
        learner.observe(sample)
        after = rows(learner)
        if not wanted:
            assert after == before
            happened["let go"] += 1
        elif len(before) < capacity:
            assert after == [*before, (sample.x.numpy().tobytes(), label)]
            happened["entered"] += 1
        else:
            [slot] = [i for i in range(capacity) if after[i] != before[i]]
            assert after[slot] == (sample.x.numpy().tobytes(), label)
            assert held[before[slot][1]] == max(held.values())
            happened["replaced"] += 1
    assert len(happened) == 3
    assert len(rows(learner)) == capacity


def test_classes_that_come_one_after_the_other_end_with_equal_shares() -> None:
    learner, counts = gdumb(memory=12), []
    for c in range(6):
        observe_all(learner, [labelled([c] * 10, seed=10 * c + i) for i in range(2)])
        counts.append(Counter(everything(learner).y.tolist()))
    uneven = counts.pop(4)
    assert sorted(uneven.values()) == [2, 2, 2, 3, 3]
    assert counts == [dict.fromkeys(range(n), 12 // n) for n in (1, 2, 3, 4, 6)]


def test_what_gives_way_is_any_sample_of_the_largest_classes_alike() -> None:
    gone = Counter[int]()
    for seed in range(600):
        learner = gdumb(memory=5, seed=seed)
        observe_all(learner, [labelled([0, 1, 2, 0, 1])])
        before = rows(learner)
        learner.observe(labelled([3], seed=1))
        gone.update(i for i, (old, now) in enumerate(zip(before, rows(learner), strict=True)) if old != now)
    assert set(gone) == {0, 1, 3, 4}  # class 2 has one sample, the others two
    assert all(105 <= n <= 195 for n in gone.values())  # 150 expected, more than four deviations


def test_a_batch_is_stored_as_its_samples_one_after_the_other() -> None:
    batch = some_batch(40, range(6), seed=3)
    whole, single = gdumb(memory=7), gdumb(memory=7)
    whole.observe(batch)
    observe_all(single, [batch[torch.tensor([i])] for i in range(40)])
    assert rows(whole) == rows(single)


# Dumb: the training.


def test_the_learning_rate_is_that_of_warm_restarts_after_one_slow_epoch() -> None:
    """As published: a first epoch at a tenth, one at the whole rate, from then on torch's scheduler."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=1, T_mult=2, eta_min=0.0005)
    optimizer.step()
    for epoch in range(256):
        if epoch >= 2:
            scheduler.step()
        expected = 0.005 if epoch == 0 else optimizer.param_groups[0]["lr"]
        assert rate(epoch, 0.05) == pytest.approx(expected, rel=1e-6), epoch


def trained_by_hand(
    net: Net, stored: Batch, order: torch.Generator, sizes: list[int], epochs: int, lr: float
) -> tuple[dict[str, Tensor], list[float]]:
    """Momentum, weight decay and clipping as formulas, one weight tensor at a time; and each gradient's length."""
    weights = dict(net.named_parameters())
    speed = {name: torch.zeros_like(p) for name, p in weights.items()}
    classes, lengths = sorted(set(stored.y.tolist())), []
    for epoch in range(epochs):
        drawn = torch.randperm(len(stored), generator=order)
        assert sum(sizes) == len(drawn)
        for part in drawn.split(sizes):
            loss = entropy(net(stored.x[part] / 255), stored.y[part], classes)
            slopes = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
            lengths.append(float(sum(slope.square().sum() for slope in slopes.values())) ** 0.5)
            with torch.no_grad():
                for name, p in weights.items():
                    clipped = slopes[name] * min(1.0, 10 / lengths[-1])
                    speed[name] = 0.9 * speed[name] + clipped + 1e-6 * p
                    p.sub_(rate(epoch, lr) * speed[name])
    return cloned(weights), lengths


@pytest.mark.parametrize("steep", [False, True])
def test_the_training_is_sgd_on_the_memory_from_the_initial_weights(steep: bool) -> None:
    net = plain_net(8, 6)
    if steep:  # so that gradients are clipped
        with torch.no_grad():
            hidden_layer(net).weight.mul_(20)
            hidden_layer(net).bias.mul_(20)
    twin = copy.deepcopy(net)
    learner = gdumb(net, memory=7, replay=3, epochs=4, lr=0.002 if steep else 0.1)
    learner.begin_task(TASKS[0])
    observe_all(learner, [some_batch(6, OLD, seed) for seed in (1, 2)])
    order = torch.Generator()
    order.set_state(learner.rng.get_state())
    with torch.no_grad():
        for p in learner.net.parameters():
            p.add_(1)  # whatever was there: the training starts from the initial weights
    stored = everything(learner)
    assert len(stored) == 7
    learner.end_task()
    lr = learner.config.lr
    expected, lengths = trained_by_hand(twin, stored, order, [3, 2, 2], 4, lr)  # even parts of at most 3
    assert (max(lengths) > 10) == steep
    assert_close(cloned(dict(learner.net.named_parameters())), expected, rtol=1e-3, atol=1e-5)
    assert torch.equal(learner.rng.get_state(), order.get_state())


def test_images_and_augmentations_are_learned_and_batch_norm_starts_anew() -> None:
    learner = gdumb(normed_net(8, 6), augment="digits")
    for task in TASKS[:2]:
        learner.begin_task(task)
        observe_all(learner, [some_batch(6, task.classes, seed) for seed in (1, 2, 3)])
        sizes = passes_of(learner.net)
        learner.end_task()
        assert sizes == [8, 8, 8] * 3  # 12 samples in parts of at most 5, twice as many images, three times
        assert passes_counted(learner.net) == 9


def test_a_later_training_knows_nothing_of_an_earlier_one() -> None:
    learner = learn(gdumb(normed_net(8, 6)), TASKS[:1])
    learner.begin_task(TASKS[1])
    observe_all(learner, [some_batch(5, NEW, seed) for seed in range(3)])
    fresh = gdumb(normed_net(8, 6))
    fresh.mark_seen((*OLD, *NEW))
    fresh.memory.load_state_dict(copy.deepcopy(learner.memory.state_dict()))
    fresh.rng.set_state(learner.rng.get_state())
    fresh.stale.fill_(True)
    for other in (learner, fresh):
        other.end_task()
    assert_same_bits(copied(learner.net), copied(fresh.net))


def test_a_step_only_stores() -> None:
    learner = gdumb(normed_net(8, 6))
    learner.begin_task(TASKS[0])
    before, draws = copied(learner.net), learner.rng.get_state()
    assert [learner.observe(some_batch(5, OLD, seed)).item() for seed in range(4)] == [0] * 4
    assert_same_bits(copied(learner.net), before)
    assert torch.equal(learner.rng.get_state(), draws)
    assert len(learner.memory) == 12


def test_a_task_that_changed_nothing_in_the_memory_trains_nothing() -> None:
    learner = gdumb()
    learner.begin_task(TASKS[0])
    empty = state_of(learner)
    learner.end_task()
    assert state_of(learner) == empty
    learn(learner, TASKS[:1])
    before = state_of(learner)
    learner.end_task()
    assert state_of(learner) == before
    weights = copied(learner.net)
    learner.observe(labelled([1, 4, 1, 4]))  # the memory holds six of each: enough
    learner.end_task()
    assert_same_bits(copied(learner.net), weights)


def test_after_a_training_the_optimizer_is_as_new() -> None:
    learner = learn(gdumb(lr=0.03), TASKS[:1])
    assert learner.optimizer.param_groups[0]["lr"] == 0.03
    assert not learner.optimizer.state


def test_where_nobody_tells_tasks_it_trains_ever_more_rarely_and_when_classes_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained = []
    monkeypatch.setattr(GDumb, "start_again", lambda self: trained.append(self.steps))
    learner = gdumb(memory=1000)  # every sample is stored, so the memory has always changed
    observe_all(learner, [some_batch(4, OLD, seed) for seed in range(100)])
    assert trained == [SETTLING_STEPS, 2 * SETTLING_STEPS, 4 * SETTLING_STEPS]
    observe_all(learner, [some_batch(4, NEW, seed) for seed in range(45)])
    assert trained[3:] == [100, 100 + SETTLING_STEPS, 100 + 2 * SETTLING_STEPS]
    learner.begin_task(TASKS[2])  # from here on somebody does
    observe_all(learner, [some_batch(4, (2, 3), seed) for seed in range(60)])
    assert len(trained) == 6
    learner.end_task()
    assert trained[6:] == [205]


# Prediction.


def test_between_trainings_it_predicts_the_classes_of_the_last_one() -> None:
    learner, images = gdumb(plain_net(8, 6), epochs=30), some_images(80, seed=9)
    learner.begin_task(TASKS[0])
    with torch.no_grad():
        untrained = copy.deepcopy(learner.net).eval()(images / 255)
    chance = torch.tensor(OLD)[untrained[:, list(OLD)].argmax(dim=1)]
    observe_all(learner, [some_batch(6, OLD, seed) for seed in range(3)])
    assert torch.equal(learner.predict(images), chance)
    learner.end_task()
    first = learner.predict(images)
    assert not torch.equal(first, chance)
    learner.begin_task(TASKS[1])
    observe_all(learner, [some_batch(6, NEW, seed) for seed in range(3)])
    assert torch.equal(learner.predict(images), first)
    learner.end_task()
    with torch.no_grad():
        scores = copy.deepcopy(learner.net).eval()(images / 255)[:, [0, 1, 4, 5]]
    assert torch.equal(learner.predict(images), torch.tensor([0, 1, 4, 5])[scores.argmax(dim=1)])
    assert set(learner.predict(images).tolist()) == {0, 1, 4, 5}


def test_a_class_without_stored_samples_is_never_predicted() -> None:
    learner = gdumb(memory=2)
    observe_all(learner, [labelled([c], seed=c) for c in (0, 1, 2, 3)])
    held = set(everything(learner).y.tolist())
    assert len(held) == 2
    learner.end_task()
    assert set(learner.predict(some_images(200, seed=9)).tolist()) <= held
    assert learner.seen == {0, 1, 2, 3}


def test_it_learns_what_the_memory_holds() -> None:
    learner = gdumb(plain_net(30, 6), epochs=32, memory=12, replay=4)
    learn(learner, TASKS, n=3)
    stored = everything(learner)
    assert Counter(stored.y.tolist()) == dict.fromkeys(range(6), 2)
    assert (learner.predict(stored.x) == stored.y).float().mean() > 0.9


def test_an_average_is_over_the_steps_of_the_last_training() -> None:
    learner = gdumb(average=0.5)
    learn(learner, TASKS[:1])
    learner.begin_task(TASKS[1])
    observe_all(learner, [some_batch(5, NEW, seed) for seed in range(3)])
    steps: list[dict[str, Tensor]] = []
    learner.optimizer.register_step_post_hook(lambda *_: steps.append(copied(learner.net)))
    learner.end_task()
    assert len(steps) == 9
    expected = steps[0]
    for n, weights in enumerate(steps[1:], start=2):
        d = min(0.5, (n - 1) / (n + 9))
        expected = {name: d * value + (1 - d) * weights[name] for name, value in expected.items()}
    assert learner.average is not None
    assert_close(copied(learner.average.copies[0]), expected, rtol=1e-4, atol=1e-6)
    before = copied(learner.average.copies[0])
    learner.observe(some_batch(5, NEW, seed=9))
    assert_same_bits(copied(learner.average.copies[0]), before)


# All or nothing.


@pytest.mark.parametrize("told", [True, False])
def test_a_training_that_is_refused_leaves_all_as_it_was(told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learn(gdumb(normed_net(8, 6), augment="digits", average=0.9), TASKS[:1])
    learner.begin_task(TASKS[1])
    observe_all(learner, [some_batch(5, NEW, seed) for seed in range(3)])
    before, count, plain = state_of(learner), 0, GDumb.memory_loss

    def memory_loss(self: GDumb, stored: Batch) -> Tensor:
        nonlocal count
        count += 1
        return plain(self, stored) * (torch.nan if count == 5 else 1)

    monkeypatch.setattr(GDumb, "memory_loss", memory_loss)
    with pytest.raises(Diverged):
        learner.end_task() if told else learner.observe(some_batch(5, (2, 3)))
    assert count == 5
    assert state_of(learner) == before
    learner.end_task()
    assert count == 5 + 9
    assert state_of(learner) != before


# CutMix.


def test_cutmix_takes_one_rectangle_from_another_image_and_counts_what_is_left() -> None:
    values = torch.arange(1.0, 7)[:, None, None, None].expand(6, 3, 8, 5).clone()
    shares = []
    for seed in range(300):
        mixed, other, share = cutmix(values, rng(seed))
        assert sorted(other.tolist()) == list(range(6))
        taken = torch.zeros(8, 5, dtype=torch.bool)
        for i, image in enumerate(mixed):
            own, foreign = image == i + 1, image == other[i] + 1
            assert (own | foreign).all()
            assert all(torch.equal(channel, own[0]) for channel in own)
            taken |= ~own[0]
        down, across = taken.any(dim=1), taken.any(dim=0)
        assert torch.equal(taken, down[:, None] & across[None])
        for line in (down, across):
            where = line.nonzero().flatten()
            assert not len(where) or len(where) == where[-1] - where[0] + 1
        if (other != torch.arange(6)).any():
            assert share == pytest.approx(1 - taken.float().mean().item(), abs=1e-6)
        shares.append(share)
    assert torch.equal(values, torch.arange(1.0, 7)[:, None, None, None].expand(6, 3, 8, 5))
    assert min(shares) < 0.5
    assert max(shares) == 1


def test_a_rectangle_is_as_large_as_drawn_unless_an_edge_cuts_it_off() -> None:
    """As published: sides are the root of the area, halves rounded down to each side of a centre anywhere."""
    areas = []
    for seed in range(4000):
        _, _, share = cutmix(torch.zeros(2, 1, 40, 40), rng(seed))
        areas.append(1 - share)
    draws = torch.rand(3, 200_000, generator=rng(9), dtype=torch.float64)
    half = (40 * draws[0].sqrt()).floor().div(2, rounding_mode="floor")
    low, high = ((40 * draws[1:]).floor() - half).clamp(0, 40), ((40 * draws[1:]).floor() + half).clamp(0, 40)
    expected = ((high - low).prod(dim=0) / 1600).mean().item()
    assert sum(areas) / len(areas) == pytest.approx(expected, abs=0.015)
    assert 0.2 < expected < 0.4


def test_mixed_images_have_both_labels_by_their_shares() -> None:
    learner = gdumb(plain_net(8, 6), cutmix=1.0)
    learner.mark_seen((*OLD, *NEW))
    stored = labelled([1, 4, 0, 5, 1], seed=4)
    state = learner.rng.get_state()
    loss = learner.memory_loss(stored)
    learner.rng.set_state(state)
    torch.rand((), generator=learner.rng)
    mixed, other, share = cutmix(stored.x / 255, learner.rng)
    assert 0 < share < 1
    expected = torch.zeros(())
    for row, first, second in zip(learner.net(mixed), stored.y, stored.y[other], strict=True):
        logs = F.log_softmax(row[[0, 1, 4, 5]], dim=0)
        place = {c: i for i, c in enumerate((0, 1, 4, 5))}
        expected = expected - share * logs[place[int(first)]] - (1 - share) * logs[place[int(second)]]
    torch.testing.assert_close(loss, expected / 5)


def test_as_many_steps_are_mixed_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed: list[int] = []

    def counted(x: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor, float]:
        mixed.append(len(x))
        return cutmix(x, rng)

    monkeypatch.setattr("onepass.methods.gdumb.cutmix", counted)
    for wanted, low, high in ((0.0, 0, 0), (0.3, 65, 115), (1.0, 300, 300)):
        mixed.clear()
        learner = gdumb(cutmix=wanted, epochs=100)
        learn(learner, TASKS[:1])
        assert low <= len(mixed) <= high  # of 300


def test_cutmix_of_samples_that_are_no_images_is_refused() -> None:
    problem = Problem(6, (16,))
    with pytest.raises(UsageError, match=r"got \(16,\); use cutmix=0"):
        GDumb(pixel_net(6), problem, GDumb.Config(cutmix=0.5), seed=0)
    GDumb(pixel_net(6), problem, GDumb.Config(), seed=0)


def test_vectors_are_standardised_by_what_the_memory_holds() -> None:
    layer = Standardise((16,))
    learner = GDumb(
        Net(nn.Sequential(layer, nn.Linear(16, 5)), 5, 6), Problem(6, (16,)), GDumb.Config(memory=6, epochs=1), seed=0
    )
    for seed in range(2):
        for start in (0, 7):
            x = start + 3 * torch.randn(8, 16, generator=rng(seed))
            learner.observe(Batch(x, torch.arange(8) % 3 + 3 * seed))
        assert layer.met == 6 * seed  # what streams by does not move it
        learner.end_task()
        x = everything(learner).x
        torch.testing.assert_close(layer.mean, x.mean(dim=0))
        torch.testing.assert_close(layer.variance, x.var(dim=0, correction=0))


def test_classes_that_a_grown_learner_has_room_for_are_learned() -> None:
    learner = learn(gdumb(plain_net(30, 6), epochs=32, memory=12, replay=4), TASKS, n=3)
    learner.grow(8)
    batch = some_batch(12, (6, 7), seed=5)
    learner.begin_task(Task(3, (6, 7)))
    learner.observe(batch)
    assert set(learner.predict(batch.x).tolist()) <= set(range(6))
    learner.end_task()
    stored = everything(learner)
    assert {6, 7} <= set(stored.y.tolist())
    assert (learner.predict(stored.x) == stored.y).float().mean() > 0.9
