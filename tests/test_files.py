"""Files appear whole or not at all, whoever is killed while writing them, and nothing stays beside them."""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from pathlib import Path
from typing import IO

import pytest

import forked
from onepass import files
from onepass.errors import RunError
from onepass.files import atomic, write_text


@pytest.mark.system
@pytest.mark.parametrize("kind", ["nameless", "named"])
def test_processes_killed_while_saving_leave_a_whole_file_and_nothing_else(tmp_path: Path, kind: str) -> None:
    from onepass.learner.checkpoint import load_tree

    path = tmp_path / "model.safetensors"
    for number in range(12):
        ready = tmp_path.with_suffix(f".{number}")
        saver = forked.saving(path, ready, kind)
        while not ready.exists():
            assert saver.is_alive()
            time.sleep(0.002)
        time.sleep(0.05 + 0.013 * number)
        saver.kill()
        assert forked.code(saver) == -signal.SIGKILL
        left = [entry.name for entry in tmp_path.iterdir() if entry != path]
        assert len(left) <= (kind == "named"), "one file at most, which the next save removes"
        if path.exists():
            assert load_tree(path)["n"] >= 0
    write_text(path, "whole")
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("nameless", [True, False])
def test_a_failed_write_leaves_what_was_there(tmp_path: Path, nameless: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not nameless:
        monkeypatch.setattr(files, "_nameless", lambda folder: None)
    path = tmp_path / "file"
    write_text(path, "old")

    def half(file: IO[bytes]) -> None:
        file.write(b"half")
        raise OSError("disk full")

    with pytest.raises(RunError, match="disk full; what was there before is untouched"):
        atomic(path, half)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_new_private_file_is_its_owners_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    def write(file: IO[bytes]) -> None:
        file.write(b"x")

    private, shared = tmp_path / "private", tmp_path / "shared"
    atomic(private, write, private=True)
    atomic(shared, write)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(shared.stat().st_mode) == 0o666 & ~files.UMASK
    private.chmod(0o640)
    atomic(private, write, private=True)
    assert stat.S_IMODE(private.stat().st_mode) == 0o640


def test_a_link_keeps_pointing_where_it_points(tmp_path: Path) -> None:
    there, link = tmp_path / "there" / "file", tmp_path / "link"
    there.parent.mkdir()
    link.symlink_to(there)
    write_text(link, "new")
    assert link.is_symlink()
    assert there.read_text() == "new"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link", "there"]


def test_threads_that_write_one_file_each_write_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    texts = [str(number) * 10_000 for number in range(8)]
    threads = [threading.Thread(target=write_text, args=(path, text)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() in texts
    assert os.listdir(tmp_path) == ["file"]
