"""A learner of statistics beside a network: it counts what the network learns, and their log-probabilities add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import onepass
from helpers import rng
from method_helpers import FewFilters
from onepass.errors import Diverged
from onepass.learner.batch import Batch
from onepass.learner.checkpoint import fingerprint
from onepass.learner.problem import Problem
from onepass.methods.patch_lda import PatchLDA

PHOTOS = Problem(4, (3, 9, 8), "none", n_tasks=2)
VECTORS = Problem(4, (6,), n_tasks=2)
SETTINGS = {"memory": 12, "replay": 4, "lr": 0.02, "expert": True}


def some(problem: Problem, n: int = 40, seed: int = 0, classes: int = 4) -> Batch:
    y = torch.randint(classes, (n,), generator=rng(seed))
    if problem.images:
        x = torch.randint(256, (n, *problem.shape), generator=rng(seed + 1), dtype=torch.uint8)
        return Batch((x // (1 + y[:, None, None, None])).to(torch.uint8), y)
    return Batch(torch.randn(n, *problem.shape, generator=rng(seed + 1)) + y[:, None], y)


def fed(learner: Any, batch: Batch) -> Any:
    for rows in torch.arange(len(batch)).split(10):
        learner.observe(batch[rows])
    return learner


def scores(learner: Any, x: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    with learner.predicting() as predictor, torch.inference_mode():
        found: np.ndarray[Any, np.dtype[np.float64]] = predictor.raw_scores(x).double().numpy()
    return found


@pytest.mark.parametrize(("problem", "net", "alone"), [(PHOTOS, "small-cnn", "patch-lda"), (VECTORS, "mlp", "slda")])
def test_log_probabilities_of_both_are_added(
    problem: Problem, net: str, alone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PatchLDA, "Config", FewFilters)
    batch, asked = some(problem), some(problem, 30, seed=7)
    with_expert = fed(onepass.build("er", problem, SETTINGS, net=net), batch)
    without = fed(onepass.build("er", problem, {**SETTINGS, "expert": False}, net=net), batch)
    expert = fed(onepass.build(alone, problem), batch)

    def log_softmax(z: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = z - np.log(np.exp(z - z.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True))
        found -= z.max(axis=1, keepdims=True)
        return found

    expected = log_softmax(scores(without, asked.x)) + log_softmax(scores(expert, asked.x))
    np.testing.assert_allclose(scores(with_expert, asked.x), expected, rtol=1e-4, atol=1e-3)
    assert with_expert.predict(asked.x).tolist() == expected.argmax(axis=1).tolist()


def test_classes_that_were_never_seen_take_no_probability() -> None:
    learner = fed(onepass.build("er", VECTORS, SETTINGS), some(VECTORS, classes=2))
    found = scores(learner, some(VECTORS, 20, seed=7).x)
    assert np.isneginf(found[:, 2:]).all()
    assert np.isfinite(found[:, :2]).all()


def test_the_features_of_a_frozen_network_are_what_the_expert_counts() -> None:
    def body(shape: tuple[int, ...]) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(168, 5)).requires_grad_(False)

    batch = some(PHOTOS)
    learner = fed(onepass.build("er", PHOTOS, SETTINGS, net=body), batch)
    alone = fed(onepass.build("slda", PHOTOS, net=body), batch)
    torch.testing.assert_close(learner.expert.means, alone.means, rtol=1e-4, atol=1e-5)


def test_it_is_saved_grows_and_serves_snapshots_as_any_learner(tmp_path: Path) -> None:
    batch, more = some(VECTORS, 40), some(VECTORS, 40, seed=5)
    learner = fed(onepass.build("er", VECTORS, SETTINGS), batch)
    onepass.save(learner, tmp_path / "model.safetensors")
    again = onepass.load(tmp_path / "model.safetensors")
    snapshot = learner.snapshot()
    before = snapshot(more.x).tolist()
    for one in (learner, again):
        one.grow(6)
        fed(one, more)
        one.observe(Batch(more.x[:10] + 20, torch.full((10,), 5)))
    assert fingerprint(again.state_dict()) == fingerprint(learner.state_dict())
    assert snapshot(more.x).tolist() == before
    assert (learner.predict(more.x[:10] + 20) == 5).all()


def test_a_refused_step_leaves_the_expert_as_it_was() -> None:
    learner = onepass.build("er", VECTORS, {**SETTINGS, "lr": 1e39})
    assert learner.expert is not None
    batch = some(VECTORS, 10, classes=2)
    before = fingerprint(learner.expert.state_dict())
    with pytest.raises(Diverged):
        learner.observe(batch)
    assert fingerprint(learner.expert.state_dict()) == before
    assert learner.seen == set()
