"""GMED: before they are replayed, stored images are nudged towards what the next step would harm, and stay nudged."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import (
    PIXELS,
    SHAPE,
    assert_close,
    assert_same_bits,
    cloned,
    copied,
    everything,
    held_gradients,
    make,
    normed_net,
    passes_counted,
    plain_net,
    rng,
    slot_list,
    some_batch,
)
from method_helpers import (
    SCOPE,
    SEEN,
    WatchedChoice,
    descend,
    descended,
    entropy,
    hold_gradient,
    parameters_of,
    united,
)
from onepass.errors import Diverged
from onepass.learner.augment import decode
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net
from onepass.methods.er import ER
from onepass.methods.finetune import FineTune
from onepass.methods.gmed import GMED, GMEDConfig


class Watched(WatchedChoice, GMED):
    """Remembers what it edited, and can refuse a step as one does that diverges."""

    refuse = False

    def update(self, loss: Tensor, optimizer: torch.optim.Optimizer | None = None) -> Tensor:
        if self.refuse:
            raise Diverged("asked to")
        return super().update(loss, optimizer)


def smooth_net(seed: int = 0) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net(nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, 8), nn.Tanh()), 8, 6)


def grey_batch(n: int, classes: Sequence[int], seed: int = 0) -> Batch:
    """Float images far from black and white, so that small edits meet no border."""
    batch = some_batch(n, classes, seed=seed)
    return Batch(0.2 + 0.6 * torch.rand(n, *SHAPE, generator=rng(seed)), batch.y)


def gmed(net: Net | None = None, stored: int = 6, **settings: Any) -> Watched:
    """A learner that has met classes 0 to 3, with some grey samples of them stored."""
    settings = {"lr": 0.5, "memory": 40, "stride": 1.0, **settings}
    learner = make(Watched, smooth_net() if net is None else net, **settings)
    learner.begin_task(Task(0, SEEN))
    if stored:
        batch = grey_batch(stored, SEEN, seed=77)
        batch.keep(edits=torch.zeros(stored, dtype=torch.int64))
        learner.memory.write(learner.memory.reservoir(stored), batch)
    return learner


def stepped(net: Net, batch: Batch, lr: float, classes: Sequence[int] = SEEN) -> Net:
    """A copy that has really taken the step on the new batch."""
    other = copy.deepcopy(net)
    descend(other.parameters(), entropy(other(decode(batch.x)), batch.y, classes), lr)
    return other


def interference(now: Net, after: Net, x: Tensor, y: Tensor, classes: Sequence[int] = SEEN) -> Tensor:
    """d: how much the step would raise the mean loss of these images."""
    return entropy(after(x), y, classes) - entropy(now(x), y, classes)


def directions(now: Net, after: Net, pool: Batch, regular: float, classes: Sequence[int] = SEEN) -> Tensor:
    """The gradient of d - regular * loss for the pixels; nets are copied, so their statistics stay."""
    now, after = copy.deepcopy(now), copy.deepcopy(after)
    x = pool.x.clone().requires_grad_()
    goal = interference(now, after, x, pool.y, classes) - regular * entropy(now(x), pool.y, classes)
    return torch.autograd.grad(goal, x)[0]


# The edit.


@pytest.mark.parametrize("scope", ["seen", "all"])
@pytest.mark.parametrize("regular", [0.0, 0.3, -0.3])
@pytest.mark.parametrize("kind", [smooth_net, lambda: normed_net(8, 6)], ids=["smooth", "normed"])
def test_the_edit_is_a_step_up_the_interference_less_the_loss(kind: Any, regular: float, scope: str) -> None:
    """The second net normalises: the images of the pool by their own statistics, as in training."""
    learner = gmed(kind(), regular=regular, scope=scope)
    with torch.no_grad():
        learner.net.head.bias[4:] += 1  # what the unseen outputs take away must matter
    batch, pool = grey_batch(4, (0, 3)), everything(learner)
    after = stepped(learner.net, batch, 0.5, SCOPE[scope])
    expected = directions(learner.net, after, pool, regular, SCOPE[scope])
    hold_gradient(learner, batch)
    edited = learner.choose(pool)
    torch.testing.assert_close(edited.x - learner.memory.field("x")[:6], expected, rtol=1e-3, atol=1e-6)
    other = [4, 5, *SEEN] if scope == "seen" else SEEN
    readings = {
        "uphill": directions(learner.net, stepped(learner.net, batch, -0.5, SCOPE[scope]), pool, regular, SCOPE[scope]),
        "descent": -expected,
        "other scope": directions(learner.net, after, pool, regular, other),
        "sum over rows": 6 * expected,
    }
    if regular:
        readings["other sign"] = directions(learner.net, after, pool, -regular, SCOPE[scope])
    for name, reading in readings.items():
        assert (reading - expected).abs().max() > 0.05 * expected.abs().max(), name  # it would have been seen


def test_the_edit_agrees_with_finite_differences_of_the_interference() -> None:
    learner = gmed(regular=0.0, stride=2.0)
    batch, pool = grey_batch(4, (0, 3)), everything(learner)
    now, after = copy.deepcopy(learner.net).double(), stepped(learner.net, batch, 0.5).double()
    x = pool.x.double()
    hold_gradient(learner, batch)
    edited = learner.choose(pool).x.double()
    assert edited.min() > 0
    assert edited.max() < 1
    up = (edited - x) / 2.0
    for seed in range(5):
        v = torch.randn(x.shape, generator=rng(seed), dtype=torch.float64)
        ends = [interference(now, after, x + eps * v, pool.y).item() for eps in (1e-5, -1e-5)]
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx((up * v).sum().item(), rel=1e-3, abs=1e-6)


def test_after_a_small_edit_the_step_would_harm_every_image_more() -> None:
    learner = gmed(regular=0.0, stride=0.5)
    batch, pool = grey_batch(4, (0, 3)), everything(learner)
    after = stepped(learner.net, batch, 0.5)
    hold_gradient(learner, batch)
    edited = learner.choose(pool)
    for x, z, y in zip(learner.memory.field("x")[:6, None], edited.x[:, None], pool.y[:, None], strict=True):
        assert interference(learner.net, after, z, y) > interference(learner.net, after, x, y)


@pytest.mark.parametrize(("regular", "sign"), [(5.0, -1), (-5.0, 1)])
def test_the_regulariser_lowers_the_present_loss_and_a_negative_one_raises_it(regular: float, sign: int) -> None:
    learner = gmed(regular=regular, stride=0.2, lr=1e-6)  # so small a step does no harm: the regulariser alone is left
    batch, pool = grey_batch(4, (0, 3)), everything(learner)
    hold_gradient(learner, batch)
    edited = learner.choose(pool)
    before, after = (entropy(learner.net(x), pool.y, SEEN).item() for x in (learner.memory.field("x")[:6], edited.x))
    assert sign * (after - before) > 1e-3


def test_the_edit_of_an_image_decays_with_the_number_of_its_edits() -> None:
    learner = gmed(decay=0.5, regular=0.1)
    learner.memory.field("edits")[:6] = torch.tensor([0, 1, 2, 3, 0, 1])
    batch, pool = grey_batch(4, (0, 3)), learner.memory.read(torch.tensor([3, 0, 5, 1, 2, 4]))
    expected = directions(learner.net, stepped(learner.net, batch, 0.5), pool, 0.1)
    factors = torch.tensor([1 / 8, 1, 1 / 2, 1 / 2, 1 / 4, 1])[:, None, None, None]
    before = pool.x.clone()
    hold_gradient(learner, batch)
    torch.testing.assert_close(learner.choose(pool).x - before, factors * expected, rtol=1e-3, atol=1e-6)


def test_without_decay_the_number_of_edits_does_not_matter() -> None:
    edited = []
    for edits in (0, 9):
        learner = gmed()
        learner.memory.field("edits")[:6] = edits
        hold_gradient(learner, grey_batch(4, (0, 3)))
        edited.append(learner.choose(everything(learner)).x)
    assert torch.equal(*edited)


def test_edited_pixels_stay_in_their_range() -> None:
    learner = gmed(stride=300.0)
    batch, pool = grey_batch(4, (0, 3)), everything(learner)
    step = 300 * directions(learner.net, stepped(learner.net, batch, 0.5), pool, 0.01)
    expected = (pool.x + step).clamp(0, 1)
    assert (expected == 0).any()
    assert (expected == 1).any()
    hold_gradient(learner, batch)
    torch.testing.assert_close(learner.choose(pool).x, expected, rtol=1e-3, atol=1e-3)
    learner = gmed(stride=300.0)
    learner.observe(batch)
    stored = learner.memory.field("x")[: len(learner.memory)]
    assert stored.min() == 0
    assert stored.max() == 1


def test_editing_leaves_no_trace_in_the_learner() -> None:
    """Weights, gradients, running statistics, mode, draws and memory are the same bits as before."""
    learner = gmed(normed_net(8, 6), augment="digits")
    hold_gradient(learner, grey_batch(4, (0, 3)))
    weights, slopes = copied(learner.net), held_gradients(learner.net)
    drawn, stored, edits = (
        value.clone() for value in (learner.rng.get_state(), *(learner.memory.field(n)[:6] for n in ("x", "edits")))
    )
    edited = learner.choose(everything(learner))
    assert not torch.equal(edited.x, stored)
    assert not edited.x.requires_grad
    assert_same_bits(copied(learner.net), weights)
    assert_same_bits(held_gradients(learner.net), slopes)
    assert all(p.requires_grad for p in learner.net.parameters())
    assert torch.equal(learner.rng.get_state(), drawn)
    assert torch.equal(learner.memory.field("x")[:6], stored)
    assert torch.equal(learner.memory.field("edits")[:6], edits)
    assert all(module.training for module in learner.modules())


# The step.


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_a_step_edits_by_the_whole_new_gradient_and_then_learns_new_and_edited(combine: str) -> None:
    """A mean must not shrink the look-ahead, nor an earlier gradient remain in it; raw images are not replayed."""
    learner = gmed(combine=combine, replay=3, stride=5.0, stored=9)
    learner.observe(grey_batch(4, (1, 2), seed=5))  # leaves a gradient behind
    batch, net = grey_batch(6, (0, 3)), copy.deepcopy(learner.net)
    loss = learner.observe(batch)
    pool, edited = learner.spied_pool, learner.spied
    assert pool is not None
    assert edited is not None
    assert len(edited) == 3
    expected = pool.x + 5 * directions(net, stepped(net, batch, 0.5), pool, 0.01)
    torch.testing.assert_close(edited.x, expected.clamp(0, 1), rtol=1e-3, atol=1e-5)
    shrunk = pool.x + 5 * directions(net, stepped(net, batch, 0.5 * 6 / 9), pool, 0.01)
    assert (shrunk - expected).abs().max() > 1e-3
    new, old, raw = (entropy(net(part.x), part.y, SEEN) for part in (batch, edited, pool))
    assert (raw - old).abs() > 1e-3
    total = united(new, old, (6, 3), combine)
    torch.testing.assert_close(loss, total.detach())
    moved = descended(parameters_of(net=net), total, 0.5)
    assert_close(cloned(parameters_of(net=learner.net)), moved, rtol=1e-4, atol=1e-6)


def test_images_are_edited_raw_and_replayed_with_views_of_the_edited() -> None:
    learner, twin = (gmed(augment="digits", stride=5.0, stored=6) for _ in range(2))
    batch, net = grey_batch(4, (0, 3)), copy.deepcopy(learner.net)
    loss = learner.observe(batch)
    pool = twin.retrieve(batch)
    [(x, y)] = twin.views(batch)
    expected = pool.x + 5 * directions(net, stepped(net, Batch(x, y), 0.5), pool, 0.01)
    assert learner.spied is not None
    torch.testing.assert_close(learner.spied.x, expected.clamp(0, 1), rtol=1e-3, atol=1e-5)
    [(z, w)] = twin.views(learner.spied)
    assert (len(x), len(z)) == (8, 12)
    torch.testing.assert_close(loss, entropy(net(torch.cat([x, z])), torch.cat([y, w]), SEEN).detach())


# The memory.


def test_the_memory_holds_floats_and_a_number_of_edits() -> None:
    learner = gmed(stored=0)
    assert learner.memory.field("x").dtype == torch.float32
    assert (learner.memory.field("edits").dtype, learner.memory.field("edits").shape) == (torch.int64, (40,))
    batch = grey_batch(5, SEEN)
    learner.observe(batch)
    assert torch.equal(learner.memory.field("x")[:5], batch.x)  # to the last bit, not to the next byte
    assert learner.memory.field("edits")[:5].tolist() == [0] * 5


def test_the_edited_images_are_written_to_their_slots_and_nothing_else_changes() -> None:
    learner = gmed(replay=3, stored=9, stride=5.0)
    batch = grey_batch(4, (0, 3))
    before = everything(learner)
    learner.observe(batch)
    edited = learner.spied
    assert edited is not None
    assert edited.slots is not None
    after, drawn = everything(learner), sorted(edited.slots.tolist())
    assert len(drawn) == 3
    expected = before.x.clone()
    expected[edited.slots] = edited.x
    assert torch.equal(after.x[:9], expected)
    changed = (after.x[:9] != before.x).flatten(1).any(dim=1).nonzero().flatten().tolist()
    assert changed == drawn
    assert torch.equal(after.y[:9], before.y)
    assert torch.equal(edited.y, before.y[edited.slots])
    assert after.extra["edits"].tolist() == [int(slot in drawn) for slot in range(9)] + [0] * 4
    assert torch.equal(after.x[9:], batch.x)  # new samples are stored raw
    assert torch.equal(after.y[9:], batch.y)


def test_the_number_of_edits_counts_how_often_an_image_was_drawn() -> None:
    learner = gmed(replay=3, stored=9)
    draws = torch.zeros(40, dtype=torch.int64)
    for i in range(6):
        learner.observe(grey_batch(2, SEEN, seed=i))
        assert learner.spied is not None
        draws[learner.spied.slots] += 1
    assert draws.max() > 1
    assert torch.equal(learner.memory.field("edits")[:21], draws[:21])


def test_a_second_edit_starts_from_the_first() -> None:
    learner = gmed(replay=40, stored=4, memory=4, stride=5.0)
    learner.observe(grey_batch(1, (0,), seed=1))
    first, edits = learner.memory.field("x").clone(), learner.memory.field("edits").clone()
    batch, net = grey_batch(1, (3,), seed=2), copy.deepcopy(learner.net)
    learner.observe(batch)
    pool, edited = learner.spied_pool, learner.spied
    assert pool is not None
    assert edited is not None
    assert torch.equal(pool.x, first[pool.slots])
    assert torch.equal(pool.extra["edits"], edits[pool.slots])
    expected = pool.x + 5 * directions(net, stepped(net, batch, 0.5), pool, 0.01)
    torch.testing.assert_close(edited.x, expected.clamp(0, 1), rtol=1e-3, atol=1e-5)


def test_a_slot_that_a_new_sample_takes_in_the_same_step_holds_it_raw_and_unedited() -> None:
    """Edits are written before the insert; what is stored is what the plain reservoir of ER stores."""
    ours, theirs = (make(cls, plain_net(8, 4), memory=5, replay=5) for cls in (Watched, ER))
    taken = 0
    for i in range(12):
        batch = some_batch(3, SEEN, seed=i)
        for learner in (ours, theirs):
            learner.observe(batch)
        fields = {name: ours.memory.field(name)[: len(ours.memory)] for name in ("x", "y", "edits")}
        assert torch.equal(fields["y"], theirs.memory.field("y")[: len(theirs.memory)])
        assert (ours.memory.seen, len(ours.memory)) == (theirs.memory.seen, len(theirs.memory))
        raw = decode(theirs.memory.field("x")[: len(theirs.memory)])
        new = [(raw == image).flatten(1).all(dim=1) for image in decode(batch.x)]
        fresh = torch.stack(new).any(dim=0)
        assert torch.equal(fresh, fields["edits"] == 0)  # every slot is drawn in every step, so only new ones have none
        assert torch.equal(fields["x"][fresh], raw[fresh])
        taken += int(fresh.sum()) if i > 2 else 0
    assert taken > 3


def test_a_refused_step_writes_nothing_then_or_later() -> None:
    learner = gmed(replay=2, stored=12, stride=5.0)
    before, seen = everything(learner), learner.memory.seen
    learner.refuse = True
    with pytest.raises(Diverged):
        learner.observe(grey_batch(4, (0, 3)))
    assert learner.spied is not None
    assert not torch.equal(learner.spied.x, before.x[learner.spied.slots])
    after = everything(learner)
    assert torch.equal(after.x, before.x)
    assert torch.equal(after.extra["edits"], before.extra["edits"])
    assert (learner.memory.seen, len(learner.memory)) == (seen, 12)
    dropped = set(slot_list(learner.spied))
    learner.refuse = False
    learner.rng.manual_seed(1)  # else it would draw the same again: a refused step has drawn nothing
    learner.observe(grey_batch(4, (0, 3), seed=1))
    drawn = set(slot_list(learner.spied))
    assert dropped - drawn
    assert set(learner.memory.field("edits")[:12].nonzero().flatten().tolist()) == drawn


def test_a_refused_edit_is_not_written_by_a_later_step_that_replays_nothing() -> None:
    learner = gmed(replay=2, stored=12, stride=5.0)
    learner.refuse = True
    with pytest.raises(Diverged):
        learner.observe(grey_batch(4, (0, 3)))
    learner.refuse = False
    before = everything(learner)
    learner.learn(grey_batch(4, (0, 3)), learner.memory.read(torch.empty(0, dtype=torch.int64)))
    learner.remember(grey_batch(4, (0, 3)))
    assert torch.equal(learner.memory.field("x")[:12], before.x)
    assert not learner.memory.field("edits")[:16].any()


# Where it is ER.


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_without_a_stride_gmed_is_er(combine: str) -> None:
    """The same draws, weights, running statistics (moved twice a step, new batch first) and memory."""
    settings: dict[str, Any] = {"replay": 5, "memory": 12, "combine": combine, "lr": 0.2}
    ours, theirs = make(GMED, normed_net(8, 4), stride=0.0, **settings), make(ER, normed_net(8, 4), **settings)
    for i in range(10):
        batch = some_batch(4, SEEN, seed=i)
        torch.testing.assert_close(ours.observe(batch), theirs.observe(batch), rtol=1e-4, atol=1e-5)
    assert_close(copied(ours.net), copied(theirs.net), rtol=1e-3, atol=1e-4)
    assert passes_counted(ours.net) == 19
    assert torch.equal(ours.rng.get_state(), theirs.rng.get_state())
    assert torch.equal(ours.memory.field("x"), decode(theirs.memory.field("x")))
    assert torch.equal(ours.memory.field("y"), theirs.memory.field("y"))


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_an_empty_memory_leaves_the_plain_step_of_the_new_batch(combine: str) -> None:
    ours, theirs = make(GMED, normed_net(8, 4), combine=combine), make(FineTune, normed_net(8, 4))
    batch = some_batch(6, SEEN)
    torch.testing.assert_close(ours.observe(batch), theirs.observe(batch))
    assert_close(copied(ours.net), copied(theirs.net))
    assert torch.equal(ours.memory.field("x")[:6], decode(batch.x))


def test_the_recommended_values_are_the_defaults() -> None:
    config = GMEDConfig()
    assert (config.stride, config.regular, config.decay, config.combine) == (0.1, 0.01, 1.0, "mean")
