"""The study of averages measures what a run with that average does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

import average
from helpers import labelled, make, normed_net
from onepass.bench.run_config import RunConfig
from onepass.bench.runner import run
from onepass.learner.batch import Task
from onepass.methods.er_fsl import ERFSL
from onepass.methods.scr import SCR


def test_statistics_from_the_memory_are_those_of_its_images() -> None:
    learner = make(ERFSL, normed_net(8, 6), memory=12, replay=4, subspace=4)
    learner.begin_task(Task(0, (1, 4)))
    learner.observe(labelled([1, 4, 1], seed=1))
    stored = learner.memory.read(torch.arange(len(learner.memory))).x / 255
    learner.eval()
    inner = learner.net.body[1](learner.net.body[0](stored))
    average.estimate(learner.net, learner.memory, 500)
    torch.testing.assert_close(learner.net.body[2].running_mean, inner.mean(0))
    assert not learner.net.training


def test_the_study_of_averages_measures_what_a_run_with_that_average_does() -> None:
    config = RunConfig("er-fsl", batch=50, settings={"memory": 30}, validate=True)
    found = average.measure(config, Path())
    kept = run(replace(config, settings=replace(config.learner_config, average=0.98)))
    assert found["accuracy"][average.CHOSEN] == kept.accuracy_matrix[-1]
    assert found["accuracy"]["last"] == kept.accuracy_matrix_last[-1] == found["looks"]["last"][-1]
    assert found["looks"][average.CHOSEN][-1] == kept.accuracy_matrix[-1]
    assert len(found["looks"]["last"]) == len(found["looks"][average.CHOSEN]) == min(10, -(-kept.steps // 5))
    assert found["accuracy"]["decay 0, class means"] != found["accuracy"]["last"]


def test_what_predicts_by_class_means_has_no_head_to_average() -> None:
    kept = average.candidates(make(SCR, normed_net(8, 6), memory=12))
    assert average.CHOSEN in kept
    assert not [name for name in kept if "head" in name or "class means" in name]
