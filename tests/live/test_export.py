"""Exported models answer as the model does: in onnxruntime and in torch, for methods of every way to predict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from sklearn.datasets import load_digits

from onepass.live.export import export
from onepass.live.model import Model

WAYS: dict[str, dict[str, Any]] = {
    "patch-lda": {"filters": 10, "first": 50, "pairs": 6},  # statistics of features
    "er": {},  # a network
    "icarl": {},  # class means of stored samples
}


def taught(method: str, shape: tuple[int, ...]) -> tuple[Model, torch.Tensor]:
    data = load_digits()
    images = (torch.from_numpy(data.images) * 15).byte()[:, None]
    x = images if len(shape) == 3 else images.flatten(1).float()
    net = "" if len(shape) == 1 else "small-cnn"
    model = Model.create(shape, method=method, net=net, settings=WAYS.get(method), memory=100, augment="none")
    model.learn(x[:300], [f"d{c}" for c in data.target[:300]])
    return model, x[300:900]


@pytest.mark.system
@pytest.mark.parametrize(("method", "shape"), [*((name, (1, 8, 8)) for name in WAYS), ("slda", (64,))])
def test_onnxruntime_answers_alike(method: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    model, x = taught(method, shape)
    snapshot = model.snapshot()
    assert export(snapshot, tmp_path / "m.onnx") == "ONNX"
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    [found] = session.run(["probabilities"], {"x": x.numpy()})
    expected = snapshot.probabilities(x).numpy()
    assert (found.argmax(1) == expected.argmax(1)).all()
    assert np.abs(found - expected).max() < 1e-5
    [one] = session.run(None, {"x": x[:1].numpy()})
    assert np.abs(one - expected[:1]).max() < 1e-5
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["onepass.names"]) == list(snapshot.names)
    assert json.loads(facts["onepass.shape"]) == list(shape)
    assert str(Path(__file__).parents[2]).encode() not in (tmp_path / "m.onnx").read_bytes(), "no path of this machine"


@pytest.mark.system
def test_torch_export_answers_alike(tmp_path: Path) -> None:
    model, x = taught("er", (1, 8, 8))
    assert export(model.snapshot(), tmp_path / "m.pt2") == "torch.export"
    names = {"onepass.json": ""}
    loaded = torch.export.load(tmp_path / "m.pt2", extra_files=names).module()
    assert torch.allclose(loaded(x).double(), model.snapshot().probabilities(x), atol=1e-6)
    assert json.loads(names["onepass.json"])["shape"] == [1, 8, 8]
