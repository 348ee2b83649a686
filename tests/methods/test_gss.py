"""GSS (greedy): keep samples whose gradients point away from those of the memory; replay as ER."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import (
    assert_close,
    assert_same_bits,
    copied,
    everything,
    held_gradients,
    make,
    normed_net,
    plain_net,
    slot_list,
    some_batch,
    some_images,
    state_of,
)
from method_helpers import SCOPE, SEEN
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net
from onepass.methods.er import ER
from onepass.methods.gss import GSS, GSSConfig


def gss(net: Net | None = None, classes: Sequence[int] = SEEN, **settings: Any) -> GSS:
    learner = make(GSS, plain_net(8, 6) if net is None else net, **settings)
    learner.begin_task(Task(0, tuple(classes)))
    learner.train()
    return learner


def store(learner: GSS, batch: Batch, scores: Sequence[float] | float) -> None:
    """Make these samples the memory's."""
    kept = Batch(batch.x, batch.y)
    kept.keep(score=torch.as_tensor(scores, dtype=torch.float32).expand(len(batch)))
    learner.memory.write(torch.arange(len(batch)), kept)


def slope(learner: GSS, batch: Batch, rows: Sequence[int], classes: Sequence[int] | None = None) -> Tensor:
    """The gradient of the mean loss of some rows for all parameters in one vector, in evaluation mode."""
    net, scope = copy.deepcopy(learner.net).eval(), sorted(learner.seen) if classes is None else list(classes)
    loss = torch.zeros(())
    for i in rows:
        [logits] = net(batch.x[i : i + 1] / 255)
        loss = loss + torch.logsumexp(logits[scope], 0) - logits[batch.y[i]]
    found = torch.autograd.grad(loss / len(rows), list(net.parameters()))
    return torch.cat([g.flatten() for g in found]).double()


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b) / max(float(a.norm() * b.norm()), 1e-8)


def similarities(
    learner: GSS, batch: Batch, stored: Batch, subsets: Sequence[Sequence[int]], classes: Sequence[int] | None = None
) -> list[float]:
    """For each sample the largest cosine of its gradient with that of a subset of the stored ones."""
    references = [slope(learner, stored, subset, classes) for subset in subsets]
    return [
        max(cosine(slope(learner, batch, [i], classes), reference) for reference in references)
        for i in range(len(batch))
    ]


def scores_of(learner: GSS, start: int = 0) -> list[float]:
    return everything(learner).extra["score"][start:].tolist()


def opposed(n: int) -> tuple[Batch, Batch]:
    """Nearly one image, as class 0 and as class 1: of two classes these have nearly opposite gradients, c = -1."""
    x = some_images(1).repeat(n, 1, 1, 1)
    x.flatten(1)[range(n), range(n)] ^= 1  # so that rows can be told apart
    return Batch(x, torch.zeros(n, dtype=torch.int64)), Batch(x, torch.ones(n, dtype=torch.int64))


def two_classes(**settings: Any) -> GSS:
    return gss(plain_net(8, 2), classes=(0, 1), **settings)


def replaced(learner: GSS, before: Batch, batch: Batch) -> dict[int, int]:
    """Slot -> row of the batch that took it. Image, label and score of a slot must have come together."""
    after = everything(learner)
    assert len(after) == len(before)
    found = {}
    for slot in range(len(after)):
        same = torch.equal(after.x[slot], before.x[slot]) and after.y[slot] == before.y[slot]
        if same:
            assert after.extra["score"][slot] == before.extra["score"][slot]
            continue
        [row] = [i for i in range(len(batch)) if torch.equal(after.x[slot], batch.x[i]) and after.y[slot] == batch.y[i]]
        found[slot] = row
    assert len(set(found.values())) == len(found)
    return found


# While there is room.


def test_the_first_batch_is_stored_with_a_score_of_one_tenth() -> None:
    learner = gss(memory=10)
    batch = some_batch(4, SEEN)
    learner.observe(batch)
    assert torch.equal(everything(learner).x, batch.x)
    assert torch.equal(everything(learner).y, batch.y)
    assert scores_of(learner) == pytest.approx([0.1] * 4)
    assert learner.memory.field("score").dtype == torch.float32
    assert learner.memory.field("score").shape == (10,)


