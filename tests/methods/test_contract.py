"""Every method keeps every promise, and for every promise there is a learner that breaks it and is caught."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import make, observe_all, plain_net, some_batch
from onepass.config import LearnerConfig
from onepass.learner.base import Learner
from onepass.learner.batch import Batch
from onepass.learner.checks import PROMISES, ContractError, check_learner, failures
from onepass.learner.net import Net
from onepass.learner.problem import Problem
from onepass.learner.toy_problem import VECTORS
from onepass.methods.er import ER
from onepass.methods.gmed import GMED
from onepass.methods.gss import GSS
from onepass.methods.mir import MIR
from onepass.methods.obc import OBC
from onepass.methods.registry import METHODS, method_class


@pytest.mark.parametrize("name", METHODS)
def test_method_keeps_every_promise(name: str) -> None:
    check_learner(method_class(name))


@pytest.mark.system
@pytest.mark.parametrize("name", [name for name in METHODS if not method_class(name).needs_images])
def test_method_keeps_every_promise_on_vectors(name: str) -> None:
    check_learner(method_class(name), problem=VECTORS)


@pytest.mark.parametrize(
    ("cls", "settings"), [(MIR, {"candidates": 10}), (GMED, {}), (GSS, {"memory": 12})], ids=["mir", "gmed", "gss"]
)
def test_methods_that_choose_by_gradients_learn_classes_that_come_after_growing(
    cls: type[Learner], settings: dict[str, Any]
) -> None:
    """More than the promise: all rows of the head move, and the new classes are known."""
    learner = make(cls, plain_net(8, 4), replay=3, **settings)
    observe_all(learner, [some_batch(4, range(4), seed=i) for i in range(5)])
    learner.grow(6)
    before = learner.net.head.weight.detach().clone()
    batch = some_batch(6, (4, 5))
    losses = [learner.observe(batch).item() for _ in range(40)]
    assert losses[-1] < losses[0]
    assert (learner.net.head.weight.detach() != before).any(dim=1).all()
    assert (learner.predict(batch.x) == batch.y).float().mean() > 0.6


class GlobalRandomness(ER):
    def retrieve(self, batch: Batch) -> Batch:
        return self.memory.read(torch.randperm(len(self.memory))[:10])


class IgnoresTheSeed(ER):
    def __init__(self, net: Net, problem: Problem, config: LearnerConfig, *, seed: int) -> None:
        super().__init__(net, problem, config, seed=0)


class PredictsInTrainMode(ER):
    def scorer(self) -> Callable[[Tensor], Tensor]:
        self.net.train()
        return self.net


class ForgetsItsCounter(ER):
    """A period that is no part of the state: after loading it starts again."""

    def setup(self) -> None:
        self.count = 0

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        self.count += 1
        return super().loss(batch, replay) * (2.0 if self.count % 5 == 0 else 1.0)


class ShuffledBatch(ER):
    """Changes what it was given: the caller's images and the copy share their pixels."""

    def learn(self, batch: Batch, replay: Batch) -> Tensor:
        batch.x.mul_(0).add_(7)
        return super().learn(batch, replay)


class KeepsTheBatch(ER):
    def setup(self) -> None:
        self.register_buffer("last", torch.empty(0, dtype=torch.uint8))

    def remember(self, batch: Batch) -> None:
        super().remember(batch)
        self.last = batch.x

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        self.last = torch.empty_like(state_dict["last"])
        return super().load_state_dict(state_dict, strict, assign)


class Hoards(ER):
    """Grows its memory instead of choosing."""

    def remember(self, batch: Batch) -> None:
        memory = self.memory
        if len(memory) + len(batch) > len(memory.field("y")):
            for name in memory.fields:
                column = memory.field(name)
                memory._buffers[f"field_{name}"] = torch.cat([column, torch.empty_like(column)])
        slots = torch.arange(len(memory), len(memory) + len(batch))
        for name in memory.fields:
            memory.field(name)[slots] = getattr(batch, name)
        memory.filled += len(batch)


