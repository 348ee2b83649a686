"""A served learner that is killed: what it said is saved is there, and what is sent again is learned once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from helpers import linux_only
from onepass.live.state import load_model
from serving_helpers import served

BATCHES, EACH, KILLS = 40, 5, 4


def batch(n: int) -> list[dict[str, Any]]:
    """Vectors without ids: the request's key alone says that they came before."""
    rng = torch.Generator().manual_seed(n)
    rows = torch.randn(EACH, 4, generator=rng) + n % 3
    return [{"vector": row, "label": f"class {n % 3}"} for row in rows.tolist()]


@linux_only
@pytest.mark.system
def test_killed_at_random_moments_nothing_saved_is_lost_and_nothing_is_learned_twice(tmp_path: Path) -> None:
    path, chance = tmp_path / "m.onepass", random.Random(0)
    open_batches, saved = set(range(BATCHES)), set[int]()
    for round_ in range(KILLS + 1):
        with served(path, "--vectors", "4", "--save-seconds", "0.05") as server:
            for n in saved:  # what was said to be saved still is
                first = server.learn(batch(n), f"batch-{n}")
                assert first["state"] == "learned"
                assert server.client.get(f"/v1/batches/{first['batch']}").json()["saved"] is True
            killer = threading.Timer(chance.uniform(0.05, 0.6), server.process.kill)
            if round_ < KILLS:
                killer.start()
            try:
                waiting = {n: server.learn(batch(n), f"batch-{n}")["batch"] for n in sorted(open_batches)}
                end = time.monotonic() + 120
                while open_batches and time.monotonic() < end:
                    for n in sorted(open_batches):
                        if server.client.get(f"/v1/batches/{waiting[n]}").json()["saved"]:
                            saved.add(n)
                            open_batches.discard(n)
            except httpx.TransportError:
                assert round_ < KILLS
            killer.cancel()
            if round_ == KILLS:
                assert not open_batches
                server.learn(batch(0), "batch-0")  # once more, as a client that lost the answer would
                server.knows(BATCHES * EACH)
    model = load_model(path)
    assert model.learned == BATCHES * EACH
    assert model.class_counts() == {f"class {c}": EACH * len(range(c, BATCHES, 3)) for c in range(3)}


@linux_only
@pytest.mark.system
def test_a_short_soak_loses_nothing(tmp_path: Path) -> None:
    """`make soak` does it for long."""
    words = ["tests/soak_serving.py", str(tmp_path), "--minutes", "0.3", "--kill-seconds", "6"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout)
    assert counts["images learned"] == counts["images sent"] > 50
    assert counts["bad images refused"]
    assert any(name.startswith("server: ") for name in counts)
