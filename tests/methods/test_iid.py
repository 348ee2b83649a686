"""IID and IID++: rows of the paper's table that differ from fine-tuning in their stream."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from helpers import joined, plain_net, some_batch
from method_helpers import descend
from onepass.bench.run_config import RunConfig
from onepass.bench.runner import run
from onepass.bench.stream import StreamConfig, make_tasks
from onepass.data import Dataset
from onepass.learner.batch import Batch, Task
from onepass.learner.problem import Problem
from onepass.methods.finetune import FineTune
from onepass.methods.iidpp import IIDPP

PROBLEM = Problem(4, (1, 4, 4), "none", 1)


def ten_classes(per_class: int) -> Dataset:
    """Labels in order, as data sets have them; nobody looks at the images."""
    y = torch.arange(10).repeat_interleave(per_class)
    x = torch.zeros(len(y), 1, 1, 1, dtype=torch.uint8)
    return Dataset(x, y, x[:10], torch.arange(10), tuple("abcdefghij"))


def test_iid_is_fine_tuning_on_one_shuffled_task() -> None:
    iid = run(RunConfig("iid", batch=50))
    assert iid.config.scenario == "iid"
    assert iid.fingerprint == run(RunConfig("finetune", batch=50, scenario="iid")).fingerprint
    assert [len(row) for row in iid.accuracy_matrix] == [1]
    assert iid.forgetting is None


def test_iid_ends_in_the_bits_of_fine_tuning_on_a_stream_of_one_task() -> None:
    """Weights, generators and all: the one task has the same classes, samples and order."""
    one = run(RunConfig("finetune", batch=50, tasks=1, class_order="fixed"))
    assert one.config.scenario == "class-incremental"
    assert one.fingerprint == run(RunConfig("iid", batch=50)).fingerprint


def test_every_stretch_of_the_iid_stream_holds_all_classes_alike() -> None:
    """1,000 of 20,000 samples: 100 of each class, give or take 9.2 (hypergeometric); five times that is allowed."""
    data = ten_classes(2000)
    found = {}
    for scenario in ("iid", "class-incremental"):
        _, tasks = make_tasks(data, StreamConfig(scenario), seed=3)
        windows = data.y[torch.cat([task.train for task in tasks])].unfold(0, 1000, 250)
        assert len(windows) == 77
        counts = torch.stack([window.bincount(minlength=10) for window in windows])
        found[scenario] = (counts.min().item(), counts.max().item())
    low, high = found["iid"]
    assert 54 <= low < 100 < high <= 146
    assert found["class-incremental"][0] == 0


def test_the_two_batches_of_an_iidpp_step_share_samples_as_often_as_chance_has_it() -> None:
    """10 * 10 / 1000 a step, so 10 in the 100 steps of a run, give or take 3.1: in 40 runs 400, give or take 20."""
    data = ten_classes(100)
    shared = 0
    for seed in range(40):
        _, [task] = make_tasks(data, StreamConfig("iid++"), seed=seed)
        assert task.second is not None
        for first, second in zip(task.train.split(10), task.second.split(10), strict=True):
            shared += int(torch.isin(first, second).sum())
    assert 300 <= shared <= 500


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
    losses = [F.cross_entropy(twin(batch.x / 255), batch.y) for batch in (first, second)]
    descend(twin.parameters(), (losses[0] + losses[1]) / 2, 0.5)
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


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