@pytest.mark.parametrize("scope", ["seen", "all"])
@pytest.mark.parametrize("kind", ["plain", "normed"])
def test_a_score_is_the_cosine_with_the_gradient_of_the_whole_memory_if_one_subset_holds_it(
    kind: str, scope: str
) -> None:
    """Found with the weights after the step, in evaluation mode, of raw images, over the classes in scope."""
    net = plain_net(8, 6) if kind == "plain" else normed_net(8, 6)
    learner = gss(net, memory=20, lr=0.5, subset=10, scope=scope, augment="digits")
    first, second = some_batch(5, SEEN), some_batch(4, SEEN, seed=1)
    learner.observe(first)
    old = copy.deepcopy(learner)
    learner.observe(second)
    expected = similarities(learner, second, first, [range(5)], SCOPE[scope])
    assert scores_of(learner, 5) == pytest.approx(expected, abs=2e-5)
    assert scores_of(learner)[:5] == pytest.approx([0.1] * 5)
    others = SCOPE["all" if scope == "seen" else "seen"]
    for wrong in (
        similarities(old, second, first, [range(5)], SCOPE[scope]),  # with the weights before the step
        similarities(learner, second, first, [range(5)], others),
    ):
        assert max(abs(a - b) for a, b in zip(wrong, expected, strict=True)) > 1e-3


def test_a_score_is_the_largest_cosine_with_any_stored_sample_if_subsets_are_single() -> None:
    learner = gss(memory=20, subset=1, subsets=10)
    first, second = some_batch(5, (0, 1)), some_batch(4, SEEN, seed=1)
    store(learner, first, 0.1)
    learner.remember(second)
    expected = similarities(learner, second, first, [[i] for i in range(5)])
    assert scores_of(learner, 5) == pytest.approx(expected, abs=2e-5)
    signed = [[cosine(slope(learner, second, [i]), slope(learner, first, [j])) for j in range(5)] for i in range(4)]
    assert min(map(min, signed)) < 0  # so that an absolute value, a mean or a minimum would have been seen
    for wrong in ([max(map(abs, row)) for row in signed], [sum(row) / 5 for row in signed], list(map(min, signed))):
        assert wrong != pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("filled", "subset", "subsets", "partitions"),
    [
        (4, 2, 9, [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))]),
        (5, 3, 9, [(three,) for three in combinations(range(5), 3)]),  # a second one would not be disjoint
        (4, 2, 1, [(two,) for two in combinations(range(4), 2)]),
        (3, 10, 10, [((0, 1, 2),)]),
    ],
)
def test_subsets_are_disjoint_random_and_the_same_for_all_samples_of_a_batch(
    filled: int, subset: int, subsets: int, partitions: list[tuple[tuple[int, ...], ...]]
) -> None:
    """min(subsets, filled // size) of them: the scores of a batch are those of one way to draw them."""
    learner = gss(memory=20, subset=subset, subsets=subsets)
    first, second = some_batch(filled, SEEN), some_batch(3, SEEN, seed=1)
    ways = [similarities(learner, second, first, partition) for partition in partitions]
    assert len({tuple(round(value, 4) for value in way) for way in ways}) == len(ways)
    drawn = set()
    for _ in range(20):
        store(learner, first, 0.1)
        learner.memory.filled = filled
        learner.remember(second)
        scores = scores_of(learner, filled)
        [way] = [i for i, way in enumerate(ways) if scores == pytest.approx(way, abs=2e-5)]
        drawn.add(way)
    assert len(drawn) > len(ways) / 2


@pytest.mark.parametrize(("stored", "size"), [(0, 9), (3, 9), (5, 4)])
def test_only_the_first_samples_for_which_there_is_room_are_stored(stored: int, size: int) -> None:
    learner = gss(memory=7)
    first, second = some_batch(stored, SEEN, seed=5), some_batch(size, SEEN, seed=1)
    if stored:
        store(learner, first, 0.3)
    learner.remember(second)
    after = everything(learner)
    assert len(after) == 7
    assert torch.equal(after.x, torch.cat([first.x, second.x[: 7 - stored]]))
    assert torch.equal(after.y, torch.cat([first.y, second.y[: 7 - stored]]))
    if stored:
        assert scores_of(learner)[:stored] == pytest.approx([0.3] * stored)
        expected = similarities(learner, second, first, [range(stored)])[: 7 - stored]
        assert scores_of(learner, stored) == pytest.approx(expected, abs=2e-5)
    else:
        assert scores_of(learner) == pytest.approx([0.1] * 7)


