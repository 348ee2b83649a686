"""Real processes, killed with SIGKILL at random moments, for every method: the end is the same to the bit."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

import forked
from onepass.bench import store
from onepass.bench.run_config import RunConfig
from onepass.config import ReplayConfig
from onepass.methods.registry import METHODS, method_class, trains

pytestmark = pytest.mark.system
OWN = """from torch import nn
def body(shape):
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
"""


TRAINED = [name for name in METHODS if trains(name)]
STATISTICS = [name for name in METHODS if not trains(name)]
SHARE = 0.3  # of the digits: enough steps of every method to be killed in
SMALL: dict[str, dict[str, int]] = {"randumb": {"features": 20}, "patch-lda": {"filters": 5, "first": 300}}


def start(methods: list[str], out: Path) -> ForkServerProcess:
    command = ["compare", *methods, "--batch", "20", "--fraction", str(SHARE), "--out", str(out), "--jobs", "1"]
    if methods == STATISTICS:  # so quick that only a state saved at every step can be met
        command += ["--checkpoint-seconds", "0", "--features", "20", "--filters", "5", "--first", "300"]
    else:
        command += ["--checkpoint-seconds", "0.1", "--memory", "50"]
    if methods == ["er"]:
        command += ["--net", "mine:body"]
    return forked.start(command, cwd=out.parent)


def finish(methods: list[str], out: Path) -> dict[str, str]:
    assert forked.code(start(methods, out)) == 0
    results = [json.loads(path.read_text()) for path in out.rglob("result.json")]
    assert not list(out.rglob("checkpoint.safetensors")), "a finished run keeps no checkpoint"
    return {result["method"]: result["fingerprint"] for result in results}


def written_since(path: Path, moment: float) -> bool:
    try:
        return path.stat().st_mtime > moment
    except FileNotFoundError:
        return False


def kill_during(method: str, methods: list[str], out: Path, after: float) -> None:
    """Start, wait until this process has saved a state of this method, then a little, and kill it in mid-stream.

    A method that was through by then is begun anew, and killed sooner.
    """
    net = "mine:body" if methods == ["er"] else ""
    config = RunConfig(method, batch=20, fraction=SHARE, net=net, settings=settings(method))
    path = store.folder(out, config) / "checkpoint.safetensors"
    for attempt in range(6):
        begin, process = time.time(), start(methods, out)
        while process.is_alive() and not written_since(path, begin):
            time.sleep(0.002)
        time.sleep(after / 2**attempt)
        hit = path.exists()
        process.kill()
        assert forked.code(process) in (0, -signal.SIGKILL), "it failed by itself"
        if hit:
            return
        shutil.rmtree(path.parent)
    pytest.fail(f"{method} was always through before it could be killed")


def settings(method: str) -> dict[str, int]:
    return {"memory": 50} if issubclass(method_class(method).Config, ReplayConfig) else SMALL.get(method, {})


@pytest.mark.parametrize("part", range(6))
def test_killed_at_random_moments_every_method_ends_with_the_same_bits(part: int, tmp_path: Path) -> None:
    methods = [*(TRAINED[place::4] for place in range(4)), STATISTICS, ["er"]][part]
    (tmp_path / "mine.py").write_text(OWN)
    begin = time.monotonic()
    undisturbed = finish(methods, tmp_path / "whole")
    assert set(undisturbed) == set(methods)
    a_while = (time.monotonic() - begin) / (len(methods) + 2) / 4
    out, moments = tmp_path / "killed", random.Random(part)
    for method in methods:
        kill_during(method, methods, out, moments.uniform(0, a_while))
    assert finish(methods, out) == undisturbed
    left = [path.name for path in out.rglob(".*")]
    assert len(left) <= len(methods), f"temporary files of killed processes pile up: {left}"
