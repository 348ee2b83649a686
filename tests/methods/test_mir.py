"""MIR: of many candidates, replay those whose loss a step on the new batch alone would raise most."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import (
    assert_close,
    assert_same_bits,
    cloned,
    copied,
    everything,
    gradients,
    held_gradients,
    make,
    normed_net,
    passes_counted,
    plain_net,
    some_batch,
)
from method_helpers import (
    SCOPE,
    SEEN,
    WatchedChoice,
    assert_as_stored,
    descend,
    descended,
    entropies,
    hold_gradient,
    largest,
    parameters_of,
    slots,
    slots_at,
    united,
)
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net
from onepass.methods.er import ER
from onepass.methods.er_dvc import ERDVC
from onepass.methods.finetune import FineTune
from onepass.methods.mir import MIR, MIRConfig


class Watched(WatchedChoice, MIR):
    """Remembers what it chose, and from what."""


class WatchedDVC(WatchedChoice, ERDVC):
    """The same of ER-DVC, which draws and picks by MIR's code."""


BOTH = pytest.mark.parametrize("cls", [Watched, WatchedDVC], ids=["mir", "er-dvc"])


def mir(
    net: Net | None = None, stored: int = 20, cls: type[Watched | WatchedDVC] = Watched, **settings: Any
) -> Watched | WatchedDVC:
    """A learner that has met classes 0 to 3, with some samples of them stored."""
    learner = make(cls, plain_net(8, 6) if net is None else net, **{"lr": 0.5, "memory": 40, **settings})
    learner.begin_task(Task(0, SEEN))
    learner.memory.write(learner.memory.reservoir(stored), some_batch(stored, SEEN, seed=77))
    return learner


def losses_of(net: Net, batch: Batch, classes: Sequence[int]) -> Tensor:
    """The loss of each image when the network sees the whole batch."""
    return entropies(net(batch.x / 255), batch.y, classes)


def stepped(net: Net, batch: Batch, lr: float, classes: Sequence[int]) -> Net:
    """A copy that has really taken the step on the new batch."""
    other = copy.deepcopy(net)
    descend(other.parameters(), losses_of(other, batch, classes).mean(), lr)
    return other


def one_by_one(net: Net, pool: Batch, classes: Sequence[int]) -> Tensor:
    """The losses of a pool whose images do not know of each other."""
    with torch.no_grad():
        return torch.cat([losses_of(net, pool[torch.tensor([i])], classes) for i in range(len(pool))])


# The score.


@pytest.mark.parametrize("scope", ["seen", "all"])
def test_the_chosen_are_those_whose_loss_grows_most_when_a_copy_really_steps(scope: str) -> None:
    wrong: dict[str, int] = dict.fromkeys(("smallest", "after", "before", "size", "ascent", "other scope"), 0)
    trials = 6
    for trial in range(trials):
        learner = mir(plain_net(8, 6, seed=trial), replay=5, scope=scope)
        with torch.no_grad():
            learner.net.head.bias[4:] += 2  # what the unseen outputs take away must matter
        batch, pool = some_batch(4, (0, 3), seed=trial), everything(learner)
        before, after = {}, {}
        for name, classes in SCOPE.items():
            before[name] = one_by_one(learner.net, pool, classes)
            after[name] = one_by_one(stepped(learner.net, batch, 0.5, classes), pool, classes)
        other = "all" if scope == "seen" else "seen"
        growth = after[scope] - before[scope]
        uphill = one_by_one(stepped(learner.net, batch, -0.5, SCOPE[scope]), pool, SCOPE[scope]) - before[scope]
        hold_gradient(learner, batch)
        found = slots(learner.choose(pool))
        assert found == largest(growth, 5)
        readings = (-growth, after[scope], before[scope], growth.abs(), uphill, after[other] - before[other])
        for name, reading in zip(wrong, readings, strict=True):
            wrong[name] += found != set(reading.argsort(descending=True)[:5].tolist())
    assert all(count > trials / 2 for count in wrong.values()), wrong  # so that a wrong score would have been seen


def test_a_small_step_ranks_by_minus_the_product_of_the_two_gradients() -> None:
    """s_i / lr goes to -<grad CE_i, g>: asked for 1, 2, 3, ... samples, MIR tells its whole ranking."""
    batch = some_batch(4, (0, 3))
    learner = mir(stored=9)
    pool = everything(learner)

    def flat(loss: Tensor) -> Tensor:
        return torch.cat([g.flatten() for g in gradients(learner, loss).values()])

    new = flat(losses_of(learner.net, batch, SEEN).mean())
    losses = losses_of(learner.net, pool, SEEN)
    slopes = torch.stack([-(flat(loss) @ new) for loss in losses])
    assert slopes.min() < 0 < slopes.max()
    for n in range(1, 10):
        learner = mir(stored=9, lr=0.003, replay=n)
        hold_gradient(learner, batch)
        assert slots(learner.choose(pool)) == set(slopes.argsort(descending=True)[:n].tolist())