# When the memory is full.


def test_a_batch_that_is_in_the_memory_already_changes_nothing() -> None:
    learner = gss(memory=6, subset=6)
    batch = some_batch(6, SEEN)
    store(learner, batch, [0.5, -0.5, 0.9, 0.0, 0.3, 1.0])
    before = everything(learner)
    for _ in range(5):
        learner.remember(batch)
    assert state_of(vars(everything(learner))) == state_of(vars(before))


def test_slots_of_score_one_are_all_taken_by_samples_that_point_the_other_way() -> None:
    """C = 1 and c = -1: the chance is one. As many distinct slots as there are samples are replaced."""
    learner, taken = two_classes(memory=6), Counter[int]()
    old, new = opposed(6)
    new = new[torch.tensor([4, 0, 2])]
    expected = similarities(learner, new, old, [range(6)])
    assert max(expected) < -0.999
    for _ in range(12):
        store(learner, old, 1.0)
        before = everything(learner)
        learner.remember(new)
        found = replaced(learner, before, new)
        assert sorted(found.values()) == [0, 1, 2]
        assert [scores_of(learner)[slot] for slot in found] == pytest.approx([expected[i] for i in found.values()])
        taken.update(found)
    assert set(taken) == set(range(6))  # of equal scores every slot is drawn


def test_slots_of_score_minus_one_are_never_taken() -> None:
    """The chance of a replacement is (C + 1) / ((C + 1) + (c + 1)), and not its complement."""
    learner = two_classes(memory=6)
    old = Batch(some_images(6), torch.zeros(6, dtype=torch.int64))
    new = Batch(some_images(3, seed=1), torch.ones(3, dtype=torch.int64))
    assert all(-0.99 < c < 0 for c in similarities(learner, new, old, [range(6)]))
    store(learner, old, -1.0)
    before = everything(learner)
    for _ in range(10):
        learner.remember(new)
    assert replaced(learner, before, new) == {}


def test_every_sample_that_gets_in_brings_its_own_score() -> None:
    learner, entered = two_classes(memory=6), 0
    old = Batch(some_images(6), torch.zeros(6, dtype=torch.int64))
    new = Batch(some_images(4, seed=1), torch.ones(4, dtype=torch.int64))
    expected = similarities(learner, new, old, [range(6)])
    assert min(abs(a - b) for a, b in combinations(expected, 2)) > 1e-3
    for _ in range(5):
        store(learner, old, 1.0)
        before = everything(learner)
        learner.remember(new)
        found = replaced(learner, before, new)
        entered += len(found)
        for slot, row in found.items():
            assert scores_of(learner)[slot] == pytest.approx(expected[row], abs=2e-5)
    assert entered > 5


def test_the_chance_of_a_slot_goes_by_its_own_score() -> None:
    """Both slots are up: the one of score 1 is taken, the one of score -1 is not."""
    learner = two_classes(memory=2)
    old, new = opposed(2)
    for scores, taken in (([1.0, -1.0], 0), ([-1.0, 1.0], 1)):
        for _ in range(3):
            store(learner, old, scores)
            before = everything(learner)
            learner.remember(new)
            assert set(replaced(learner, before, new)) == {taken}


@pytest.mark.parametrize("ratio", [3.0, 1 / 3])
def test_the_chance_of_a_replacement_is_the_share_of_the_stored_score(ratio: float) -> None:
    learner = two_classes(memory=5)
    old = Batch(some_images(5), torch.zeros(5, dtype=torch.int64))
    new = Batch(some_images(1, seed=2), torch.ones(1, dtype=torch.int64))
    [c] = similarities(learner, new, old, [range(5)])
    assert -0.95 < c < -0.4
    stored, hits, trials = ratio * (c + 1) - 1, 0, 60
    for _ in range(trials):
        store(learner, old, stored)
        before = everything(learner)
        learner.remember(new)
        found = replaced(learner, before, new)
        hits += len(found)
        assert all(scores_of(learner)[slot] == pytest.approx(c, abs=2e-5) for slot in found)
    assert hits / trials == pytest.approx(ratio / (1 + ratio), abs=0.22)  # four standard deviations


