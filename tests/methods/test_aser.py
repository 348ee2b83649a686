"""ASER: what to replay and what to keep, by the Shapley values of nearest-neighbour classifiers in feature space.

Where the method draws at random, all ways to draw are enumerated and the frequencies of what happens are compared.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, pairwise, permutations, product
from math import comb, dist
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import (
    assert_close,
    assert_finite,
    assert_same_bits,
    copied,
    gradients,
    held_gradients,
    joined,
    labelled,
    make,
    normed_net,
    observe_all,
    passes_counted,
    pixel_net,
    plain_net,
    rng,
    slot_list,
    some_batch,
    some_images,
)
from method_helpers import SEEN, assert_as_stored, passes_of
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net
from onepass.methods.aser import ASER, ASERConfig, knn_shapley
from onepass.methods.er import ER


def aser(net: Net | None = None, classes: Sequence[int] = SEEN, **settings: Any) -> ASER:
    """By default the pixels are the features."""
    learner = make(ASER, pixel_net(4) if net is None else net, **settings)
    learner.begin_task(Task(0, tuple(classes)))
    learner.train()
    return learner


def full(batch: Batch, *, overflowed: bool = True, **settings: Any) -> ASER:
    """A learner whose memory these samples fill, after a stream that had more."""
    learner = aser(memory=len(batch), **settings)
    learner.memory.write(learner.memory.reservoir(len(batch)), batch)
    if overflowed:
        learner.memory.seen += 1
    return learner


# Shapley values.


def worth(players: Iterable[int], distances: Sequence[float], same: Sequence[bool], k: int) -> float:
    """The share of right labels among the k nearest of these players: what a neighbour classifier is sure of."""
    nearest = sorted(players, key=lambda c: distances[c])[:k]
    return sum(same[c] for c in nearest) / k


def shapley(distances: Sequence[float], same: Sequence[bool], k: int) -> list[float]:
    """By definition: a player's gain, averaged over all coalitions of the others."""
    n = len(distances)
    values = []
    for player in range(n):
        others = [c for c in range(n) if c != player]
        value = 0.0
        for size in range(n):
            for group in combinations(others, size):
                gain = worth((*group, player), distances, same, k) - worth(group, distances, same, k)
                value += gain / (n * comb(n - 1, size))
        values.append(value)
    return values


def recursion(distances: Sequence[float], same: Sequence[bool], k: int) -> list[float]:
    """The same by the published recursion from the farthest to the nearest; quick enough to enumerate with."""
    order, n = sorted(range(len(distances)), key=lambda c: distances[c]), len(distances)
    values = [0.0] * n
    values[order[-1]] = same[order[-1]] * min(k, n) / (n * k)
    for m in range(n - 1, 0, -1):
        near, far = order[m - 1], order[m]
        values[near] = values[far] + (same[near] - same[far]) / k * min(k, m) / m
    return values


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_values_are_those_of_the_definition_for_every_number_of_candidates(n: int, k: int) -> None:
    """Also for fewer candidates than neighbours."""
    distances = torch.rand(3, n, generator=rng(n))
    same = torch.rand(3, n, generator=rng(10 * n + k)) < 0.5
    same[0] = True
    found = knn_shapley(distances, same, k)
    assert found.shape == (3, n)
    for row, d, s in zip(found.tolist(), distances.tolist(), same.tolist(), strict=True):
        expected = shapley(d, s, k)
        assert row == pytest.approx(expected, abs=1e-6)
        assert recursion(d, s, k) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("k", [1, 3, 5, 40])
def test_values_of_an_evaluation_point_sum_to_the_worth_of_all_candidates(k: int) -> None:
    """Efficiency, with as many candidates as in practice."""
    distances, same = torch.rand(7, 30, generator=rng(1)), torch.rand(7, 30, generator=rng(2)) < 0.4
    sums = knn_shapley(distances, same, k).sum(dim=1).tolist()
    for total, d, s in zip(sums, distances.tolist(), same.tolist(), strict=True):
        assert total == pytest.approx(worth(range(30), d, s, k), abs=1e-5)