class LossWithItsGraph(ER):
    def learn(self, batch: Batch, replay: Batch) -> Tensor:
        loss = self.loss(batch, replay)
        self.step(loss)
        return loss


class EmptyReplayIsNaN(ER):
    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        (x, y), (old, old_y) = self.views(batch, replay)
        return self.cross_entropy(self.net(x), y) + F.cross_entropy(self.net.head(self.net.features(old)), old_y)


class NeedsTwoSamples(ER):
    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        centred = batch.x.float() - batch.x.float().mean()
        return super().loss(batch, replay) + 0 * (centred.square().sum() / torch.tensor(len(batch) - 1.0))


class NeedsAFullReplay(ER):
    def retrieve(self, batch: Batch) -> Batch:
        if not len(self.memory):
            return super().retrieve(batch)
        picked = self.memory.sample(self.replay, self.rng)
        return picked[torch.arange(self.replay if self.steps > 5 else len(picked))]


class NewHeadWhenGrown(ER):
    def grow(self, n_classes: int) -> None:
        self.net.head = nn.Linear(self.net.head.in_features, n_classes)
        self.problem = replace(self.problem, n_classes=n_classes)
        self.mark_seen(())


class OneOfEachClass(ER):
    def retrieve(self, batch: Batch) -> Batch:
        labels = self.memory.field("y")[: len(self.memory)]
        slots = [(labels == c).nonzero()[0, 0] for c in self.old]
        return self.memory.read(torch.stack(slots)) if slots else super().retrieve(batch)


class WaitsToBeTold(ER):
    def _begin_unannounced_task(self, classes: tuple[int, ...]) -> None:
        self.mark_seen(classes)


class LearnsFromItsAverage(ER):
    def learn(self, batch: Batch, replay: Batch) -> Tensor:
        with self.each_weight_set()[-1]:
            return super().learn(batch, replay)


class PredictsAnything(ER):
    def predict(self, images: Tensor, among: Iterable[int] | None = None) -> Tensor:
        return torch.zeros(len(images), dtype=torch.int64)


class AcceptsAnything(ER):
    def _check(self, batch: Batch) -> tuple[int, ...]:
        self.mark_seen(set(batch.y.long().tolist()) & set(range(self.problem.n_classes)))
        return ()


class RemembersTooEarly(ER):
    def learn(self, batch: Batch, replay: Batch) -> Tensor:
        self.memory.write(self.memory.reservoir(len(batch)), batch)
        return super().learn(batch, replay)

    def remember(self, batch: Batch) -> None:
        pass


class ScoresByTheMemoryOfTheMoment(ER):
    def scorer(self) -> Callable[[Tensor], Tensor]:
        primes = torch.tensor([3, 5, 7, 11, 13, 17])
        return lambda x: (self.memory.field("x").sum() * primes % 101).expand(len(x), 6)


class NeverSteps(ER):
    def step(self, loss: Tensor, optimizer: torch.optim.Optimizer | None = None) -> Tensor:
        return loss.detach()


BROKEN: dict[str, tuple[type[Learner], str]] = {
    "same seed, same bits": (GlobalRandomness, "different states"),
    "another seed differs": (IgnoresTheSeed, "the seed changes nothing"),
    "predict is pure": (PredictsInTrainMode, "predict changed the learner's state"),
    "save in mid-task and load: identical": (ForgetsItsCounter, "another end state"),
    "batch left alone": (ShuffledBatch, "observe changed the batch's images"),
    "no reference to a batch survives": (KeepsTheBatch, "overwriting a batch"),
    "memory within capacity": (Hoards, "8 samples in a memory of 7"),
    "finite loss": (LossWithItsGraph, "keeps the whole graph"),
    "empty memory": (EmptyReplayIsNaN, "at step 0 the loss is nan"),
    "one-sample batch": (NeedsTwoSamples, "at step 0 the loss is nan"),
    "memory smaller than the replay batch": (NeedsAFullReplay, "out of bounds"),
    "grows to more classes": (NewHeadWhenGrown, "growing changed the rows"),
    "a class that the memory has lost": (OneOfEachClass, "out of bounds"),
    "streams without boundaries": (WaitsToBeTold, "classes never seen began task -1"),
    "an average changes nothing in training": (LearnsFromItsAverage, "changed what was learned"),
    "predicts seen classes only": (PredictsAnything, "a class that has not been seen"),
    "bad input is refused and changes nothing": (AcceptsAnything, "out of bounds"),
    "a refused step changes nothing": (RemembersTooEarly, "was refused, and changed the learner"),
    "a snapshot stays as it is": (ScoresByTheMemoryOfTheMoment, "a snapshot changed with its learner"),
    "learns": (NeverSteps, "right on two classes"),
}


