"""ER-FSL+: learning is ER-FSL's, prediction is by an average worked out step by step."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from helpers import copied, make, normed_net, some_batch, some_images
from onepass.batch import Task
from onepass.methods.er_fsl import ERFSL
from onepass.methods.er_fsl_plus import ERFSLPlus


def learned(cls: type[ERFSL], **settings: float) -> ERFSL:
    """Two tasks of five steps; subspaces of three of eight features."""
    learner = make(cls, normed_net(8, 4), memory=12, replay=4, subspace=3, **settings)
    for index, classes in enumerate([(0, 1), (2, 3)]):
        learner.begin_task(Task(index, classes))
        for step in range(5):
            learner.observe(some_batch(4, classes, 10 * index + step))
    return learner


def test_it_learns_as_er_fsl_does_bit_for_bit() -> None:
    plus, plain = learned(ERFSLPlus), learned(ERFSL)
    for name, value in copied(plain.net).items():
        assert torch.equal(plus.net.state_dict()[name], value), name


def test_it_predicts_by_the_average_in_the_dimensions_used() -> None:
    learner = make(ERFSLPlus, normed_net(8, 4), memory=12, replay=4, subspace=3, decay=0.6)
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


def test_with_decay_0_it_is_er_fsl() -> None:
    images = some_images(50, seed=3)
    assert torch.equal(learned(ERFSLPlus, decay=0.0).predict(images), learned(ERFSL).predict(images))
    assert not torch.equal(learned(ERFSLPlus, decay=1.0).predict(images), learned(ERFSL).predict(images))


def test_growing_gives_the_average_the_same_new_rows() -> None:
    learner = learned(ERFSLPlus)
    known = learner.mean.copies[0].head.weight.clone()
    learner.grow(6)
    grown = learner.mean.copies[0].head.weight
    assert torch.equal(grown[:4], known)
    assert torch.equal(grown[4:], learner.net.head.weight[4:])
