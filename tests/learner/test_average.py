"""The average beside the last weights, against one worked out step by step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import copied, labelled, make, normed_net, some_batch, some_images, state_of
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.bench.runner import run
from onepass.errors import UsageError
from onepass.learner.average import Average
from onepass.learner.base import Learner
from onepass.learner.batch import Task
from onepass.learner.functional import class_means
from onepass.learner.net import Net
from onepass.methods.er import ER
from onepass.methods.er_wa import ERWA
from onepass.methods.obc import OBC
from onepass.methods.scr import SCR


def learner_of(cls: type[Learner] = ER, **settings: Any) -> Learner:
    learner = make(cls, normed_net(6, 4), memory=12, **settings)
    learner.begin_task(Task(0, (0, 1)))
    return learner


def averaged(learner: Learner, module: int = 0) -> dict[str, Tensor]:
    assert learner.average is not None
    return copied(learner.average.copies[module])


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.95, 1.0])
def test_weights_and_statistics_follow_by_the_formula(decay: float) -> None:
    learner = learner_of(average=decay)
    by_hand = copied(learner.net)
    for step in range(30):
        learner.observe(labelled([0, 1, 1, 0], seed=step))
        now = copied(learner.net)
        used = min(decay, step / (step + 10))
        for name, value in now.items():
            if value.is_floating_point():
                by_hand[name] = used * by_hand[name] + (1 - used) * value
            else:
                by_hand[name] = value
    assert any(not value.is_floating_point() for value in by_hand.values())  # batch-norm counts its batches
    for name, value in averaged(learner).items():
        torch.testing.assert_close(value, by_hand[name], rtol=1e-4, atol=1e-6)
    same = torch.equal(averaged(learner)["head.weight"], learner.net.head.weight)
    assert same == (decay == 0)


def test_after_the_first_step_the_random_beginning_is_forgotten() -> None:
    learner = learner_of(average=0.99)
    learner.observe(labelled([0, 1]))
    assert state_of(averaged(learner)) == state_of(copied(learner.net))


def test_predictions_are_the_averages_unless_the_last_weights_are_asked_for() -> None:
    learner = learner_of(average=0.9)
    for step in range(20):
        learner.observe(labelled([0, 1, 1, 0], seed=step))
    images = labelled([0] * 50, seed=99).x
    other = make(ER, normed_net(6, 4), memory=12)
    other.mark_seen([0, 1])
    other.net.load_state_dict(averaged(learner))
    assert torch.equal(learner.predict(images), other.predict(images))
    other.net.load_state_dict(learner.net.state_dict())
    with learner.predicting(last=True) as predict:
        assert torch.equal(predict(images), other.predict(images))


def test_an_error_while_predicting_puts_the_last_weights_back() -> None:
    learner = learner_of(average=0.9)
    for step in range(5):
        learner.observe(labelled([0, 1], seed=step))
    before = state_of(learner)
    with pytest.raises(UsageError), learner.predicting() as predict:
        predict(torch.zeros(1, 9, 9, 9, dtype=torch.uint8))
    assert state_of(learner) == before


def test_growth_gives_the_average_the_same_new_rows_and_keeps_its_own() -> None:
    learner = learner_of(average=0.9)
    for step in range(15):
        learner.observe(labelled([0, 1], seed=step))
    before = averaged(learner)["head.weight"]
    learner.grow(7)
    after = averaged(learner)["head.weight"]
    assert torch.equal(after[:4], before)
    assert torch.equal(after[4:], learner.net.head.weight[4:])
    learner.observe(labelled([5, 6]))
    assert set(learner.predict(labelled([0] * 20).x).tolist()) <= {0, 1, 5, 6}


def test_the_second_head_of_obc_is_averaged_too_and_grows() -> None:
    learner = learner_of(OBC, average=0.9)
    for step in range(15):
        learner.observe(labelled([0, 1], seed=step))
    assert isinstance(learner, OBC)
    head = averaged(learner, 1)["weight"]
    assert not torch.equal(head, learner.corrected.weight)
    learner.grow(6)
    assert averaged(learner, 1)["weight"].shape == learner.corrected.weight.shape


def test_weight_aligning_aligns_the_average_by_its_own_lengths() -> None:
    learner = learner_of(ERWA, average=0.9)
    for step in range(15):
        learner.observe(labelled([0, 1], seed=step))
    learner.end_task()
    learner.begin_task(Task(1, (2, 3)))
    for step in range(15):
        learner.observe(labelled([2, 3], seed=50 + step))
    learner.end_task()
    for weight in (learner.net.head.weight, averaged(learner)["head.weight"]):
        lengths = weight.norm(dim=1)
        assert lengths[2:].mean().item() == pytest.approx(lengths[:2].mean().item(), rel=1e-5)


def test_class_means_of_scr_are_taken_with_averaged_features() -> None:
    learner = learner_of(SCR, average=0.9)
    for step in range(15):
        learner.observe(labelled([0, 1], seed=step))
    assert learner.average is not None
    learner.eval()
    last = class_means(learner, learner.net.features)[0]
    with learner.average.in_place():
        mean = class_means(learner, learner.net.features)[0]
    other = make(SCR, normed_net(6, 4), memory=12)
    other.net.load_state_dict(averaged(learner))
    other.memory.load_state_dict(learner.memory.state_dict())
    other.eval()
    assert torch.equal(mean, class_means(other, other.net.features)[0])
    assert not torch.equal(mean, last)
    other.mark_seen([0, 1])
    images = some_images(20, seed=5)
    assert torch.equal(learner.predict(images), other.predict(images))


def test_a_run_records_both_and_trains_as_without(tmp_path: Path) -> None:
    plain = run(RunConfig("er-fsl", batch=50, settings={"memory": 30}))
    config = RunConfig("er-fsl", batch=50, anytime=10, settings={"memory": 30, "average": 0.9})

    def stop(done: int, total: int) -> None:
        if done == 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path, progress=stop)
    both = run(config, tmp_path)
    assert both.accuracy_matrix_last == plain.accuracy_matrix
    assert [len(row) for row in both.accuracy_matrix] == [1, 2, 3, 4, 5]
    assert both.accuracy_matrix != both.accuracy_matrix_last
    assert [len(point["accuracy_last"]) for point in both.anytime] == [len(p["accuracy"]) for p in both.anytime]
    assert replace(both, seconds=0.0) == replace(run(config), seconds=0.0)
    assert Result.from_json(both.to_json()) == both
    assert not plain.accuracy_matrix_last


def test_predicting_inside_predicting_still_predicts_by_the_average() -> None:
    learner = make(ER, normed_net(8, 4), memory=10, average=0.9)
    learner.begin_task(Task(0, (0, 1)))
    for seed in range(4):
        learner.observe(some_batch(4, (0, 1), seed))
    assert learner.average is not None
    average = learner.average.copies[0]
    assert isinstance(average, Net)
    with torch.no_grad():
        average.head.weight.neg_()  # it says the opposite
    images = some_batch(20, (0, 1), 9).x
    outside = learner.predict(images)
    with learner.predicting(last=True) as last:
        assert not torch.equal(last(images), outside)
    with learner.predicting() as predict:
        assert torch.equal(learner.predict(images), outside)
        with learner.predicting(last=True) as last:
            assert not torch.equal(last(images), outside)
        assert torch.equal(predict(images), outside)
    assert torch.equal(learner.predict(images), outside)


def test_a_module_and_a_part_of_it_are_put_back_as_they_were() -> None:
    net = normed_net(8, 4)
    average = Average([net, net.head], 0.9)
    head = average.copies[1]
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight.fill_(2)
    before = state_of(copied(net))
    with average.in_place():
        assert (net.head.weight == 2).all()
    assert state_of(copied(net)) == before
    assert (head.weight == 2).all()
