"""The file of a StreamClassifier's autosave: it has one owner, goes on as what it was, and copies leave it alone."""

from __future__ import annotations

import copy
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from onepass import StreamClassifier
from onepass.errors import UsageError
from onepass.live.autosave import Autosave
from onepass.live.model import Model
from onepass.live.state import load_model

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 3)), ["a", "b"] * 20


def test_a_fit_over_a_file_that_is_there_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "m.onepass"
    for n in (10, 20):
        model = StreamClassifier(autosave=path).fit(X[:n], Y[:n])
        model.close()
        assert load_model(path).learned == n


def test_a_file_has_one_owner_until_that_is_closed_or_gone(tmp_path: Path) -> None:
    path = tmp_path / "m.onepass"
    first = StreamClassifier(autosave=path).partial_fit(X[:10], Y[:10])
    second = StreamClassifier(autosave=path)
    for name, given in (("partial_fit", (X, Y)), ("fit", (X, Y)), ("learn_one", (X[0], "a"))):
        with pytest.raises(UsageError, match="learned into by another"):
            getattr(second, name)(*given)
    assert not hasattr(second, "model_")
    first.close()
    first.close()
    assert not list(tmp_path.glob(".*"))
    assert second.partial_fit(X[10:15], Y[10:15]).model_.learned == 15
    del second  # saved and given up, as a notebook's cell does that is run again
    assert StreamClassifier(autosave=path).partial_fit(X[15:17], Y[15:17]).model_.learned == 17


def test_a_copy_has_no_claim_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onepass"
    model = StreamClassifier(autosave=path).partial_fit(X, Y)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(copied.predict(X), model.predict(X))
        with pytest.raises(UsageError, match="learned into by another"):
            copied.partial_fit(X, Y)
        assert copied.set_params(autosave=None).partial_fit(X, Y).model_.learned == 80
    model.close()
    assert load_model(path).learned == 40


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.weight(x))


def test_it_goes_on_with_a_network_of_ones_own_and_refuses_another_method(tmp_path: Path) -> None:
    path = tmp_path / "m.onepass"
    asked: dict[str, Any] = {"memory": 20, "autosave": path}
    StreamClassifier("er", Own(), **asked).partial_fit(X[:20], Y[:20]).close()
    again = StreamClassifier("er", Own(), **asked)
    assert again.partial_fit(X[20:30], Y[20:30]).model_.learned == 30
    again.close()
    with pytest.raises(UsageError, match="a model of er, not of finetune"):
        StreamClassifier("finetune", Own(), autosave=path).predict(X)


def test_the_handler_of_another_file_outlives_one_that_is_closed(tmp_path: Path) -> None:
    """Two of them in one process, and the first is closed: SIGTERM still saves the second, and ends the process."""
    before = signal.getsignal(signal.SIGTERM)
    first, second = (Autosave(Model.create((3,)), tmp_path / name, 1e6) for name in "ab")
    first.close()
    assert signal.getsignal(signal.SIGTERM) == second._on_signal
    second.close()
    signal.signal(signal.SIGTERM, before)
    program = (
        "import os, signal, sys; from onepass import StreamClassifier\n"
        "a, b = (StreamClassifier(autosave=name).partial_fit([[1.0], [2.0]], ['x', 'y']) for name in sys.argv[1:])\n"
        "a.close(); b.partial_fit([[3.0]], ['x'])\n"
        "os.kill(os.getpid(), signal.SIGTERM)"
    )
    names = [str(tmp_path / name) for name in ("a.onepass", "b.onepass")]
    ended = subprocess.run([sys.executable, "-c", program, *names], timeout=60)
    assert ended.returncode == -signal.SIGTERM
    assert [load_model(name).learned for name in names] == [2, 3]