def test_equal_distances_share_out_the_same_sum() -> None:
    """Whichever comes first among equals, the values are those of one order of them."""
    same = torch.tensor([[True, False, True, True]])
    [found] = knn_shapley(torch.ones(1, 4), same, 3).tolist()
    orders = [shapley(order, same[0].tolist(), 3) for order in permutations([0.0, 1.0, 2.0, 3.0])]
    assert any(found == pytest.approx(values, abs=1e-6) for values in orders)


# All that may happen: how likely each outcome is at least and at most (ties may go either way).

Chances = dict[Any, tuple[float, float]]


def best(scores: dict[Any, float], n: int) -> list[frozenset[Any]]:
    """The sets of the n largest: several if there are ties at the cut."""
    ranked = sorted(scores, key=lambda c: -scores[c])
    if n == 0 or n >= len(ranked):
        return [frozenset(ranked[:n])]
    cut = (scores[ranked[n - 1]], scores[ranked[n]])
    sure = [c for c in ranked if scores[c] > cut[0] + 1e-5]
    tied = [c for c in ranked if abs(scores[c] - cut[0]) <= 1e-5]
    return [frozenset([*sure, *more]) for more in combinations(tied, n - len(sure))]


def chances(ways: Iterable[tuple[float, list[Any]]]) -> Chances:
    """From (weight, possible outcomes) of every way to draw."""
    low, high, total = defaultdict[Any, float](float), defaultdict[Any, float](float), 0.0
    for weight, outcomes in ways:
        total += weight
        if len(outcomes) == 1:
            low[outcomes[0]] += weight
        for outcome in outcomes:
            high[outcome] += weight
    return {outcome: (low[outcome] / total, high[outcome] / total) for outcome in high}


def fits(found: Counter[Any], expected: Chances) -> bool:
    """Are these counts what the chances give? Within about four standard deviations."""
    n = found.total()
    if not set(found) <= set(expected):
        return False
    return all(
        low - 4 * (low * (1 - low) / n) ** 0.5 - 1 / n <= found[o] / n <= high + 4 * (high * (1 - high) / n) ** 0.5
        for o, (low, high) in expected.items()
    )


Point = tuple[list[float], int]  # features and label


def values(evaluated: Sequence[Point], points: Sequence[Point], k: int) -> list[list[float]]:
    """One row for each evaluated point: the Shapley values of all points."""
    return [recursion([dist(z, w) for w, _ in points], [y == v for _, v in points], k) for z, y in evaluated]


def points_of(batch: Batch, body: nn.Module | None = None) -> list[Point]:
    x = batch.x / 255
    return list(zip((x if body is None else body(x)).flatten(1).tolist(), batch.y.tolist(), strict=True))