def test_every_promise_has_a_learner_that_breaks_it() -> None:
    assert set(BROKEN) == set(PROMISES)


@pytest.mark.parametrize("promise", BROKEN)
def test_broken_learner_is_caught(promise: str) -> None:
    learner, complaint = BROKEN[promise]
    assert complaint in dict(failures(learner, only=[promise]))[promise]


class LooksUpClassesOfTheBatch(ER):
    def retrieve(self, batch: Batch) -> Batch:
        labels = self.memory.field("y")[: len(self.memory)]
        slots = [(labels == c).nonzero()[0, 0] for c in self.old if c in batch.y]
        return self.memory.read(torch.stack(slots)) if slots else super().retrieve(batch)


class NeedsANewClass(ER):
    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        return super().loss(batch, replay) + 0 / torch.tensor(float(len(self.new)))


class NeedsASampleOfANewClass(ER):
    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        return super().loss(batch, replay) + 0 / torch.isin(batch.y, self.new).float().sum()


class NeedsTwoSamplesLater(NeedsTwoSamples):
    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        return super().loss(batch, replay) if len(self.old) else ER.loss(self, batch, replay)


@pytest.mark.parametrize(
    ("learner", "promise"),
    [
        (LooksUpClassesOfTheBatch, "a class that the memory has lost"),
        (NeedsANewClass, "a class that the memory has lost"),
        (NeedsASampleOfANewClass, "streams without boundaries"),
        (NeedsTwoSamplesLater, "one-sample batch"),
    ],
)
def test_what_breaks_in_later_tasks_alone_is_caught(learner: type[Learner], promise: str) -> None:
    assert dict(failures(learner, only=[promise]))[promise]


class StepsWithoutLooking(ER):
    def step(self, loss: Tensor, optimizer: torch.optim.Optimizer | None = None) -> Tensor:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class OnlyStores(ER):
    def learn(self, batch: Batch, replay: Batch) -> Tensor:
        return torch.zeros(())


def test_a_step_of_infinite_length_is_caught_and_a_learner_that_takes_none_in_observe_is_not() -> None:
    promise = "a refused step changes nothing"
    assert "a step of infinite length was made" in dict(failures(StepsWithoutLooking, only=[promise]))[promise]
    assert dict(failures(OnlyStores, only=[promise])) == {promise: ""}


def test_an_average_of_a_part_of_what_predicts_is_caught() -> None:
    class HeadAlone(OBC):
        def predictors(self) -> list[nn.Module]:
            return [self.corrected]

    promise = "an average changes nothing in training"
    assert "prediction by the average uses last weights" in dict(failures(HeadAlone, only=[promise]))[promise]


def test_all_broken_promises_are_named_at_once() -> None:
    with pytest.raises(ContractError, match=r"EmptyReplayIsNaN fails \d+ of \d+ contract checks") as caught:
        check_learner(EmptyReplayIsNaN)
    assert "empty memory" in str(caught.value)


def test_a_learner_without_a_loss_says_what_is_missing() -> None:
    with pytest.raises(ContractError, match=r"Learner must define loss\(batch, replay\)"):
        check_learner(Learner)
