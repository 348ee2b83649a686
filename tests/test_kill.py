"""Real processes, killed with SIGKILL at random moments, for every method: the end is the same to the bit."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from onepass import store
from onepass.config import ReplayConfig
from onepass.methods import METHODS, method_class
from onepass.results import RunConfig


def start(out: Path) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "onepass.cli",
        "compare",
        *METHODS,
        "--memory",
        "50",
        "--batch",
        "20",
        "--out",
        str(out),
    ]
    command += ["--jobs", "1", "--checkpoint-seconds", "0.1"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def finish(out: Path) -> dict[str, str]:
    assert start(out).wait(timeout=300) == 0
    results = [json.loads(path.read_text()) for path in out.rglob("result.json")]
    assert not list(out.rglob("checkpoint.safetensors")), "a finished run keeps no checkpoint"
    return {result["method"]: result["fingerprint"] for result in results}


def written_since(path: Path, moment: float) -> bool:
    try:
        return path.stat().st_mtime > moment
    except FileNotFoundError:
        return False


def kill_during(method: str, out: Path, after: float) -> bool:
    """Start, wait until this process has saved a state of this method, then a little; was it hit in mid-stream?"""
    path = store.folder(out, RunConfig(method, batch=20, settings=settings(method))) / "checkpoint.safetensors"
    begin, process = time.time(), start(out)
    while process.poll() is None and not written_since(path, begin):
        time.sleep(0.002)
    time.sleep(after)
    hit = path.exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    return hit


def settings(method: str) -> dict[str, int]:
    return {"memory": 50} if issubclass(method_class(method).Config, ReplayConfig) else {}


def test_killed_at_random_moments_every_method_ends_with_the_same_bits(tmp_path: Path) -> None:
    begin = time.monotonic()
    undisturbed = finish(tmp_path / "whole")
    assert set(undisturbed) == set(METHODS)
    a_while = (time.monotonic() - begin) / (len(METHODS) + 2) / 4
    out, moments = tmp_path / "killed", random.Random(0)
    kills = {method: kill_during(method, out, moments.uniform(0, a_while)) for method in METHODS}
    assert all(kills.values()), kills
    assert finish(out) == undisturbed
    left = [path.name for path in out.rglob(".*")]
    assert len(left) <= sum(kills.values()), f"temporary files of killed processes pile up: {left}"
