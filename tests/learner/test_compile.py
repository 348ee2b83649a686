"""The body passed through torch.compile: the same learner, by whatever torch makes of its layers."""

from __future__ import annotations

import copy
import functools
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import some_batch, some_images
from onepass.bench.run_config import RunConfig
from onepass.learner.base import Learner
from onepass.learner.batch import Task
from onepass.learner.problem import Problem
from onepass.methods.er import ERConfig
from onepass.methods.factory import build, load, save

SHAPE = (1, 4, 4)


def learned(steps: int = 3, **settings: Any) -> Learner:
    learner = build("er", Problem(4, SHAPE, "none", 2), ERConfig(memory=8, replay=4, **settings), net="small-cnn")
    assert isinstance(learner, Learner)
    learner.begin_task(Task(0, (0, 1, 2, 3)))
    for seed in range(steps):
        learner.observe(some_batch(4, range(4), seed))
    return learner


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Without a code generator: the layers as torch's compiler read them, which give the same bits."""
    calls: list[str] = []

    def compiled(forward: Any) -> Any:
        inside = plain(forward)

        @functools.wraps(forward)
        def called(x: torch.Tensor) -> Any:
            calls.append("pass")
            return inside(x)

        return called

    plain = functools.partial(torch.compile, backend="eager")
    monkeypatch.setattr(torch, "compile", compiled)
    return calls


@pytest.mark.system
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler on a CPU")
def test_compiled_steps_and_predictions_are_those_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # a process that was killed may leave half a file
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)  # no processes that outlive the test
    plain, compiled = learned(1), learned(1, compile=True)  # more would compile again, for a batch of another size
    x = some_images(8).float() / 255
    assert compiled.net._quick is not None
    for name, value in plain.net.state_dict().items():
        torch.testing.assert_close(compiled.net.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    with plain.predicting() as one, compiled.predicting() as other:
        torch.testing.assert_close(other.scores(x), one.scores(x), rtol=1e-4, atol=1e-4)


def test_a_compiled_learner_is_averaged_copied_saved_and_continued_as_any_other(
    used: list[str], tmp_path: Path
) -> None:
    plain, compiled = learned(average=0.5), learned(average=0.5, compile=True)
    assert len(used) == 5, "one pass of new images in each step, and of replayed ones in all but the first"
    x = some_images(6, seed=9)
    snapshot, copied = compiled.snapshot(), copy.deepcopy(compiled)
    assert copied.net._quick is None, "what is compiled passes the weights of the learner that was copied"
    save(compiled, tmp_path / "it.onepass")
    again = load(tmp_path / "it.onepass")
    known = plain.predict(x)
    for learner in (snapshot, compiled, copied, again):
        before = len(used)
        assert torch.equal(learner.predict(x), known)
        assert len(used) == before + 1
    for learner in (plain, copied, again):
        learner.observe(some_batch(4, range(4), 17))
    for learner in (copied, again):
        for name, value in plain.net.state_dict().items():
            assert torch.equal(learner.net.state_dict()[name], value), name


def test_in_bf16_a_compiled_body_computes_in_bf16(used: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    low, compiled = learned(1, precision="bf16"), learned(1, precision="bf16", compile=True)
    assert used
    for name, value in low.net.state_dict().items():
        assert torch.equal(compiled.net.state_dict()[name], value), name


def test_it_is_off_and_part_of_a_runs_key_when_it_is_on() -> None:
    off, on = (RunConfig("er", settings={"compile": compiled}) for compiled in (False, True))
    assert RunConfig("er").key == off.key == "7b3840b63e" != on.key
