"""Memory that cannot be had: a sentence at the command line, and no file is blamed or left out for it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import onepass
from data_helpers import some_classes
from onepass.cli import main as command
from onepass.data.catalog import Datasets
from onepass.errors import RunError, UsageError, lacks_memory
from onepass.learner.base import Learner

GREEDY = """
import torch
from onepass.learner.base import Learner

class Greedy(Learner):
    def loss(self, batch, replay):
        return torch.empty(1 << 60)
"""
BEYOND = 1 << 60  # bytes that no machine can give


def raised(function: Callable[[], object]) -> BaseException:
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        function()
    return caught.value


@pytest.mark.parametrize(
    "ask",
    [
        lambda: bytearray(BEYOND),
        lambda: np.empty(BEYOND, dtype=np.uint8),
        lambda: torch.empty(BEYOND, dtype=torch.uint8),
    ],
)
def test_the_words_of_python_numpy_and_torch_are_known(ask: Callable[[], object]) -> None:
    assert lacks_memory(raised(ask))


def test_other_errors_are_no_lack_of_memory() -> None:
    assert lacks_memory(OSError(errno.ENOMEM, "Cannot allocate memory"))
    assert not lacks_memory(OSError(errno.EIO, "Input/output error"))
    assert not lacks_memory(raised(lambda: torch.zeros(2) @ torch.zeros(3)))
    assert not lacks_memory(ValueError("out of memory"))


def test_a_run_without_memory_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert command.main(["run", "greedy:Greedy", "--batch", "50", "--jobs", "1", "--out", "runs"]) == 1
    said = capsys.readouterr().err
    assert "greedy:Greedy seed 0: not enough memory (" in said
    assert "the same command continues" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory"), RuntimeError("std::bad_alloc")]
)
def test_so_is_a_command_without_it(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setitem(command.COMMANDS, "methods", fail)
    assert command.main(["methods"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("onepass: not enough memory (")
    assert "Traceback" not in said


def test_other_bugs_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setitem(command.COMMANDS, "methods", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        command.main(["methods"])


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.EIO, "Input/output error"), OSError(errno.EMFILE, "Too many open files")]
)
def test_an_image_that_cannot_be_read_now_is_not_left_out(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, datasets = some_classes(tmp_path / "photos"), Datasets(tmp_path / "data")
    opened = Image.open

    def fail_once(source: Any, *rest: Any, **more: Any) -> Image.Image:
        monkeypatch.setattr(Image, "open", opened)
        raise error

    monkeypatch.setattr(Image, "open", fail_once)
    with pytest.raises(RunError, match="cannot be read now"):
        datasets.load(str(root))
    data = datasets.load(str(root))
    assert len(data.x) + len(data.x_test) == 10


def test_an_npz_is_not_called_damaged_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((8, 4, 4), dtype=np.uint8), y=np.arange(8) % 2)

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "frombuffer", fail)
    with pytest.raises(UsageError, match="not enough memory to read it") as caught:
        Datasets(tmp_path / "data").load(str(tmp_path / "a.npz"))
    assert "damaged" not in str(caught.value)


def test_a_checkpoint_that_cannot_be_opened_now_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = onepass.RunConfig("er", batch=50, fraction=0.2, settings={"memory": 20})

    class Stopped(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == total:
            raise Stopped

    with pytest.raises(Stopped):
        onepass.run(config, tmp_path, checkpoint_seconds=0, progress=stop)
    [checkpoint] = tmp_path.rglob("checkpoint.safetensors")
    written, opened = checkpoint.read_bytes(), Path.open

    def fail(path: Path, *rest: Any, **more: Any) -> Any:
        if path == checkpoint:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return opened(path, *rest, **more)

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(RunError, match="cannot be read now: Input/output error"):
        onepass.run(config, tmp_path)
    assert written == opened(checkpoint, "rb").read()


def test_a_checkpoint_is_not_given_up_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = onepass.Problem(n_classes=2, shape=(1, 4, 4))
    onepass.save(onepass.build("er", problem, net="small-cnn"), tmp_path / "model")

    def fail(*_: object, **__: object) -> None:
        torch.empty(BEYOND, dtype=torch.uint8)

    monkeypatch.setattr(Learner, "load_state_dict", fail)
    with pytest.raises(RuntimeError, match="memory"):
        onepass.load(tmp_path / "model")