def test_samples_whose_loss_would_fall_are_still_replayed() -> None:
    learner = mir(replay=4)
    batch = everything(learner)  # a step on these very samples lowers their losses
    fall = one_by_one(stepped(learner.net, batch, 0.5, SEEN), batch, SEEN) - one_by_one(learner.net, batch, SEEN)
    batch = batch[fall.argsort()[:12]]
    hold_gradient(learner, batch)
    pool = batch[torch.arange(8)]
    growth = one_by_one(stepped(learner.net, batch, 0.5, SEEN), pool, SEEN) - one_by_one(learner.net, pool, SEEN)
    assert growth.max() < 0
    assert slots(learner.choose(pool)) == slots_at(pool, largest(growth, 4))


def test_candidates_are_normalised_by_their_own_batch_as_in_training() -> None:
    differs = 0
    for trial in range(6):
        learner = mir(normed_net(8, 6, seed=trial), replay=5)
        batch, pool = some_batch(4, (0, 3), seed=trial), everything(learner)
        after = stepped(learner.net, batch, 0.5, SEEN)
        with torch.no_grad():
            growth = losses_of(after, pool, SEEN) - losses_of(copy.deepcopy(learner.net), pool, SEEN)
            still = losses_of(after.eval(), pool, SEEN) - losses_of(copy.deepcopy(learner.net).eval(), pool, SEEN)
        hold_gradient(learner, batch)
        found = slots(learner.choose(pool))
        assert found == largest(growth, 5)
        differs += found != set(still.argsort(descending=True)[:5].tolist())
    assert differs > 2  # in evaluation mode others would have been chosen


def test_looking_ahead_leaves_no_trace() -> None:
    """Weights, gradients, running statistics, mode, draws and memory are the same bits as before."""
    learner = mir(normed_net(8, 6), augment="digits", replay=5)
    hold_gradient(learner, some_batch(4, (0, 3)))
    weights, slopes = copied(learner.net), held_gradients(learner.net)
    drawn, stored = learner.rng.get_state(), learner.memory.field("x").clone()
    assert len(learner.choose(everything(learner))) == 5
    assert_same_bits(copied(learner.net), weights)
    assert_same_bits(held_gradients(learner.net), slopes)
    assert torch.equal(learner.rng.get_state(), drawn)
    assert torch.equal(learner.memory.field("x")[:20], stored[:20])
    assert all(module.training for module in learner.modules())


# Candidates.


@BOTH
@pytest.mark.parametrize(("stored", "candidates", "n"), [(20, 7, 7), (20, 50, 20), (3, 7, 3), (0, 7, 0)])
def test_as_many_candidates_are_drawn_as_asked_for_or_as_there_are(
    stored: int, candidates: int, n: int, cls: type[Watched]
) -> None:
    learner = mir(cls=cls, stored=stored, candidates=candidates, replay=2)
    pool = learner.retrieve(some_batch(4, (0, 3)))
    assert len(pool) == n == len(slots(pool))
    assert slots(pool) <= set(range(stored))
    if n:
        assert_as_stored(pool, learner)


def test_every_stored_sample_may_be_a_candidate() -> None:
    learner = mir(candidates=5)
    found = {slot for _ in range(40) for slot in slots(learner.retrieve(some_batch(4, (0, 3))))}
    assert found == set(range(20))


def test_the_published_number_of_candidates_is_the_default() -> None:
    assert (MIRConfig().candidates, MIRConfig().replay, MIRConfig().combine) == (50, 10, "mean")


@BOTH
@pytest.mark.parametrize(("filled", "replay", "n"), [(8, 5, 5), (5, 5, 5), (3, 5, 3), (1, 5, 1)])
def test_no_more_is_replayed_than_there_are_candidates(filled: int, replay: int, n: int, cls: type[Watched]) -> None:
    learner = mir(cls=cls, stored=filled, replay=replay)
    learner.observe(some_batch(4, (0, 3)))
    assert len(slots(learner.spied)) == n