def by_class(slots: Iterable[int], y: Sequence[int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for slot in slots:
        groups.setdefault(y[slot], []).append(slot)
    return groups


def draws(slots: Iterable[int], y: Sequence[int], each: int) -> Iterator[list[int]]:
    """All ways to draw so many slots of each class, or all it has."""
    groups = by_class(slots, y).values()
    for pick in product(*(combinations(group, min(each, len(group))) for group in groups)):
        yield [slot for part in pick for slot in part]


def mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def column(rows: list[list[float]], i: int) -> list[float]:
    return [row[i] for row in rows]


Score = Callable[[list[float], list[float]], float]


def mu(cooperative: list[float], adversarial: list[float]) -> float:
    """Of one candidate's values for stored samples and for new ones."""
    return mean(cooperative) - mean(adversarial)


def retrievals(stored: Batch, batch: Batch, k: int, each: int, n: int, score: Score = mu) -> Chances:
    """Outcomes are sets of slots."""
    memory, y = points_of(stored), stored.y.tolist()
    ways = []
    for cand in draws(range(len(y)), y, each):
        points = [memory[c] for c in cand]
        against = values(points_of(batch), points, k)
        rest = [slot for slot in range(len(y)) if slot not in cand]
        options = list(draws(rest, y, each))
        for chosen in options:
            together = values([memory[e] for e in chosen], points, k)
            scores = {slot: score(column(together, i), column(against, i)) for i, slot in enumerate(cand)}
            ways.append((1 / len(options), best(scores, min(n, len(cand)))))
    return chances(ways)


def updates(
    stored: Batch, batch: Batch, k: int, each: int, n_classes: int, *, sign: int = 1, rare: str = "below"
) -> Chances:
    """Outcomes are (slots given up, rows of the batch let in)."""
    memory, new, y = points_of(stored), points_of(batch), stored.y.tolist()
    shares = {c: y.count(c) / len(y) for c in set(batch.y.tolist())}
    edges = sorted({0.0, 1 / n_classes, *(share for share in shares.values() if share < 1 / n_classes)})
    ways = []
    for low, high in pairwise(edges):  # the threshold lies in one of these
        middle = (low + high) / 2
        joining = {
            "below": [point for point in new if shares[point[1]] < middle],
            "never": [],
            "always": new,
        }[rare]
        for chosen in draws(range(len(y)), y, each):
            rest = [slot for slot in range(len(y)) if slot not in chosen]
            options = list(combinations(rest, min(each * n_classes, len(rest))))
            for cand in options:
                sums = values([*(memory[e] for e in chosen), *joining], [*(memory[c] for c in cand), *new], k)
                names = [("slot", c) for c in cand] + [("row", i) for i in range(len(new))]
                scores = {name: sign * sum(row[i] for row in sums) for i, name in enumerate(names)}
                outcomes = [
                    (
                        frozenset(c for c in cand if ("slot", c) not in keep),
                        frozenset(i for i in range(len(new)) if ("row", i) in keep),
                    )
                    for keep in best(scores, len(cand))
                ]
                ways.append(((high - low) / len(options), outcomes))
    return chances(ways)


# What is replayed.


@pytest.mark.parametrize("overflowed", [False, True])
def test_replay_is_uniform_until_the_stream_exceeds_the_memory(overflowed: bool) -> None:
    """A memory that is exactly full is still one that holds the whole past."""
    stored = some_batch(12, SEEN, seed=5)
    learner = full(stored, overflowed=overflowed, replay=4, per_class=2)
    twin = copy.deepcopy(learner)
    batch, uniform = some_batch(3, (0, 1)), []
    for _ in range(5):
        uniform.append(slot_list(learner.retrieve(batch)) == slot_list(twin.memory.sample(4, twin.rng)))
    assert all(uniform) == (not overflowed)


def test_replayed_samples_are_those_of_the_least_worth_to_the_new_batch_if_all_are_candidates() -> None:
    """Nothing is left to evaluate on, so the cooperative part is zero, and no NaN."""
    for trial in range(5):
        stored, batch = some_batch(10, (0, 1, 2), seed=trial), some_batch(4, (0, 1), seed=50 + trial)
        learner = full(stored, per_class=9, replay=3)
        against = values(points_of(batch), points_of(stored), 3)
        expected = best({i: -mean(column(against, i)) for i in range(10)}, 3)
        replay = learner.retrieve(batch)
        assert frozenset(slot_list(replay)) in expected
        assert len(replay) == 3
        opposite = best({i: mean(column(against, i)) for i in range(10)}, 3)
        assert not set(expected) & set(opposite)
        assert_as_stored(replay, learner)


def test_a_wrong_class_inside_the_new_cluster_is_replayed_before_far_points() -> None:
    """Dark images are of class 0 and light ones of class 1, but for slot 5."""
    grey = torch.tensor([30, 35, 40, 45, 50, 10, 200, 210, 220, 230]).to(torch.uint8)
    stored = Batch(grey[:, None, None, None].expand(10, 1, 4, 4), torch.tensor([0] * 5 + [1] * 5))
    batch = Batch(some_images(6) // 32, torch.zeros(6, dtype=torch.int64))
    assert slot_list(full(stored, per_class=20, replay=1).retrieve(batch)) == [5]


@pytest.mark.parametrize(("k", "n", "seed"), [(1, 1, 5), (3, 1, 6), (3, 2, 5)])
def test_replayed_samples_help_other_stored_ones_and_not_the_new_batch(k: int, n: int, seed: int) -> None:
    """Candidates and those to evaluate on are drawn by class and apart: mean cooperative minus mean adversarial."""
    stored = labelled([0, 1, 2, 0, 1, 2, 0, 1, 0], seed=seed)
    batch = some_batch(5, (0, 1), seed=100 + seed)
    learner = full(stored, neighbours=k, per_class=2, replay=n)
    found = Counter(frozenset(slot_list(learner.retrieve(batch))) for _ in range(200))
    assert fits(found, retrievals(stored, batch, k, 2, n))
    readings: dict[str, Score] = {
        "swapped": lambda coop, adv: mean(adv) - mean(coop),
        "cooperative alone": lambda coop, adv: mean(coop),
        "adversarial alone": lambda coop, adv: -mean(adv),
        "added": lambda coop, adv: mean(coop) + mean(adv),
        "sums": lambda coop, adv: sum(coop) - sum(adv),
        "extremes (the variant asv)": lambda coop, adv: max(coop) - min(adv),
    }
    for name, reading in readings.items():
        assert not fits(found, retrievals(stored, batch, k, 2, n, reading)), name  # it would have been seen


@pytest.mark.parametrize(("each", "replay", "n"), [(1, 10, 3), (2, 4, 4), (9, 10, 10), (9, 40, 12)])
def test_as_many_are_replayed_as_asked_for_or_as_there_are_candidates(each: int, replay: int, n: int) -> None:
    stored = labelled([0, 1, 2] * 4)
    learner = full(stored, per_class=each, replay=replay)
    for _ in range(5):
        slots = slot_list(learner.retrieve(some_batch(3, (0, 1))))
        assert len(set(slots)) == len(slots) == n
        assert max(Counter(stored.y[slots].tolist()).values()) <= each


def test_a_new_class_that_the_memory_lacks_is_evaluated_on_too() -> None:
    stored = labelled([0, 1, 0, 1, 0, 1])
    learner = full(stored, per_class=1, replay=1)
    batch = some_batch(4, (2, 3), seed=1)
    found = Counter(frozenset(slot_list(learner.retrieve(batch))) for _ in range(100))
    assert fits(found, retrievals(stored, batch, 3, 1, 1))


# What is kept.


def changes(learner: ASER, stored: Batch, batch: Batch) -> tuple[frozenset[int], frozenset[int]]:
    """Slots given up and rows let in. A slot's image and label must have come together, and no row twice."""
    x, y = learner.memory.field("x"), learner.memory.field("y")
    given, rows = [], []
    for slot in range(len(stored)):
        if torch.equal(x[slot], stored.x[slot]):
            assert y[slot] == stored.y[slot]
            continue
        [row] = [i for i in range(len(batch)) if torch.equal(x[slot], batch.x[i])]
        assert y[slot] == batch.y[row]
        given.append(slot)
        rows.append(row)
    assert len(set(rows)) == len(rows)
    return frozenset(given), frozenset(rows)


def updated(learner: ASER, stored: Batch, batch: Batch, trials: int) -> Counter[Any]:
    found = Counter[Any]()
    for _ in range(trials):
        learner.memory.write(torch.arange(len(stored)), stored)
        learner.remember(batch)
        found[changes(learner, stored, batch)] += 1
    return found


CASES = {
    "classes with many stored": ([0, 1, 0, 1, 0, 1, 0, 1], [0, 1, 0]),
    "a class that the memory lacks": ([0, 1, 0, 1, 0, 1, 0, 1], [2, 0, 2]),
    "a class of which one is stored": ([0, 1, 0, 1, 2, 1, 0, 1], [2, 2, 0]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_memory_keeps_the_samples_of_the_highest_worth(case: str) -> None:
    """Rare new classes are evaluated on too: those whose share of the memory lies below a drawn threshold."""
    old, new = CASES[case]
    stored, batch = labelled(old, seed=21), labelled(new, seed=22)
    learner = full(stored, per_class=1)
    found = updated(learner, stored, batch, 150)
    expected = updates(stored, batch, 3, 1, 4)
    assert fits(found, expected)
    assert not fits(found, updates(stored, batch, 3, 1, 4, sign=-1))
    if case != "classes with many stored":
        assert not fits(found, updates(stored, batch, 3, 1, 4, rare="never"))
    if case != "a class that the memory lacks":
        assert not fits(found, updates(stored, batch, 3, 1, 4, rare="always"))


def test_no_more_slots_are_candidates_than_samples_of_each_class_there_may_be() -> None:
    """per_class times all classes of the problem, seen or not; here two of the four slots outside the evaluated."""
    stored, batch = labelled([0, 1, 0, 1, 0, 1], seed=31), some_batch(3, (0, 1), seed=32)
    learner = full(stored, net=pixel_net(2), classes=(0, 1), per_class=1)
    found = updated(learner, stored, batch, 150)
    assert fits(found, updates(stored, batch, 3, 1, 2))
    assert not fits(found, updates(stored, batch, 3, 1, 4))


def test_evaluating_on_the_whole_memory_leaves_nothing_to_give_up() -> None:
    stored, batch = some_batch(6, (0, 1), seed=1), some_batch(4, (0, 1), seed=2)
    learner = full(stored, per_class=9)
    assert set(updated(learner, stored, batch, 10)) == {(frozenset(), frozenset())}


def test_a_batch_fills_what_room_there_is_before_samples_compete() -> None:
    learner = aser(memory=5, per_class=1)
    first, second, third = (some_batch(n, (0, 1), seed=i) for i, n in enumerate((3, 2, 4)))
    for batch, seen in ((first, 3), (second, 5)):
        learner.remember(batch)
        assert (len(learner.memory), learner.memory.seen) == (seen, seen)
    stored = joined(first, second)
    assert changes(learner, stored, third) == (frozenset(), frozenset())
    learner.remember(third)
    assert (len(learner.memory), learner.memory.seen) == (5, 9)


def test_the_rest_of_a_batch_that_fills_the_memory_competes() -> None:
    """The first two rows fill slots 4 and 5; the other three compete with all six."""
    first, second = labelled([0, 1, 0, 1], seed=41), some_batch(5, (0, 1), seed=42)
    stored = joined(first, second[torch.arange(2)])
    rest = second[torch.tensor([2, 3, 4])]
    found = Counter[Any]()
    for seed in range(60):
        learner = aser(memory=6, per_class=1, seed=seed)
        learner.remember(first)
        learner.remember(second)
        assert (len(learner.memory), learner.memory.seen) == (6, 9)
        found[changes(learner, stored, rest)] += 1
    assert fits(found, updates(stored, rest, 3, 1, 4))


def test_a_first_batch_larger_than_the_memory_is_stored_as_far_as_it_goes() -> None:
    learner = aser(memory=3, per_class=1)
    batch = some_batch(8, (0, 1))
    learner.observe(batch)
    assert (len(learner.memory), learner.memory.seen) == (3, 8)
    stored = {image.numpy().tobytes() for image in learner.memory.field("x")}
    assert len(stored) == 3
    assert stored <= {image.numpy().tobytes() for image in batch.x}


def test_over_a_long_stream_no_sample_is_stored_twice_or_with_another_label() -> None:
    learner = aser(plain_net(8, 6), classes=(), memory=14, replay=5, per_class=2, lr=0.2)
    label: dict[bytes, int] = {}
    let_in = 0
    for t, classes in enumerate([(0, 1), (2, 3), (4, 5)]):
        learner.begin_task(Task(t, classes))
        for i in range(8):
            batch = some_batch(5, classes, seed=20 * t + i)
            label.update({image.numpy().tobytes(): y for image, y in zip(batch.x, batch.y.tolist(), strict=True)})
            learner.observe(batch)
            stored = [image.numpy().tobytes() for image in learner.memory.field("x")[: len(learner.memory)]]
            assert len(set(stored)) == len(stored) == min(14, learner.memory.seen)
            assert [label[image] for image in stored] == learner.memory.field("y")[: len(stored)].tolist()
            let_in += sum(image.numpy().tobytes() in stored for image in batch.x)
    assert learner.memory.seen == 120
    assert let_in > 20
    assert set(learner.memory.field("y").tolist()) & {2, 3, 4, 5}


# How it looks.


def test_features_are_those_of_the_network_in_evaluation_mode() -> None:
    """Chosen by features of running statistics, not of the batch's own."""
    differs = 0
    for trial in range(6):
        stored, batch = some_batch(10, (0, 1, 2), seed=trial), some_batch(4, (0, 1), seed=50 + trial)
        learner = full(stored, net=normed_net(4, 4, seed=trial), per_class=9, replay=3)
        for i in range(10):
            learner.net(some_images(20, seed=i) / 255 * 0.3)  # moves the running statistics away from the samples'
        with torch.no_grad():
            outcomes = []
            for mode in (False, True):
                net = copy.deepcopy(learner.net).train(mode)
                against = values(points_of(batch, net.body), points_of(stored, net.body), 3)
                outcomes.append(best({i: -mean(column(against, i)) for i in range(10)}, 3))
        found = frozenset(slot_list(learner.retrieve(batch)))
        assert found in outcomes[0]
        differs += found not in outcomes[1]
    assert differs


def test_looking_leaves_no_trace_and_sees_each_image_once() -> None:
    """Weights, gradients, running statistics and mode are the same bits as before."""
    stored, batch = some_batch(12, SEEN, seed=5), some_batch(4, SEEN)
    learner = full(stored, net=normed_net(8, 4), per_class=2, replay=4, augment="digits")
    learner.step(learner.loss(batch, learner.memory.sample(4, learner.rng)))
    weights = copied(learner.net)
    slopes = held_gradients(learner.net)
    passed = passes_of(learner.net.body)
    for look in (learner.retrieve, learner.remember):
        passed.clear()
        look(batch)
        assert 4 < sum(passed) <= 16
        assert_same_bits(copied(learner.net), weights)
        assert_same_bits(held_gradients(learner.net), slopes)
        assert all(module.training for module in learner.modules())


# The loss.


def test_new_and_replayed_images_share_one_pass_unless_told_otherwise() -> None:
    config = ASERConfig()
    assert (config.forward, config.neighbours, config.per_class, config.combine) == ("joint", 3, 9, "mean")
    batch, replay = some_batch(6, SEEN), some_batch(4, SEEN, seed=1)
    variants: list[dict[str, Any]] = [{}, {"forward": "separate"}, {"combine": "sum"}]
    for settings in variants:
        ours = make(ASER, normed_net(8, 4), **settings)
        theirs = make(ER, normed_net(8, 4), **{"forward": "joint", **settings})
        for learner in (ours, theirs):
            learner.begin_task(Task(0, SEEN))
        losses = [learner.loss(batch, replay) for learner in (ours, theirs)]
        torch.testing.assert_close(*losses)
        assert_close(gradients(ours, losses[0]), gradients(theirs, losses[1]))
        assert passes_counted(ours.net) == passes_counted(theirs.net)


def test_while_the_memory_holds_the_whole_past_aser_is_er() -> None:
    settings: dict[str, Any] = {"memory": 40, "replay": 5, "augment": "digits", "lr": 0.2}
    ours, theirs = make(ASER, normed_net(8, 4), **settings), make(ER, normed_net(8, 4), forward="joint", **settings)
    for i in range(10):
        batch = some_batch(4, SEEN, seed=i)
        torch.testing.assert_close(ours.observe(batch), theirs.observe(batch))
    assert_same_bits(copied(ours.net), copied(theirs.net))
    for name in ("x", "y"):
        assert torch.equal(ours.memory.field(name), theirs.memory.field(name))
    assert torch.equal(ours.rng.get_state(), theirs.rng.get_state())


# Streams that are not as one would like.


@pytest.mark.parametrize("memory", [1, 2, 3])
def test_memories_too_small_for_the_classes_and_classes_that_come_again_are_learned(memory: int) -> None:
    """With one judge of each class: samples compete here, which they do not in the contract's small memories."""
    learner = make(ASER, normed_net(8, 6), memory=memory, replay=2, per_class=1, augment="digits")
    for t, classes in enumerate([(0, 1), (2, 3), (4, 5)]):
        learner.begin_task(Task(t, classes))
        for i in range(5):
            assert learner.observe(some_batch(4, classes, seed=10 * t + i)).isfinite()
            assert len(learner.memory) == memory
        learner.end_task()
    lost = set(range(6)) - set(learner.memory.field("y").tolist())
    assert lost
    for i in range(5):
        assert learner.observe(some_batch(4, (4, *lost), seed=100 + i)).isfinite()
    assert_finite(learner.net)


def test_growing_in_mid_stream_goes_on_learning_and_counts_the_new_classes() -> None:
    learner = make(ASER, plain_net(8, 4), replay=3, memory=12, per_class=2)
    observe_all(learner, [some_batch(4, SEEN, seed=i) for i in range(5)])
    learner.grow(6)
    before = learner.net.head.weight.detach().clone()
    batches = [some_batch(6, (4, 5), seed=i) for i in range(40)]
    for batch in batches:
        batch.x = batch.x // 4 + 128 * (batch.y == 4).to(torch.uint8)[:, None, None, None]  # something to learn
    losses = [learner.observe(batch).item() for batch in batches]
    assert losses[-1] < losses[0]
    assert (learner.net.head.weight.detach() != before).any(dim=1).all()
    assert set(learner.memory.field("y").tolist()) & {4, 5}
    stored, batch = labelled([0, 1, 0, 1, 0, 1], seed=31), some_batch(3, (0, 1), seed=32)
    learner = full(stored, net=pixel_net(2), classes=(0, 1), per_class=1)
    learner.grow(4)
    assert fits(updated(learner, stored, batch, 100), updates(stored, batch, 3, 1, 4))


def test_features_are_computed_for_no_more_than_a_chunk_at_once_and_chunks_change_no_value() -> None:
    """70 candidates, 50 judges and 9 new samples: 129 images in chunks of 64."""
    learner = aser(plain_net(6, 4))
    candidates, judges, batch = (some_batch(n, SEEN, seed=n) for n in (70, 50, 9))
    sizes = passes_of(learner.net.body)
    values = learner.values(70, slice(70, None), candidates, judges, batch)
    assert (learner.chunk, sizes) == (64, [64, 64, 1])
    with torch.no_grad():
        z = learner.net.body(torch.cat([candidates.x, judges.x, batch.x]) / 255).double()
    same = torch.cat([judges.y, batch.y])[:, None] == candidates.y
    expected = knn_shapley((z[70:, None] - z[None, :70]).norm(dim=2), same, learner.config.neighbours)
    torch.testing.assert_close(values.double(), expected)


@pytest.mark.parametrize("counts", [(300, 300, 300), (900, 1, 7), (20, 600, 3), (4, 4, 4)])
def test_of_a_large_memory_the_same_samples_are_drawn_as_by_sorting_all_of_it(
    counts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By definition: in a random order of all slots, those before which n_s of their class come, and so on."""
    y = torch.arange(3).repeat_interleave(torch.tensor(counts))[torch.randperm(sum(counts), generator=rng(3))]
    learner = full(labelled(y.tolist()), classes=(0, 1, 2), per_class=4)
    read: list[Any] = []
    plain = learner.memory.read

    def noted(slots: Tensor) -> Batch:
        read.append(slots.tolist())
        return plain(slots)

    monkeypatch.setattr(learner.memory, "read", noted)
    for seed in range(5):
        chance = rng(seed)
        learner.rng.manual_seed(seed)
        chance.set_state(learner.rng.get_state())
        learner.retrieve(labelled([0, 1]))
        learner.replace(labelled([2, 2]))
        expected = []
        for bounds in ((0, 4, 8), (0, 4, 10_000)):
            slots = torch.randperm(len(y), generator=chance).tolist()
            labels, met = y.tolist(), Counter[int]()
            rank = []
            for slot in slots:
                rank.append(met[labels[slot]])
                met[labels[slot]] += 1
            for low, high in pairwise(bounds):
                expected.append([slot for slot, r in zip(slots, rank, strict=True) if low <= r < high])
        if rest := expected[3]:
            chosen = torch.randperm(len(rest), generator=chance)[: 4 * learner.problem.n_classes]
            expected[3] = torch.tensor(rest)[chosen].tolist()
        else:
            del expected[2:]
        assert read == expected
        read.clear()
        y = learner.memory.field("y").clone()
