"""RAR: several steps for each batch, each with another part of the memory and new augmentations."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import (
    assert_close,
    cloned,
    copied,
    everything,
    labelled,
    make,
    normed_net,
    plain_net,
    some_batch,
    state_of,
)
from method_helpers import descend, entropy, inputs_of, into_second_task, learn, passes_of, united
from onepass.errors import Diverged
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net
from onepass.methods.er import ER
from onepass.methods.rar import RAR

OLD, NEW = (1, 4), (0, 5)
SEEN = [0, 1, 4, 5]
TASKS = [Task(0, OLD), Task(1, NEW)]


def rar(net: Net | None = None, **settings: Any) -> RAR:
    return make(RAR, plain_net(8, 6) if net is None else net, **{"memory": 12, "replay": 4, **settings})


def er(net: Net | None = None, **settings: Any) -> ER:
    return make(ER, plain_net(8, 6) if net is None else net, **{"memory": 12, "replay": 4, **settings})


def in_second_task(net: Net | None = None, **settings: Any) -> RAR:
    return into_second_task(rar(net, **settings), OLD, NEW)


def test_its_settings_are_those_of_er_with_more_steps_and_a_choice_of_images() -> None:
    assert RAR.Config() == RAR.Config(updates=10, images="augmented")
    assert issubclass(RAR.Config, ER.Config)


# Several steps.


@pytest.mark.parametrize("updates", [1, 3])
def test_with_images_beside_their_augmentations_it_is_er_with_as_many_steps(updates: int) -> None:
    ours = learn(rar(normed_net(8, 6), augment="digits", images="both", updates=updates), TASKS)
    theirs = learn(er(normed_net(8, 6), augment="digits", updates=updates), TASKS)
    assert state_of(ours) == state_of(theirs)


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_a_batch_is_learned_in_several_steps_each_beside_another_part_of_the_memory(combine: str) -> None:
    learner = in_second_task(updates=3, lr=0.2, combine=combine)
    batch = labelled([5, 0, 5, 4], seed=50)
    twin, draws = copy.deepcopy(learner.net), torch.Generator()
    draws.set_state(learner.rng.get_state())
    losses, replayed = [], []
    for _ in range(3):
        replay = learner.memory.sample(4, draws)
        replayed.append(replay.x)
        new, old = (entropy(twin(part.x / 255), part.y, SEEN) for part in (batch, replay))
        losses.append(united(new, old, (4, 4), combine))
        descend(twin.parameters(), losses[-1], 0.2)
    assert len({part.numpy().tobytes() for part in replayed}) == 3  # else one draw for all would pass
    torch.testing.assert_close(learner.observe(batch), losses[-1].detach())
    assert_close(
        cloned(dict(learner.net.named_parameters())), cloned(dict(twin.named_parameters())), rtol=1e-4, atol=1e-6
    )
    assert learner.steps == 3  # batches, not optimizer steps
    assert torch.equal(learner.rng.get_state(), draws.get_state())


def test_a_batch_is_stored_once_and_never_replays_itself() -> None:
    ours, theirs = rar(updates=4), er()
    for learner in (ours, theirs):
        learn(learner, TASKS, n=5)
    for field in ("x", "y"):
        assert torch.equal(getattr(everything(ours), field), getattr(everything(theirs), field))
    learner = rar(updates=4)
    sizes = passes_of(learner.net)
    learner.observe(some_batch(5, OLD))
    assert sizes == [5] * 4  # the memory was empty in all of them
    learner.observe(some_batch(5, OLD, seed=1))
    assert sizes[4:] == [5, 4] * 4


# Augmented.


def new_rows(learner: RAR, batch: Batch) -> list[Tensor]:
    """What the network is given of the new batch, step by step."""
    with inputs_of(learner.net) as passes:
        learner.observe(batch)
    return passes[::2]


@pytest.mark.parametrize("images", ["both", "augmented"])
def test_every_step_augments_anew(images: str) -> None:
    learner = in_second_task(augment="digits", updates=3, images=images)
    batch = labelled([5, 0, 5], seed=50)
    steps = new_rows(learner, batch)
    assert len(steps) == 3
    plain = batch.x / 255
    if images == "both":
        assert all(torch.equal(rows[:3], plain) for rows in steps)
    assert all(len(rows) == (6 if images == "both" else 3) for rows in steps)
    augmented = [rows[-3:] for rows in steps]
    assert not any(torch.equal(rows, plain) for rows in augmented)
    assert not any(torch.equal(augmented[i], augmented[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_augmentations_alone_are_learned_with_their_labels() -> None:
    learner = in_second_task(augment="digits", updates=1, images="augmented")
    batch, replay, state = labelled([5, 0, 5], seed=50), labelled([1, 4], seed=51), learner.rng.get_state()
    loss = learner.loss(batch, replay)
    learner.rng.set_state(state)
    (_, x), (_, z) = learner.images_and_views(batch, replay)
    new, old = entropy(learner.net(x), batch.y, SEEN), entropy(learner.net(z), replay.y, SEEN)
    torch.testing.assert_close(loss, united(new, old, (3, 2), "mean"))


def test_where_a_stream_has_no_augmentation_both_are_the_images() -> None:
    steps = new_rows(in_second_task(updates=2, images="augmented"), labelled([5, 0], seed=50))
    for rows in steps:
        assert torch.equal(rows, labelled([5, 0], seed=50).x / 255)


# All or nothing.


@pytest.mark.parametrize("refused", [0, 1, 3])
def test_a_step_that_is_refused_takes_those_before_it_back(refused: int, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = in_second_task(normed_net(8, 6), augment="digits", updates=4)
    before, batch, count = state_of(learner), labelled([5, 0, 5], seed=50), 0
    plain = RAR.loss

    def loss(self: RAR, batch: Batch, replay: Batch) -> Tensor:
        nonlocal count
        count += 1
        return plain(self, batch, replay) * (torch.nan if count == refused + 1 else 1)

    monkeypatch.setattr(RAR, "loss", loss)
    with pytest.raises(Diverged):
        learner.observe(batch)
    assert count == refused + 1
    assert state_of(learner) == before
    monkeypatch.setattr(RAR, "loss", plain)
    weights = copied(learner.net)
    learner.observe(batch)
    assert all(not torch.equal(p, weights[name]) for name, p in learner.net.named_parameters())
