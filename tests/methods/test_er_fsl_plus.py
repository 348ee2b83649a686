"""ER-FSL+: ER-FSL's loss in one pass over views, classes stored alike, prediction by an average worked out by hand."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from helpers import copied, labelled, make, normed_net, some_batch, some_images
from onepass.learner.augment import AUGMENTATIONS
from onepass.learner.batch import Task
from onepass.learner.net import Net
from onepass.methods import class_slots
from onepass.methods.er_fsl import ERFSL
from onepass.methods.er_fsl_plus import ERFSLPlus


def learned(**settings: Any) -> ERFSLPlus:
    """Two tasks of five steps; subspaces of three of eight features."""
    learner = make(ERFSLPlus, normed_net(8, 4), memory=12, replay=4, subspace=3, **settings)
    for index, classes in enumerate([(0, 1), (2, 3)]):
        learner.begin_task(Task(index, classes))
        for step in range(5):
            learner.observe(some_batch(4, classes, 10 * index + step))
    return learner


def test_its_loss_is_er_fsls_over_one_joint_pass() -> None:
    plus, plain, apart = (
        make(cls, normed_net(8, 4), memory=12, subspace=3, **settings)
        for cls, settings in ((ERFSLPlus, {}), (ERFSL, {"forward": "joint", "gamma": 0.7}), (ERFSL, {"gamma": 0.7}))
    )
    losses = []
    for learner in (plus, plain, apart):
        learner.begin_task(Task(0, (0, 1)))
        learner.begin_task(Task(1, (2, 3)))
        losses.append(learner.loss(some_batch(4, (2, 3), 1), some_batch(5, (0, 1), 2)))
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[0], losses[2])  # batch-norm sees two passes there


def test_it_learns_a_view_of_each_image_or_the_image_too() -> None:
    batch, more, augment = labelled([0, 1, 1]), labelled([2, 3], seed=1), AUGMENTATIONS["digits"]
    assert augment is not None
    for images in ("augmented", "both"):
        learner = make(ERFSLPlus, normed_net(8, 4), augment="digits", subspace=3, images=images)
        drawn = augment(torch.cat([batch.x, more.x]) / 255, copy.deepcopy(learner.rng))  # in one go
        (x, y), (x_more, y_more) = learner.views(batch, more)
        if images == "augmented":
            assert torch.equal(torch.cat([x, x_more]), drawn)
            assert (y.tolist(), y_more.tolist()) == ([0, 1, 1], [2, 3])
        else:
            assert torch.equal(x, torch.cat([batch.x / 255, drawn[:3]]))
            assert (y.tolist(), y_more.tolist()) == ([0, 1, 1] * 2, [2, 3] * 2)
        assert not torch.equal(drawn[:3], batch.x / 255)


def test_it_replays_thirty_images_in_the_work_of_ten_and_their_views() -> None:
    passed: dict[type[ERFSL], list[int]] = {ERFSL: [], ERFSLPlus: []}
    for cls, sizes in passed.items():
        learner = make(cls, normed_net(8, 4), augment="digits", memory=40, subspace=3)
        learner.net.body.register_forward_hook(lambda _, images, __, sizes=sizes: sizes.append(len(images[0])))
        learner.begin_task(Task(0, (0, 1)))
        for step in range(4):
            learner.observe(some_batch(10, (0, 1), step))
    assert passed[ERFSL][-2:] == [20, 20]
    assert passed[ERFSLPlus][-1:] == [40]


def test_it_predicts_by_the_average_in_the_dimensions_used() -> None:
    learner = make(ERFSLPlus, normed_net(8, 4), memory=12, replay=4, subspace=3, average=0.6)
    average = copied(learner.net)
    learner.begin_task(Task(0, (0, 1)))
    for step in range(30):
        learner.observe(some_batch(4, (0, 1), step))
        used = min(0.6, step / (step + 10))
        for name, value in copied(learner.net).items():
            average[name] = used * average[name] + (1 - used) * value if value.is_floating_point() else value
    net = normed_net(8, 4)
    net.head.register_parameter("bias", None)
    net.load_state_dict(average)
    net.eval()
    images = some_images(20, seed=3)
    scores = F.linear(net.features(images / 255)[:, :3], net.head.weight[:, :3])[:, :2]
    with learner.predicting(), torch.inference_mode():
        torch.testing.assert_close(learner.scorer()(images / 255)[:, :2], scores, rtol=1e-4, atol=1e-5)
    assert torch.equal(learner.predict(images), scores.argmax(1))


def test_with_an_average_of_decay_0_the_last_weights_predict() -> None:
    images = some_images(50, seed=3)
    learner = learned(average=0.0)
    learner.eval()
    with torch.inference_mode():
        last = F.linear(learner.net.features(images / 255)[:, :6], learner.net.head.weight[:, :6]).argmax(1)
    assert torch.equal(learner.predict(images), last)
    assert not torch.equal(learned(average=1.0).predict(images), last)


def test_the_memory_ends_with_classes_as_even_as_the_stream_allows() -> None:
    learner = make(ERFSLPlus, normed_net(8, 4), memory=12, subspace=3)
    for label, n in ((1, 40), (2, 3), (0, 40)):
        for start in range(0, n, 10):
            learner.remember(labelled([label] * min(10, n - start), seed=start))
    assert learner.memory.field("y").bincount(minlength=4).tolist() in ([5, 4, 3, 0], [4, 5, 3, 0])


def test_the_memory_keeps_a_fair_sample_of_each_class() -> None:
    """Two classes in turn, three slots: whichever is no longer the largest stays full and loses no fairness."""
    places = []
    for seed in range(40):
        learner = make(ERFSLPlus, normed_net(8, 4), seed=seed, memory=3, subspace=3)
        for start in range(0, 100, 10):
            batch = labelled([1, 3] * 5)
            number = torch.arange(start, start + 10, dtype=torch.uint8)
            learner.remember(replace(batch, x=number[:, None, None, None].expand_as(batch.x)))
        places += learner.memory.field("x")[:, 0, 0, 0].tolist()
    assert 40 < sum(places) / len(places) < 60  # fair: 49.5, with a deviation of 2.6


def test_growing_gives_the_average_the_same_new_rows() -> None:
    learner = learned()
    assert learner.average is not None
    average = learner.average.copies[0]
    assert isinstance(average, Net)
    known = average.head.weight.clone()
    learner.grow(6)
    grown = average.head.weight
    assert torch.equal(grown[:4], known)
    assert torch.equal(grown[4:], learner.net.head.weight[4:])
    learner.observe(labelled([5, 5]))
    assert learner.met[4:].tolist() == [0, 2]


def places_by_looking_at_all(learner: ERFSLPlus, labels: list[int]) -> list[int]:
    """Chrysakis and Moens's rule, each sample's place found among all labels of the memory."""
    rng, capacity, filled = copy.deepcopy(learner.memory.rng), learner.memory.capacity, len(learner.memory)
    y, met, full = (rows.clone().numpy() for rows in (learner.memory.field("y"), learner.met, learner.full))
    slots = []
    for label in labels:
        met[label] += 1
        if filled < capacity:
            slot, filled = filled, filled + 1
        else:
            counts = np.bincount(y, minlength=len(met))
            largest = counts == counts.max()
            full |= largest
            if full[label] and torch.rand((), generator=rng, dtype=torch.float64) >= counts[label] / met[label]:
                slots.append(-1)
                continue
            among = np.flatnonzero(y == label if full[label] else largest[y])
            slot = int(among[torch.randint(len(among), (), generator=rng)])
        y[slot] = label
        slots.append(slot)
    return slots


@pytest.mark.parametrize("block", [4, 1024])
def test_places_are_those_that_looking_at_every_label_finds(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_slots, "BLOCK", block)
    learner = make(ERFSLPlus, normed_net(12, 8), memory=30, replay=3)
    chance = np.random.default_rng(0)
    for step in range(60):
        known = 2 + step // 10
        labels = [int(label) for label in np.sqrt(chance.integers(0, known**2, 7)).astype(int)]
        expected = places_by_looking_at_all(learner, labels)
        assert learner.places(labels).tolist() == expected
        learner.memory.write(torch.tensor(expected), labelled(labels, seed=step))
        if step % 3 and learner.slots is not None:
            learner.slots.accept()  # else they are made anew
        if step == 30:  # as corrections do
            learner.memory.field("y")[5] = 0
            learner.memory.forget(torch.tensor([3, 8]))
