"""The changes to ER-FSL that were tried do what they say, and what was kept is ER-FSL+."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import blocks
import candidates
import plus
from helpers import copied, labelled, make, no_replay, normed_net, rng, some_batch, state_of
from onepass.errors import UsageError
from onepass.learner.augment import AUGMENTATIONS
from onepass.learner.batch import Task
from onepass.learner.checks import failures
from onepass.methods.er_fsl import ERFSL
from onepass.methods.er_fsl_plus import ERFSLPlus
from onepass.methods.registry import method_class


def candidate(**settings: object) -> candidates.Candidate:
    learner = make(candidates.Candidate, normed_net(8, 6), **{"memory": 12, "replay": 4, "subspace": 4, **settings})
    learner.begin_task(Task(0, (1, 4)))
    return learner


def test_a_rival_given_the_last_change_learns_one_view_of_each_image() -> None:
    batch, memory = labelled([0, 1, 1]), labelled([2, 3], seed=1)
    for name, change in plus.RIVALS.items():
        cls = method_class(plus.learner(change))
        assert issubclass(cls, method_class(name))
        learner = make(cls, normed_net(8, 4), augment="digits", replay=change["replay"])
        drawn = AUGMENTATIONS["digits"](torch.cat([batch.x, memory.x]) / 255, copy.deepcopy(learner.rng))
        (x, y), (x_old, y_old) = learner.views(batch, memory)
        assert torch.equal(torch.cat([x, x_old]), drawn)
        assert (y.tolist(), y_old.tolist()) == ([0, 1, 1], [2, 3])


def test_two_changes_of_one_setting_cannot_be_had_together() -> None:
    assert list(plus.together(["one joint forward pass"])) == [plus.BASE, plus.ALL]
    with pytest.raises(UsageError, match="same setting"):
        plus.together(["class-balanced retrieval", "replay without the running task"])
    assert plus.together([plus.PART, plus.MORE])[plus.ALL] == plus.CHANGES[plus.MORE]  # to the same value they can


def test_a_candidate_without_changes_is_er_fsl_bit_for_bit() -> None:
    plain, same = (make(cls, normed_net(8, 6), memory=12, subspace=4) for cls in (ERFSL, candidates.Candidate))
    for learner in (plain, same):
        for index, classes in enumerate([(1, 4), (0, 5)]):
            learner.begin_task(Task(index, classes))
            for seed in range(4):
                learner.observe(some_batch(4, classes, 10 * index + seed))
    assert state_of(copied(same.net)) == state_of(copied(plain.net))
    assert torch.equal(same.memory.field("x"), plain.memory.field("x"))


def test_what_was_kept_is_er_fsl_plus_bit_for_bit() -> None:
    kept = plus.together(["one joint forward pass", "class-balanced storage", plus.MORE])[plus.ALL]
    cls = method_class(plus.learner(kept))
    common = {"augment": "digits", "memory": 40, "subspace": 4}
    tried = make(cls, normed_net(8, 6), **common, **{**plus.settings(kept, "cifar10"), "average": 0.9})
    ours = make(ERFSLPlus, normed_net(8, 6), **common, average=0.9)
    for learner in (tried, ours):
        for index, classes in enumerate([(1, 4), (0, 5)]):
            learner.begin_task(Task(index, classes))
            for seed in range(8):
                learner.observe(some_batch(8, classes, 10 * index + seed))
    assert state_of(copied(ours.average.copies[0])) == state_of(copied(tried.average.copies[0]))
    assert torch.equal(ours.memory.field("x"), tried.memory.field("x"))


@pytest.mark.parametrize("name", plus.CHANGES)
def test_every_change_keeps_the_contract(name: str) -> None:
    cls = method_class(plus.learner(plus.CHANGES[name]))
    config = cls.Config.from_json({**plus.settings(plus.CHANGES[name], "cifar10"), "subspace": None})
    promises = ["same seed, same bits", "save in mid-task and load: identical", "predict is pure", "one-sample batch"]
    assert [problem for _, problem in failures(cls, config, promises) if problem] == []


def test_twice_the_subspace_is_twice_features_over_tasks() -> None:
    change = plus.CHANGES["subspaces twice as large, reused"]
    found = {stream: plus.config(change, stream, 0).learner_config.to_json()["subspace"] for stream in blocks.TITLES}
    assert found == {"cifar10": 64, "cifar100": 32}


def test_a_balanced_draw_takes_classes_alike_and_the_other_no_running_class() -> None:
    counts = torch.zeros(6)
    learner = candidate(draw="balanced", replay=1)
    learner.memory.write(torch.arange(10), labelled([1] * 9 + [4]))
    for _ in range(600):
        counts[learner.retrieve(some_batch(1, (1,))).y] += 1
    assert counts.sum() == 600
    assert 240 < counts[4] < 360  # 300, with a deviation of 12; a uniform draw would give 60
    learner = candidate(draw="old")
    learner.memory.write(torch.arange(4), labelled([1, 4, 1, 4]))
    assert sorted(learner.retrieve(some_batch(1, (1,))).y.tolist()) == [1, 1, 4, 4]  # the first task replays itself
    learner.begin_task(Task(1, (0, 5)))
    learner.memory.write(torch.arange(4, 10), labelled([0, 5, 0, 5, 0, 5]))
    assert sorted(learner.retrieve(some_batch(1, (0,))).y.tolist()) == [1, 1, 4, 4]


def test_balanced_storage_ends_with_classes_as_even_as_the_stream_allows() -> None:
    learner = candidate(store="balanced", memory=12)
    for label, n in ((1, 40), (4, 3), (0, 40)):
        learner.mark_seen([label])
        for start in range(0, n, 10):
            learner.remember(labelled([label] * min(10, n - start), seed=start))
    counts = learner.memory.field("y").bincount(minlength=6).tolist()
    assert counts in ([5, 4, 0, 0, 3, 0], [4, 5, 0, 0, 3, 0])


def test_balanced_storage_keeps_a_fair_sample_of_each_class() -> None:
    """Two classes in turn, three slots: whichever is no longer the largest stays full and loses no fairness."""
    places = []
    for seed in range(40):
        learner = make(candidates.Candidate, normed_net(8, 6), seed=seed, memory=3, subspace=4, store="balanced")
        learner.begin_task(Task(0, (1, 4)))
        for place in range(100):
            batch = labelled([1 + 3 * (place % 2)])
            learner.remember(replace(batch, x=torch.full_like(batch.x, place)))
        places += learner.memory.field("x")[:, 0, 0, 0].tolist()
    assert 40 < sum(places) / len(places) < 60  # fair: 49.5, with a deviation of 2.6


def test_every_candidate_grows_with_the_classes() -> None:
    learner = candidate(store="balanced")
    learner.grow(8)
    learner.mark_seen([7])
    learner.remember(labelled([7] * 20))
    assert int(learner.met[7]) == 20


def test_adams_first_step_is_the_rate_long_in_every_weight_that_has_a_gradient() -> None:
    learner = candidate(adam=True, lr=0.001)
    before = learner.net.head.weight.detach().clone()
    learner.observe(labelled([1, 4, 1], seed=1))
    moved = (learner.net.head.weight.detach() - before)[[1, 4], :4]
    torch.testing.assert_close(moved.abs(), torch.full((2, 4), 0.001), rtol=1e-3, atol=1e-6)


def test_gamma_follows_the_share_of_old_classes_where_that_is_larger() -> None:
    learner = candidate(follow=True, gamma=0.3)
    batch, replay = labelled([1]), labelled([4])
    assert [weight for *_, weight in learner.terms(batch, replay)] == [0.7, 0.3]
    learner.begin_task(Task(1, (0, 5)))
    learner.begin_task(Task(2, (2,)))
    assert [weight for *_, weight in learner.terms(batch, replay)] == pytest.approx([0.2, 0.8])


def test_cosine_scores_are_those_of_the_dimensions_in_use() -> None:
    learner = candidate(cosine=10.0)
    features = torch.rand(3, 8, generator=rng(1))
    expected = F.cosine_similarity(features[:, None, :4], learner.net.head.weight[None, :, :4], dim=2)
    torch.testing.assert_close(learner.logits(features, "task"), 10 * expected, rtol=1e-4, atol=1e-4)


def test_the_average_teaches_what_it_says_of_replayed_images() -> None:
    plain, taught = (candidate(teach=weight, average=0.5, softening=2.0) for weight in (0.0, 0.7))
    for learner in (plain, taught):
        learner.average.follow(1)
        with torch.no_grad():
            learner.average.copies[0].head.weight.mul_(3)
    batch, replay = labelled([1, 4], seed=1), labelled([4, 1, 1], seed=2)
    before = {name: value.clone() for name, value in taught.state_dict().items() if torch.is_tensor(value)}
    teacher = taught.average.copies[0].eval()
    said = (
        F.linear(teacher.features(replay.x / 255) * taught.space("used"), teacher.head.weight)[:, [1, 4]] / 2
    ).softmax(1)
    state = taught.rng.get_state()
    given = []
    real = taught.forward_batches

    def recorded(*args: object, **kwargs: object) -> object:
        found = real(*args, **kwargs)
        given.append(found[1][0])
        return found

    taught.forward_batches = recorded  # type: ignore[method-assign]
    loss = taught.loss(batch, replay)
    for name in ("net.head.weight", "net.body.1.weight"):
        assert torch.equal(taught.state_dict()[name], before[name])
    plain.rng.set_state(state)
    logits = F.linear(given[0] * taught.space("used"), taught.net.head.weight)[:, [1, 4]] / 2
    distance = 4 * (said * (said.log() - logits.log_softmax(1))).sum(1).mean()
    torch.testing.assert_close(loss, plain.loss(batch, replay) + 0.3 * 0.7 * distance, rtol=1e-4, atol=1e-4)
    taught.forward_batches = real  # type: ignore[method-assign]
    torch.testing.assert_close(taught.loss(batch, no_replay(taught)), plain.loss(batch, no_replay(plain)))
