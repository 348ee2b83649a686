"""A soak of a served learner: ten requests a second while it is killed, its disk is full, images are bad, clients slow.

    python tests/soak_serving.py FOLDER [--minutes 60] [--kill-seconds 90]

Every image is sent with a key, and repeated until the server says that it is saved. At the end each must be in the
model's file, once. Counts so far are in FOLDER/counts.json, and the memory of the server's process over time in
FOLDER/rss.csv. Exit code 1: an image was lost or learned twice, an answer was none that is promised, or memory grew.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import random
import resource
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import torch

from onepass.live.journal import digest_of
from onepass.live.model import Model
from onepass.live.state import load_model, save_model
from serving_helpers import TOKEN, image, png

A_SECOND = 10  # requests
SHAPE, CLASSES = (1, 8, 8), 5
SAVE = 2.0  # seconds between two saves
FULL = 5.0  # seconds that a disk stays full
SLOW = 3  # clients that send a byte a second
WARM = 20.0  # seconds after which a process has all it needs in memory
GROWTH = 1.15  # of memory from the first third to the last, at most
PATIENCE = 300.0


class Soak:
    def __init__(self, folder: Path, kill_seconds: float) -> None:
        self.folder, self.path, self.chance = folder, folder / "m.onepass", random.Random(0)
        self.kill_seconds = kill_seconds
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = int(server.getsockname()[1])
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=30)
        self.counts, self.lock = Counter[str](), threading.Lock()
        self.sent: dict[int, tuple[str, float]] = {}  # images that are not saved yet: batch, and when it was sent
        self.numbers = 0
        self.ended = threading.Event()
        self.rss: list[tuple[float, float, int]] = []  # seconds, age of the process, KiB
        self.begun = time.monotonic()
        self.process, self.started = self.start(), time.monotonic()

    def start(self) -> subprocess.Popen[bytes]:
        words = ["serve", str(self.path), "--port", str(self.port), "--save-seconds", str(SAVE)]
        env = {**os.environ, "ONEPASS_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
        with (self.folder / "server.log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", "onepass", *words], env=env, stdout=log, stderr=log)

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    # What clients do.

    def learn(self, number: int) -> None:
        """Send an image until the server takes it."""
        label = f"class {number % CLASSES}"
        rng = torch.Generator().manual_seed(number)
        x = torch.randint(0, 256, SHAPE, dtype=torch.uint8, generator=rng) // 2 + 25 * (number % CLASSES)
        body, key = {"items": [image(x, label=label, id=f"image {number}")]}, {"Idempotency-Key": f"key-{number}"}
        answer = self.ask("/v1/learn", {202}, json=body, headers=key)
        if answer is not None:
            with self.lock:
                self.sent[number] = answer.json()["batch"], time.monotonic()

    def ask(self, path: str, good: set[int], **more: Any) -> httpx.Response | None:
        """What is promised while it is full or closing (429, 503), and a process that is gone, is tried again."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                answer = self.client.request("POST" if more else "GET", path, **more)
            except httpx.TransportError:
                self.count("requests without an answer, repeated")
            else:
                if answer.status_code in good:
                    return answer
                if answer.status_code not in (429, 503):
                    break
                self.count(f"answers {answer.status_code}, repeated")
            time.sleep(0.2)
        self.count("answers that nobody promised")
        return None

    def predict(self) -> None:
        x = torch.full(SHAPE, self.chance.randrange(256), dtype=torch.uint8)
        if self.ask("/v1/predict", {200, 409}, json={"items": [image(x)]}) is not None:
            self.count("predicted")

    def misbehave(self) -> None:
        good = png(torch.zeros(SHAPE, dtype=torch.uint8))
        kind = self.chance.choice(["cut", "noise", "flipped", "json", "large"])
        place = self.chance.randrange(len(good))
        content = {
            "cut": good[: place // 2 or 1],
            "noise": self.chance.randbytes(500),
            "flipped": good[:20] + b"\xff" + good[21:],
            "json": b'{"items": [{"image": 7, "label": []}]}',
            "large": b"x" * (17 << 20),
        }[kind]
        headers = {"Content-Type": "application/json" if kind == "json" else "image/png"}
        answer = self.ask(
            "/v1/learn?label=bad" if kind != "json" else "/v1/learn", {413, 422}, content=content, headers=headers
        )
        if answer is not None:
            self.count("bad images refused")

    def crawl(self) -> None:
        """A request of which a byte comes a second."""
        while not self.ended.is_set():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5) as link:
                head = f"POST /v1/learn?label=slow HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
                link.sendall(f"{head}Content-Type: image/png\r\nContent-Length: 1000\r\n\r\n".encode())
                link.settimeout(1.0)
                while not self.ended.is_set():
                    link.sendall(b"x")
                    with contextlib.suppress(TimeoutError):
                        if link.recv(4096).startswith(b"HTTP/1.1 408"):
                            self.count("slow clients told so")
                        break
            time.sleep(1)

    def follow(self) -> None:
        while not self.ended.wait(0.5):
            self.confirm()

    def confirm(self) -> None:
        """Ask what became of images; those that a killed process took with it are sent again."""
        with self.lock:
            waiting = list(self.sent.items())
        for number, (batch, when) in waiting:
            if time.monotonic() - when < SAVE:
                continue
            try:
                answer = self.client.get(f"/v1/batches/{batch}")
            except httpx.TransportError:
                return
            if answer.status_code == 200 and answer.json()["saved"]:
                with self.lock:
                    del self.sent[number]
                self.count("images said to be saved")
            elif answer.status_code == 404 or (answer.status_code == 200 and answer.json()["state"] == "failed"):
                self.count("images sent again")
                self.learn(number)

    # What happens to the server.

    def disturb(self) -> None:
        while not self.ended.wait(self.chance.uniform(0.5, 1.5) * self.kill_seconds):
            kind = self.chance.choice(["killed", "killed", "stopped", "disk full"])
            self.count(f"server: {kind}")
            if kind == "disk full":
                with contextlib.suppress(OSError):
                    resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
                    self.ended.wait(FULL)
                    resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
                continue
            self.process.send_signal(signal.SIGKILL if kind == "killed" else signal.SIGTERM)
            self.process.wait()
            self.process, self.started = self.start(), time.monotonic()

    def watch(self) -> None:
        while not self.ended.wait(5):
            now = time.monotonic()
            with contextlib.suppress(OSError, IndexError):
                text = Path(f"/proc/{self.process.pid}/status").read_text()
                self.rss.append((now - self.begun, now - self.started, int(text.split("VmRSS:")[1].split()[0])))
            self.write()

    def write(self) -> None:
        with self.lock:
            (self.folder / "counts.json").write_text(json.dumps(self.counts, indent=1, sort_keys=True))
        with (self.folder / "rss.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("seconds", "age", "KiB"), *self.rss])

    def run(self, minutes: float) -> bool:
        others = [self.disturb, self.watch, self.follow, *[self.crawl] * SLOW]
        threads = [threading.Thread(target=other, daemon=True) for other in others]
        for thread in threads:
            thread.start()
        end, due = time.monotonic() + 60 * minutes, time.monotonic()
        with ThreadPoolExecutor(32) as pool:
            while time.monotonic() < end:
                self.count("requests begun")
                lot = self.chance.random()
                if lot < 0.5:
                    self.numbers += 1
                    pool.submit(self.learn, self.numbers)
                else:
                    pool.submit(self.predict if lot < 0.95 else self.misbehave)
                due += 1 / A_SECOND
                time.sleep(max(0.0, due - time.monotonic()))
        self.ended.set()
        for thread in threads:
            thread.join(2 * PATIENCE)
        end = time.monotonic() + PATIENCE
        while self.sent and time.monotonic() < end:
            self.confirm()
            time.sleep(0.2)
        self.process.send_signal(signal.SIGTERM)
        self.counts["exit code"] = self.process.wait()
        self.counts["minutes"] = round(minutes)
        return self.judge()

    def judge(self) -> bool:
        model = load_model(self.path)
        known = [model.journal.find(digest_of(f"image {number}")) is not None for number in range(1, self.numbers + 1)]
        self.counts["images sent"], self.counts["images learned"] = self.numbers, sum(known)
        self.counts["lost"] = self.numbers - sum(known)
        self.counts["learned twice"] = model.learned - sum(known)
        early, late = self.thirds()
        self.counts["KiB in memory, first third"], self.counts["KiB in memory, last third"] = early, late
        self.write()
        wrong = ("lost", "learned twice", "answers that nobody promised")
        return (
            not any(self.counts[name] for name in wrong) and late <= GROWTH * early and self.counts["exit code"] == 143
        )

    def thirds(self) -> tuple[int, int]:
        """The median memory of processes that are warm, in the first and in the last third of the time."""
        warm = [row for row in self.rss if row[1] > WARM]
        third = len(warm) // 3 or 1
        return tuple(int(statistics.median([row[2] for row in part] or [0])) for part in (warm[:third], warm[-third:]))  # type: ignore[return-value]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--kill-seconds", type=float, default=90, help="between two disturbances, in the mean")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for old in options.folder.iterdir():
        old.unlink()
    save_model(Model.create(SHAPE, method="er", net="small-cnn", memory=200), options.folder / "m.onepass")
    soak = Soak(options.folder, options.kill_seconds)
    good = soak.run(options.minutes)
    print(json.dumps(soak.counts, indent=1, sort_keys=True))
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