@BOTH
def test_chosen_rows_keep_images_labels_and_slots_together(cls: type[Watched]) -> None:
    learner = mir(cls=cls, replay=5)
    hold_gradient(learner, some_batch(4, (0, 3)))
    order = torch.randperm(20, generator=torch.Generator().manual_seed(3))
    picked = learner.choose(learner.memory.read(order))
    assert_as_stored(picked, learner)


# The step.


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_a_step_looks_ahead_by_the_whole_new_gradient_and_then_learns_new_and_chosen(combine: str) -> None:
    """The look-ahead is the same under both: a mean must not halve it, nor an earlier gradient remain in it."""
    halved = 0
    for trial in range(6):
        learner = mir(plain_net(8, 6, seed=trial), lr=3.0, candidates=20, replay=3, combine=combine)
        learner.observe(some_batch(4, (1, 2), seed=50 + trial))  # leaves a gradient behind
        batch, net = some_batch(6, (0, 3), seed=trial), copy.deepcopy(learner.net)
        loss = learner.observe(batch)
        pool, picked = learner.spied_pool, learner.spied
        assert pool is not None
        assert picked is not None
        growth, half = (
            one_by_one(stepped(net, batch, lr, SEEN), pool, SEEN) - one_by_one(net, pool, SEEN) for lr in (3.0, 2.0)
        )
        assert slots(picked) == slots_at(pool, largest(growth, 3))
        halved += slots(picked) != slots_at(pool, half.argsort(descending=True)[:3].tolist())
        new, old = (losses_of(net, part, SEEN).mean() for part in (batch, picked))
        expected = united(new, old, (6, 3), combine)
        torch.testing.assert_close(loss, expected.detach())
        moved = descended(parameters_of(net=net), expected, 3.0)
        assert_close(cloned(parameters_of(net=learner.net)), moved, rtol=1e-4, atol=1e-5)
    assert halved  # the share of the new batch (6 of 9) in the look-ahead would have been seen


def test_candidates_are_scored_raw_and_replayed_with_views() -> None:
    """The look-ahead goes by the gradient learned from, which is that of images and views."""
    learner = mir(augment="digits", candidates=20, replay=5)
    batch, net = some_batch(4, (0, 3)), copy.deepcopy(learner.net)
    twin = mir(augment="digits", candidates=20, replay=5)
    learner.observe(batch)
    pool = twin.retrieve(batch)
    [(x, y)] = twin.views(batch)
    assert len(x) == 8
    after = stepped(net, Batch(x * 255, y), 0.5, SEEN)
    growth = one_by_one(after, pool, SEEN) - one_by_one(net, pool, SEEN)
    assert slots(learner.spied) == slots_at(pool, largest(growth, 5))
    assert learner.spied is not None
    [(z, w)] = twin.views(learner.spied)
    assert len(z) == 10
    expected = F.cross_entropy(net(torch.cat([x, z]))[:, :4], torch.cat([y, w]))
    moved = descended(parameters_of(net=net), expected, 0.5)
    assert_close(cloned(parameters_of(net=learner.net)), moved, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize(("candidates", "replay", "memory"), [(5, 5, 30), (50, 20, 20)])
def test_with_nothing_to_choose_from_mir_is_er(combine: str, candidates: int, replay: int, memory: int) -> None:
    """The same draws, weights, running statistics (moved twice a step, new batch first) and memory."""
    settings: dict[str, Any] = {"replay": replay, "memory": memory, "combine": combine, "lr": 0.2}
    ours = make(MIR, normed_net(8, 4), candidates=candidates, **settings)
    theirs = make(ER, normed_net(8, 4), **settings)
    for i in range(10):
        batch = some_batch(4, SEEN, seed=i)
        torch.testing.assert_close(ours.observe(batch), theirs.observe(batch), rtol=1e-4, atol=1e-5)
    assert_close(copied(ours.net), copied(theirs.net), rtol=1e-3, atol=1e-4)
    assert passes_counted(ours.net) == 19
    assert torch.equal(ours.rng.get_state(), theirs.rng.get_state())
    assert torch.equal(ours.memory.field("x")[: len(ours.memory)], theirs.memory.field("x")[: len(theirs.memory)])


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_an_empty_memory_leaves_the_plain_step_of_the_new_batch(combine: str) -> None:
    ours, theirs = make(MIR, normed_net(8, 4), combine=combine), make(FineTune, normed_net(8, 4))
    batch = some_batch(6, SEEN)
    torch.testing.assert_close(ours.observe(batch), theirs.observe(batch))
    assert_close(copied(ours.net), copied(theirs.net))
    assert len(ours.memory) == 6
