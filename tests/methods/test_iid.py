"""IID and IID++: rows of the paper's table that differ from fine-tuning in their stream."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from helpers import joined, plain_net, some_batch
from onepass.batch import Batch, Task
from onepass.learner import Problem
from onepass.methods.finetune import FineTune
from onepass.methods.iidpp import IIDPP
from onepass.results import RunConfig
from onepass.runner import run

PROBLEM = Problem(4, (1, 4, 4), "none", 1)


def test_iid_is_fine_tuning_on_one_shuffled_task() -> None:
    iid = run(RunConfig("iid", batch=50))
    assert iid.config.scenario == "iid"
    assert iid.fingerprint == run(RunConfig("finetune", batch=50, scenario="iid")).fingerprint
    assert [len(row) for row in iid.accuracy_matrix] == [1]
    assert iid.forgetting is None


def test_iidpp_makes_as_many_steps_with_twice_the_samples() -> None:
    once, twice = run(RunConfig("iid", batch=50)), run(RunConfig("iid++", batch=50))
    assert once.steps == twice.steps == 29
    assert twice.fingerprint != once.fingerprint


def test_an_iidpp_step_descends_the_mean_of_its_two_batches() -> None:
    net, twin = plain_net(5, 4), plain_net(5, 4)
    learner = IIDPP(net, PROBLEM, IIDPP.Config(lr=0.5), seed=0)
    learner.begin_task(Task(0, (0, 1, 2, 3)))
    first, second = some_batch(6, (0, 1, 2, 3), seed=1), some_batch(6, (0, 1, 2, 3), seed=2)
    learner.observe(joined(first, second))
    loss = sum(F.cross_entropy(twin(batch.x / 255), batch.y) for batch in (first, second)) / 2
    loss.backward()
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(mine, theirs - 0.5 * theirs.grad, atol=1e-6)


def test_the_same_batch_twice_is_one_fine_tuning_step() -> None:
    nets = plain_net(5, 4), plain_net(5, 4)
    batch = some_batch(6, (0, 1, 2, 3), seed=1)
    double = Batch(batch.x.repeat(2, 1, 1, 1), batch.y.repeat(2))
    for net, cls, given in zip(nets, (FineTune, IIDPP), (batch, double), strict=True):
        learner = cls(net, PROBLEM, cls.Config(), seed=0)
        learner.begin_task(Task(0, (0, 1, 2, 3)))
        learner.observe(given)
    for one, two in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-7)
