"""What a shell, a terminal and a scheduler do to a command: it says so, loses nothing, and shows no traceback."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import forked
from data_helpers import noise, save, some_classes
from onepass.cli import signals
from onepass.cli.main import main

ONEPASS = [sys.executable, "-m", "onepass"]
LONG = ["run", "er", "--memory", "50", "--batch", "5", "--fraction", "0.4", "--checkpoint-seconds", "1000"]
TWO = [*LONG, "--runs", "2", "--json"]


def started(words: list[str], tmp_path: Path) -> forked.Command:
    """A command in its first steps."""
    command = forked.Command([*words, "--out", str(tmp_path)])
    begun(tmp_path)
    return command


def begun(out: Path) -> None:
    """Wait until the first task is over."""
    deadline = time.monotonic() + 600
    while not list(out.rglob("evaluations.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)


def fingerprints(words: list[str], out: Path) -> list[str]:
    said, _ = forked.Command([*words, "--out", str(out)]).communicate()
    return [run["fingerprint"] for run in json.loads(said)["runs"]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """What the runs end with if nothing stops them, one after the other or side by side."""

    @functools.cache
    def ends(jobs: str) -> list[str]:
        return fingerprints([*TWO, "--jobs", jobs], tmp_path_factory.mktemp("whole"))

    return ends


@pytest.mark.system
@pytest.mark.xdist_group("signals")  # what they share is made once
@pytest.mark.parametrize(
    ("number", "code", "jobs"),
    [(signal.SIGTERM, 143, "1"), (signal.SIGHUP, 129, "2"), (signal.SIGINT, 130, "1"), (signal.SIGINT, 130, "2")],
)
def test_a_signal_saves_says_so_and_the_same_command_goes_on(
    number: signal.Signals, code: int, jobs: str, tmp_path: Path, whole: Callable[[str], list[str]]
) -> None:
    words = [*TWO, "--jobs", jobs]
    command = started(words, tmp_path / "runs")
    command.send_signal(number)
    out, err = command.communicate()
    assert command.returncode == code, err
    assert out == ""
    assert "stopping: each run saves its state after this step" in err
    assert "the same command continues where it was" in err
    assert "Traceback" not in err
    assert list(tmp_path.rglob("checkpoint.safetensors")), "saved when it was told to, not by the clock"
    assert fingerprints(words, tmp_path / "runs") == whole(jobs)


@pytest.mark.system
def test_a_command_under_nohup_goes_on_when_its_terminal_closes(tmp_path: Path) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    words, pipe = [*ONEPASS, *LONG, "--jobs", "1", "--json", "--out", str(tmp_path)], subprocess.PIPE
    command = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, preexec_fn=ignore)
    begun(tmp_path)
    command.send_signal(signal.SIGHUP)
    out, err = command.communicate(timeout=600)
    assert command.returncode == 0, err
    assert json.loads(out)["runs"]


@pytest.mark.system
@pytest.mark.parametrize("redirect", [">&-", "> /dev/full", ">&- 2>&-"])
def test_a_result_that_cannot_be_printed_is_an_error_and_stays_stored(redirect: str, tmp_path: Path) -> None:
    if "full" in redirect and not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    words = ["run", "finetune", "--batch", "50", "--fraction", "0.1", "--out", str(tmp_path / "runs")]
    done = subprocess.run(f"{shlex.join([*ONEPASS, *words])} {redirect}", shell=True, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    if "2>&-" not in redirect:
        assert "cannot print the result" in done.stderr
    assert list(tmp_path.rglob("result.json"))
    assert "FINE-TUNE" in forked.Command(words).communicate()[0]


@pytest.mark.system
def test_a_terminal_that_knows_ascii_alone_shows_the_table(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    words = [*ONEPASS, "run", "finetune", "--batch", "50", "--fraction", "0.1", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, env=env)
    assert done.returncode == 0, done.stderr
    assert b"FINE-TUNE" in done.stdout
    assert done.stdout.isascii()


def test_without_a_home_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def nobody(number: int) -> None:
        raise KeyError(number)

    for name in ("HOME", "XDG_CACHE_HOME", "ONEPASS_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert main(["data", "check", "cifar10"]) == 2
    assert "there is no such home folder; --data-dir or ONEPASS_DATA" in capsys.readouterr().err


def test_names_from_files_never_reach_the_terminal_raw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("[b]", "[red]cat", "\x1b[31mred", "<img src=x>", "a|b")
    root = some_classes(tmp_path / "p[x]\x1b[2J", names)
    assert main(["data", "check", str(root), "--data-dir", str(tmp_path / "data")]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[b]" in out
    assert "[red]cat" in out
    words = ["run", "finetune", "--stream", str(root), "--net", "small-cnn", "--data-dir", str(tmp_path / "data")]
    assert main([*words, "--out", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    [table] = (tmp_path / "runs").glob("*.md")
    assert "\x1b" not in table.read_text()
    assert main(["run", "finetune", "--stream", "\x1b[2Jnowhere"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_class_folders_that_are_not_utf_8_and_links_to_themselves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = some_classes(tmp_path / "photos")
    odd = os.fsencode(root) + b"/\xff\xfe"
    os.mkdir(odd)
    for number in range(5):
        save(Path(os.fsdecode(odd)) / f"{number}.png", noise(number))
    (root / "cat" / "l.jpg").symlink_to("l.jpg")
    (root / "loop").symlink_to("loop")
    words = ["run", "finetune", "--stream", str(root), "--net", "small-cnn", "--tasks", "3"]
    words += ["--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "runs")]
    assert main(words) == 0
    capsys.readouterr()
    assert main(["data", "check", str(root), "--data-dir", str(tmp_path / "data")]) == 0
    assert "\\udcff\\udcfe" in capsys.readouterr().out


def test_a_signal_in_an_import_waits_for_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There it could be lost, or end the process in somebody's C code."""
    lines = ["import os, signal, time", "os.kill(os.getpid(), signal.SIGTERM)", "time.sleep(0.2)", "whole = True"]
    (tmp_path / "imported_slowly.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    called: list[bool] = []
    with signals.handled(lambda: called.append(True)):
        assert importlib.import_module("imported_slowly").whole
        assert not called
        deadline = time.monotonic() + 10
        while not called and time.monotonic() < deadline:
            time.sleep(0.01)
    assert called == [True]


def test_a_stop_that_somebody_swallowed_is_told_to_what_begins_next() -> None:
    called: list[bool] = []
    signals.from_now_on()
    with signals.handled(signals.interrupt):
        with contextlib.suppress(BaseException):  # as a destructor would
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        with signals.handled(lambda: called.append(True)):
            assert called == [True]
    signals.from_now_on()


@pytest.mark.system
def test_a_signal_while_torch_is_imported_ends_the_command_in_order() -> None:
    for delay in (0.5, 0.8, 1.1, 1.4):
        command = subprocess.Popen([*ONEPASS, "inspect", "nothing.onepass"], stderr=subprocess.PIPE, text=True)
        time.sleep(delay)
        command.send_signal(signal.SIGTERM)
        err = command.communicate(timeout=60)[1]
        assert command.returncode in (143, 1, -signal.SIGTERM), err  # 1: it was over; -15: not begun
        assert "Traceback" not in err
