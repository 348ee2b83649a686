"""What autosave does when it cannot, and when something was forgotten."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
import torch

from helpers import linux_only
from onepass.live import autosave as module
from onepass.live.autosave import Autosave
from onepass.live.model import Model
from onepass.live.state import load_model, older_copy, save_model


def taught() -> Model:
    model = Model.create((3,))
    model.learn(torch.eye(3), ["a", "b", "a"], ["1", "2", "3"])
    return model


@linux_only
def test_saving_goes_on_where_not_even_a_warning_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk that holds the log too."""
    folder = tmp_path / "folder"
    folder.write_text("in the way")
    full = open("/dev/full", "w", buffering=1)  # noqa: SIM115  # to close it fails as well
    monkeypatch.setattr(sys, "stderr", full)
    saving = Autosave(taught(), folder / "m.onepass", 1e6)
    assert not saving.save()
    assert "folder" in saving.failure
    folder.unlink()
    assert saving.save()
    assert load_model(folder / "m.onepass").learned == 3
    saving.close()
    with contextlib.suppress(OSError):
        full.close()


def test_older_copies_are_gone_before_a_file_without_what_was_forgotten_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in between, the next process would not know that they hold it."""
    path, model = tmp_path / "m.onepass", taught()
    for _ in range(3):
        save_model(model, path)
    copies: list[bool] = []

    def killed(*_: object, **__: object) -> int:
        copies.extend(older_copy(path, n).exists() for n in (1, 2))
        raise SystemExit

    saving = Autosave(model, path, 1e6)
    monkeypatch.setattr(module, "save_model", killed)
    with pytest.raises(SystemExit):
        saving.erase()
    assert copies == [False, False]
    monkeypatch.undo()
    saving.close()
