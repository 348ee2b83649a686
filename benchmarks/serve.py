"""What serving costs: p95 of /v1/predict while learning over idle, and learning slowed by ten requests a second.

    python benchmarks/serve.py [--seconds S] [--save results/benchmarks/serve.json]

A real server on this machine, asked over HTTP by one client; ratios of one run, in alternating turns, so that whatever
else the machine does falls on both. Each line is a median over turns with the lowest and the highest.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from onepass.live.model import Model
from onepass.live.state import save_model

TOKEN = "bench"
SIDE, CLASSES, TOGETHER = 32, 10, 50
TURNS = 5
RATE = 10.0  # requests a second


def picture(rng: torch.Generator) -> str:
    content = io.BytesIO()
    pixels = torch.randint(0, 256, (SIDE, SIDE, 3), dtype=torch.uint8, generator=rng).numpy()
    Image.fromarray(pixels).save(content, "PNG")
    return base64.b64encode(content.getvalue()).decode()


class Client:
    def __init__(self, address: str) -> None:
        self.address = address
        self.rng = torch.Generator().manual_seed(0)
        self.accepted = 0  # samples

    def call(self, path: str, body: Any = None) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.address + path, data, headers), timeout=120) as answer:
            return json.loads(answer.read())

    def keep_learning(self, ended: threading.Event) -> None:
        """The queue is never empty."""
        while not ended.is_set():
            items = [{"image": picture(self.rng), "label": f"class {n % CLASSES}"} for n in range(TOGETHER)]
            while not ended.is_set():
                try:
                    self.call("v1/learn", {"items": items})
                    self.accepted += TOGETHER
                    break
                except urllib.error.HTTPError as error:  # the queue is full
                    if error.code != 429:
                        raise
                    ended.wait(0.2)

    def predict(self, image: str, seconds: float) -> list[float]:
        """How long each of ten requests a second took."""
        took = []
        end = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < end:
            self.call("v1/predict", {"items": [{"image": image}]})
            took.append(time.perf_counter() - begin)
            time.sleep(max(0.0, 1 / RATE - took[-1]))
        return took

    def learned(self) -> int:
        """What no longer waits: how many were learned is told as rarely as the model is published."""
        waiting: int = self.call("v1/classes")["queue"]["waiting"]
        return self.accepted - waiting

    def drain(self) -> None:
        while self.call("v1/classes")["queue"]["waiting"]:
            time.sleep(0.1)
        time.sleep(1.0)

    def speed(self, act: Callable[[], object]) -> float:
        """Samples learned a second while something is done."""
        first, begin = self.learned(), time.perf_counter()
        act()
        return (self.learned() - first) / (time.perf_counter() - begin)


def p95(took: list[float]) -> float:
    return sorted(took)[int(0.95 * (len(took) - 1))]


def line(name: str, ratios: list[float]) -> str:
    return f"{name:52}{statistics.median(ratios):6.2f}  ({min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} turns)"


def measure(address: str, seconds: float) -> dict[str, list[float]]:
    client = Client(address)
    probe = picture(client.rng)
    client.call("v1/learn", {"items": [{"image": picture(client.rng), "label": f"class {n}"} for n in range(CLASSES)]})
    while not client.call("v1/classes")["classes"]:  # what is learned is published a little later
        time.sleep(0.1)
    client.predict(probe, 2.0)  # warm
    slower, waits = [], []
    for _ in range(TURNS):
        client.drain()
        idle = p95(client.predict(probe, seconds))
        ended = threading.Event()
        thread = threading.Thread(target=client.keep_learning, args=(ended,))
        thread.start()
        time.sleep(1.0)
        alone = client.speed(lambda: time.sleep(seconds))
        took: list[float] = []
        asked = client.speed(lambda took=took: took.extend(client.predict(probe, seconds)))  # type: ignore[misc]
        ended.set()
        thread.join()
        waits.append(p95(took) / idle)
        slower.append(alone / asked)
    print(line("p95 of a prediction while learning, over idle", waits))
    print(line(f"learning alone, over learning with {RATE:g} requests a second", slower))
    return {"p95_learning_over_idle": waits, "learning_alone_over_asked": slower}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each part of a turn (default: 10)")
    parser.add_argument("--method", default="er", help="of the model (default: er)")
    parser.add_argument("--save", type=Path, help="add the figures of each turn to this JSON file")
    values = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onepass-bench-") as folder:
        path = Path(folder) / "m.onepass"
        save_model(Model.create((3, SIDE, SIDE), method=values.method), path)
        command = [sys.executable, "-m", "onepass", "serve", str(path), "--port", "0", "--queue", "200"]
        environment = {**os.environ, "ONEPASS_TOKEN": TOKEN}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            address = server.stdout.readline().rsplit(" at ", 1)[1].partition("#")[0]
            try:
                figures = measure(address, values.seconds)
            finally:
                server.terminate()
    if values.save:
        known = json.loads(values.save.read_text()) if values.save.exists() else {}
        values.save.write_text(json.dumps(known | {values.method: figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