def test_slots_are_drawn_by_how_much_their_score_exceeds_the_smallest() -> None:
    learner, taken, trials = two_classes(memory=3), Counter[int](), 60
    old, new = opposed(3)
    new = new[torch.tensor([1])]
    for _ in range(trials):
        store(learner, old, [0.25, 0.0, 1.0])
        before = everything(learner)
        learner.remember(new)
        [slot] = replaced(learner, before, new)
        taken[slot] += 1
    assert taken[1] == 0
    assert taken[2] / trials == pytest.approx(0.8, abs=0.2)  # four standard deviations


def test_the_slot_of_the_smallest_score_is_spared_while_others_are_left() -> None:
    learner = two_classes(memory=4)
    old, new = opposed(4)
    for _ in range(10):
        store(learner, old, [1.0, 0.9, 0.2, 1.0])
        before = everything(learner)
        learner.remember(new[torch.tensor([0, 1, 3])])
        assert set(replaced(learner, before, new)) == {0, 1, 3}


def test_as_many_samples_as_slots_take_them_all() -> None:
    """Slots whose weight is zero are drawn last, and none of them twice."""
    learner = two_classes(memory=4)
    old, new = opposed(4)
    for scores in ([1.0, 1.0, 0.2, 1.0], [0.2, 0.2, 0.2, 1.0], [0.2, 0.2, 0.2, 0.2]):
        store(learner, old, scores)
        before = everything(learner)
        learner.remember(new)
        assert set(replaced(learner, before, new)) == {0, 1, 2, 3}


@pytest.mark.parametrize(("lean", "stored"), [(2.0, True), (-2.0, False)])
def test_whether_anything_is_stored_depends_on_the_gradient_of_the_whole_batch(lean: float, stored: bool) -> None:
    """One sample points along, one against: what counts is which is longer, not their cosines."""
    learner = two_classes(memory=4)
    with torch.no_grad():
        learner.net.head.bias.copy_(torch.tensor([lean, 0.0]))
        learner.net.head.weight.mul_(0.01)
    old, new = opposed(4)
    batch = Batch(torch.cat([old.x[:1], new.x[1:2]]), torch.tensor([0, 1]))  # of class 0 as all stored, and of class 1
    assert similarities(learner, batch, old, [range(4)]) == pytest.approx([1, -1], abs=1e-3)
    whole = cosine(slope(learner, batch, [0, 1]), slope(learner, old, range(4)))
    assert whole == pytest.approx(-1 if stored else 1, abs=1e-3)
    store(learner, old, 1.0)
    for slot in range(4):  # so that the sample of class 0 is none of the stored ones
        learner.memory.field("x")[slot, 0, 3, 3] ^= 2
    before = everything(learner)
    for _ in range(6):
        learner.remember(batch)
    assert bool(replaced(learner, before, batch)) == stored


def test_a_batch_larger_than_the_memory_takes_no_more_than_its_slots() -> None:
    learner = two_classes(memory=2)
    old, new = opposed(5)
    store(learner, old[torch.tensor([0, 1])], 1.0)
    before = everything(learner)
    learner.remember(new)
    found = replaced(learner, before, new)
    assert set(found) == {0, 1}
    assert len(learner.memory) == 2


def test_two_cosines_of_minus_one_are_no_division_by_zero() -> None:
    learner = two_classes(memory=4)
    x = some_images(1).repeat(4, 1, 1, 1)
    store(learner, Batch(x, torch.zeros(4, dtype=torch.int64)), -1.0)
    for _ in range(5):
        learner.remember(Batch(x, torch.ones(4, dtype=torch.int64)))
    assert everything(learner).extra["score"].isfinite().all()


