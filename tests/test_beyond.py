"""The tables of docs/beyond.md against figures worked out by hand, and the changes to ER-FSL that it tries."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

import beyond
import candidates
import plus
from helpers import labelled, make, no_replay, normed_net, rng, some_batch, some_images
from onepass import pictures
from onepass.batch import Task
from onepass.results import Result, RunConfig


def result(config: RunConfig, last: float, average: float) -> Result:
    """Two tasks; by the last weights the old task falls to 0.2 on the way, by the average to 0.4."""
    looks = [
        {"step": 10, "accuracy": [0.6], "accuracy_average": [0.8]},
        {"step": 30, "accuracy": [0.2, 0.4], "accuracy_average": [0.4, 0.6]},
    ]
    return Result(
        config,
        [[0.9], [last, last]],
        40,
        1.0,
        "",
        {},
        {},
        accuracy_matrix_average=[[0.9], [average, average]],
        anytime=looks,
    )


def test_averages_stand_as_differences_to_the_last_weights_of_the_same_run(tmp_path: Path) -> None:
    assert beyond.averages(tmp_path) == "Not run yet."
    for seed, (last, better) in enumerate([(0.2, 0.3), (0.4, 0.52)]):
        values = {
            "config": {"stream": "cifar10", "method": "er", "seed": seed},
            "accuracy": {"last": [last, last], "decay 0.9": [better - 0.1, better + 0.1]},
        }
        (tmp_path / f"{seed}.json").write_text(json.dumps(values))
    lines = beyond.averages(tmp_path).splitlines()
    assert lines[0] == "| kept | ER, CIFAR-10 |"
    assert lines[2] == "| the last weights | 30.0 ± 127.1 |"
    assert lines[3] == "| decay 0.9 | +11.0 ± 12.7 (2) |"  # 10 and 12; t = 11 with one degree of freedom: p = 0.058


def test_last_weights_and_average_stand_side_by_side() -> None:
    config = RunConfig("er", "cifar10", tasks=2, net="slim-resnet18", anytime=20, settings={"average": 0.9})
    results = [result(replace(config, seed=seed), 0.3 + 0.1 * seed, 0.5 + 0.101 * seed) for seed in range(2)]
    [head, _, row, *_] = beyond.last_and_average(results).splitlines()
    assert head.startswith("| row | last weights | average | difference | anytime, last | average | worst case, last |")
    # anytime (0.6 + 0.3) / 2 and (0.8 + 0.5) / 2
    cells = ["ER", "35.0 ± 63.5", "55.0 ± 64.2", "**+20.1 ± 0.6 (2)**", "45.0", "65.0", "27.5", "47.5"]
    assert row == "| " + " | ".join(cells) + " |"  # worst case: (0.2 + 0.35) / 2 and (0.4 + 0.55) / 2
    assert beyond.last_and_average([replace(one, anytime=[]) for one in results]) == "Not run yet."


def test_curves_show_the_mean_of_the_runs_by_last_weights_and_by_average(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig("er", "cifar10", tasks=2, net="slim-resnet18", anytime=20, settings={"average": 0.9})
    results = [result(replace(config, seed=seed), 0.3, 0.5) for seed in range(2)]
    results[1].anytime[0]["accuracy"] = [0.8]
    drawn: list[Figure] = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: drawn.append(figure))
    beyond.curves(results, tmp_path / "curves.png")
    panel = drawn[0].axes[0]
    means = {line.get_label(): list(line.get_ydata()) for line in panel.lines if line.get_alpha() is None}
    assert panel.get_title(loc="left") == "ER, n = 2"
    assert means["last weights"] == pytest.approx([70, 30])  # 60 and 80; 20 and 40 in both
    assert means["average"] == pytest.approx([80, 50])


def test_a_change_stands_as_its_difference_to_the_runs_without_it() -> None:
    base, joint, *_ = plus.CHANGES
    runs = [result(plus.config(plus.CHANGES[base], "cifar10", seed), 0.1, 0.4) for seed in range(3)]
    gains = (0.01, 0.02, 0.03)
    runs += [result(plus.config(plus.CHANGES[joint], "cifar10", s), 0.9, 0.4 + gain) for s, gain in enumerate(gains)]
    lines = beyond.changes(runs).splitlines()
    assert lines[0] == "| change | CIFAR-10 |"
    assert lines[2] == f"| {base} | 40.0 ± 0.0 |"
    assert lines[3] == f"| {joint} | +2.0 ± 2.5 (3) |"  # sd 1, t(0.975, 2) = 4.303, over sqrt(3); p = 0.074
    assert len(lines) == 2 + len(plus.CHANGES) + 2
    assert beyond.changes(runs[3:]) == "Not run yet."


def test_twice_the_subspace_is_twice_features_over_tasks() -> None:
    change = plus.CHANGES["subspaces twice as large, reused"]
    found = {stream: plus.config(change, stream, 0).learner_config.to_json()["subspace"] for stream in beyond.TITLES}
    assert found == {"cifar10": 64, "cifar100": 32}


# The changes.


def candidate(**settings: object) -> candidates.Candidate:
    learner = make(candidates.Candidate, normed_net(8, 6), **{"memory": 12, "replay": 4, "subspace": 4, **settings})
    learner.begin_task(Task(0, (1, 4)))
    return learner


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
    assert len(learner.retrieve(some_batch(1, (1,)))) == 0
    learner.begin_task(Task(1, (0, 5)))
    learner.memory.write(torch.arange(4, 10), labelled([0, 5, 0, 5, 0, 5]))
    assert sorted(learner.retrieve(some_batch(1, (0,))).y.tolist()) == [1, 1, 4, 4]


def test_balanced_storage_ends_with_classes_as_even_as_the_stream_allows() -> None:
    learner = candidate(store="balanced", memory=12)
    for label, n in ((1, 40), (4, 3), (0, 40)):
        learner.meet([label])
        for start in range(0, n, 10):
            learner.remember(labelled([label] * min(10, n - start), seed=start))
    y = learner.memory.field("y")
    assert y.bincount(minlength=6).tolist() == [5, 4, 0, 0, 3, 0] or y.bincount(minlength=6).tolist() == [
        4,
        5,
        0,
        0,
        3,
        0,
    ]


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
    real = taught.passes

    def recorded(*args: object, **kwargs: object) -> object:
        found = real(*args, **kwargs)
        given.append(found[1][0])
        return found

    taught.passes = recorded  # type: ignore[method-assign]
    loss = taught.loss(batch, replay)
    for name in ("net.head.weight", "net.body.1.weight"):
        assert torch.equal(taught.state_dict()[name], before[name])
    plain.rng.set_state(state)
    logits = F.linear(given[0] * taught.space("used"), taught.net.head.weight)[:, [1, 4]] / 2
    distance = 4 * (said * (said.log() - logits.log_softmax(1))).sum(1).mean()
    torch.testing.assert_close(loss, plain.loss(batch, replay) + 0.7 * distance, rtol=1e-4, atol=1e-4)
    taught.passes = real  # type: ignore[method-assign]
    torch.testing.assert_close(taught.loss(batch, no_replay(taught)), plain.loss(batch, no_replay(plain)))


def test_statistics_from_the_memory_are_those_of_its_images_and_stay_outside() -> None:
    learner = candidate(anew=True)
    learner.observe(labelled([1, 4, 1], seed=1))
    before = learner.net.body[2].running_mean.clone()
    images = some_images(5, seed=3)
    stored = learner.memory.read(torch.arange(len(learner.memory))).x / 255
    inner = learner.net.body[1](learner.net.body[0](stored))
    with learner.predicting() as predict:
        predict(images)
    assert torch.equal(learner.net.body[2].running_mean, before)
    learner.eval()
    net = normed_net(8, 6)
    net.load_state_dict(learner.net.state_dict(), strict=False)
    net.head.register_parameter("bias", None)
    candidates.estimate(net, learner.memory, 500)
    torch.testing.assert_close(net.body[2].running_mean, inner.mean(0))
    assert not net.training
