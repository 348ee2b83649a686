"""Real processes, killed with SIGKILL at random moments, for every method: the end is the same to the bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from onepass.methods import METHODS


def start(out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "onepass.cli", "compare", *METHODS, "--memory", "50", "--out", str(out)]
    command += ["--jobs", "1", "--checkpoint-seconds", "0.1"]
    core = min(os.sched_getaffinity(0))
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=quiet, stderr=quiet, preexec_fn=lambda: os.sched_setaffinity(0, {core}))


def finish(out: Path) -> dict[str, str]:
    assert start(out).wait(timeout=300) == 0
    results = [json.loads(path.read_text()) for path in out.rglob("result.json")]
    assert not list(out.rglob("checkpoint.safetensors")), "a finished run keeps no checkpoint"
    return {result["method"]: result["fingerprint"] for result in results}


def newest_checkpoint(out: Path, since: float) -> Path | None:
    """The checkpoint that a process started at `since` has written itself."""
    for path in out.rglob("checkpoint.safetensors"):
        try:
            if path.stat().st_mtime > since:
                return path
        except FileNotFoundError:  # its run has just finished
            continue
    return None


def test_killed_at_random_moments_every_method_ends_with_the_same_bits(tmp_path: Path) -> None:
    undisturbed = finish(tmp_path / "whole")
    assert set(undisturbed) == set(METHODS)
    out, moments, kills = tmp_path / "killed", random.Random(0), dict.fromkeys(METHODS, 0)
    while len(list(out.rglob("result.json"))) < len(METHODS):
        begin, process = time.time(), start(out)
        while process.poll() is None and newest_checkpoint(out, begin) is None:
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.4))
        running = newest_checkpoint(out, begin)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if running is not None:  # else it was hit between two runs
            kills[running.parent.parent.name.removeprefix("digits-").rsplit("-", 1)[0]] += 1
    assert min(kills.values()) >= 1, kills
    print(f"{sum(kills.values())} kills in mid-stream: {kills}")
    assert finish(out) == undisturbed
    left = [path.name for path in out.rglob(".*")]
    assert len(left) <= sum(kills.values()), f"temporary files of killed processes pile up: {left}"