def test_samples_without_a_gradient_score_zero() -> None:
    """Of one class there is nothing to learn: a gradient of zero is similar to nothing, and no NaN."""
    learner = gss(classes=(2,), memory=6)
    for i in range(3):
        assert learner.observe(some_batch(3, (2,), seed=i)).item() == 0
    assert scores_of(learner) == pytest.approx([0.1] * 3 + [0.0] * 3)
    assert torch.equal(everything(learner).x, torch.cat([some_images(3, seed=i) for i in range(2)]))


# What must not move.


@pytest.mark.parametrize("full", [False, True])
def test_storing_leaves_no_trace_in_the_network(full: bool) -> None:
    """Weights, gradients, running statistics, mode and optimizer are the same bits as before."""
    learner = gss(normed_net(8, 2), classes=(0, 1), memory=4 if full else 20, subset=2)
    old, new = opposed(4)
    learner.observe(some_batch(4, (0, 1)))
    store(learner, old, 1.0)
    learner.step(learner.loss(new, everything(learner)))
    weights, optimizer = copied(learner.net), state_of(learner.optimizer.state_dict())
    slopes = held_gradients(learner.net)
    assert slopes
    learner.remember(new)
    assert_same_bits(copied(learner.net), weights)
    assert_same_bits(held_gradients(learner.net), slopes)
    assert state_of(learner.optimizer.state_dict()) == optimizer
    assert all(module.training for module in learner.modules())
    assert all(p.requires_grad for p in learner.net.parameters())


# Where it is ER.


@pytest.mark.parametrize("forward", ["separate", "joint"])
@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_gss_learns_as_er_does(combine: str, forward: str) -> None:
    """With room for all, and all replayed, weights and memory are those of ER."""
    settings: dict[str, Any] = {"memory": 50, "replay": 50, "combine": combine, "forward": forward}
    ours, theirs = (make(cls, normed_net(8, 4), **settings) for cls in (GSS, ER))
    for i in range(6):
        batch = some_batch(4, SEEN, seed=i)
        torch.testing.assert_close(ours.observe(batch), theirs.observe(batch), rtol=1e-4, atol=1e-5)
    assert_close(copied(ours.net), copied(theirs.net), rtol=1e-3, atol=1e-4)
    for name in ("x", "y"):
        assert torch.equal(ours.memory.field(name)[:24], theirs.memory.field(name)[:24])


def test_replay_is_a_uniform_draw_from_what_is_stored() -> None:
    ours, theirs = make(GSS, plain_net(8, 4), memory=20, replay=3), make(ER, plain_net(8, 4), memory=20, replay=3)
    store(ours, some_batch(20, SEEN), 0.1)
    theirs.memory.write(torch.arange(20), some_batch(20, SEEN))
    theirs.rng.set_state(ours.rng.get_state())
    batch = some_batch(4, SEEN, seed=1)
    for _ in range(5):
        assert slot_list(ours.retrieve(batch)) == slot_list(theirs.retrieve(batch))


def test_the_published_values_are_the_defaults() -> None:
    config = GSSConfig()
    assert (config.subsets, config.subset, config.forward, config.combine) == (10, 10, "separate", "mean")


# Streams that are not as one would like.


def test_the_memory_never_holds_a_sample_twice_or_with_another_label() -> None:
    """Over a long stream of tasks, in which samples are in fact replaced."""
    learner = make(GSS, plain_net(8, 6), memory=8, replay=4, subset=2, lr=0.3)
    label, first = {}, None
    for t, classes in enumerate([(0, 1), (2, 3), (4, 5)]):
        learner.begin_task(Task(t, classes))
        for i in range(8):
            batch = some_batch(3, classes, seed=20 * t + i)
            label.update({image.numpy().tobytes(): y for image, y in zip(batch.x, batch.y.tolist(), strict=True)})
            learner.observe(batch)
        stored = [image.numpy().tobytes() for image in learner.memory.field("x")]
        first = first or set(stored)
        assert len(set(stored)) == len(learner.memory) == 8
        assert [label[image] for image in stored] == learner.memory.field("y").tolist()
        assert learner.memory.field("score").abs().max() <= 1.001  # cosines; also false of NaN
    assert set(stored) != first
