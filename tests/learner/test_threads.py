"""One call at a time, or a snapshot: a thread that predicts never disturbs one that learns."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import pytest
import torch

from helpers import make, normed_net, some_batch, some_images, state_of
from onepass.errors import Diverged, UsageError
from onepass.learner.base import Learner
from onepass.learner.batch import Batch, Task
from onepass.methods.er import ER
from onepass.methods.er_fsl import ERFSL
from onepass.methods.scr import SCR


def learned(cls: type[Learner] = ER, average: float | None = None) -> Learner:
    learner = make(cls, normed_net(8, 6), memory=20, average=average)
    for task, classes in enumerate([(0, 1), (2, 3)]):
        learner.begin_task(Task(task, classes))
        for step in range(4):
            learner.observe(some_batch(4, classes, 10 * task + step))
    return learner


class Slow(ER):
    """An ER whose steps wait until they are let go."""

    def setup(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def loss(self, batch: Batch, replay: Batch) -> torch.Tensor:
        self.begun.set()
        self.go.wait(60)
        return super().loss(batch, replay)


@pytest.mark.parametrize(
    "call",
    [
        lambda learner: learner.observe(some_batch(4, (0, 1), 9)),
        lambda learner: learner.predict(some_images(3)),
        lambda learner: learner.snapshot(),
    ],
)
def test_a_call_during_a_step_of_another_thread_is_refused_at_once(call: Callable[[Learner], object]) -> None:
    learner = make(Slow, normed_net(8, 6), memory=20)
    twin = make(ER, normed_net(8, 6), memory=20)
    thread = threading.Thread(target=learner.observe, args=(some_batch(4, (0, 1), 0),))
    thread.start()
    assert learner.begun.wait(60)
    with pytest.raises(UsageError, match=r"while observe is under way.*learner\.snapshot\(\)"):
        call(learner)
    learner.go.set()
    thread.join()
    twin.observe(some_batch(4, (0, 1), 0))
    assert state_of(learner) == state_of(twin), "the step that was under way is what it would have been"


def test_a_step_inside_predicting_is_refused_and_predicting_inside_it_is_not() -> None:
    learner = learned()
    before = state_of(learner)
    with learner.predicting() as predict:
        with pytest.raises(UsageError, match="observe while predict is under way"):
            learner.observe(some_batch(4, (0, 1)))
        assert torch.equal(learner.predict(some_images(5)), predict(some_images(5)))
    assert state_of(learner) == before
    learner.observe(some_batch(4, (0, 1)))


@pytest.mark.parametrize("cls", [ER, ERFSL, SCR])
@pytest.mark.parametrize("average", [None, 0.8])
def test_threads_ask_a_snapshot_while_the_learner_goes_on_with_the_same_bits(
    cls: type[Learner], average: float | None
) -> None:
    learner, twin = learned(cls, average=average), learned(cls, average=average)
    images = some_images(40, seed=3)
    known = learner.predict(images)
    snapshot = learner.snapshot()
    answers: list[torch.Tensor] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set() or not answers:
            answers.append(snapshot.predict(images))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for one in (learner, twin):
        for step in range(12):
            one.observe(some_batch(4, (2, 3), 50 + step))
    stop.set()
    for thread in threads:
        thread.join()
    assert answers
    assert all(torch.equal(answer, known) for answer in answers)
    assert state_of(learner) == state_of(twin)


def test_a_refused_step_that_brings_a_class_takes_no_subspace() -> None:
    learner = learned(ERFSL)
    known = state_of(learner)
    rate = learner.optimizer.param_groups[0]["lr"]
    learner.optimizer.param_groups[0]["lr"] = torch.inf
    with pytest.raises(Diverged):
        learner.observe(some_batch(4, (4, 5)))
    learner.optimizer.param_groups[0]["lr"] = rate
    assert state_of(learner) == known
    assert learner.seen == {0, 1, 2, 3}


def test_a_learner_can_be_copied() -> None:
    learner = learned()
    twin = copy.deepcopy(learner)
    for one in (learner, twin):
        one.observe(some_batch(4, (2, 3), 77))
    assert state_of(learner) == state_of(twin)
