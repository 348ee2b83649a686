"""A served model for tests: the real command in a process of its own, on a free port of this machine."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from torch import Tensor

import forked

TOKEN = "a-token-for-tests"
PATIENCE = 120.0


@dataclass
class Served:
    process: forked.Command
    address: str
    client: httpx.Client

    def learn(self, items: list[dict[str, Any]], key: str | None = None) -> dict[str, Any]:
        headers = {} if key is None else {"Idempotency-Key": key}
        answer = self.client.post("/v1/learn", json={"items": items}, headers=headers)
        assert answer.status_code == 202, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def learned(self, items: list[dict[str, Any]], key: str | None = None) -> dict[str, Any]:
        """Learn, and wait until that is done."""
        found = self.learn(items, key)
        return self.until(found["batch"], lambda state: state["state"] != "queued")

    def until(self, batch: str, good: Any) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while True:
            state: dict[str, Any] = self.client.get(f"/v1/batches/{batch}").json()
            if good(state):
                return state
            assert time.monotonic() < end, state
            time.sleep(0.02)

    def predict(self, items: list[dict[str, Any]]) -> list[Any]:
        """The most probable class of each."""
        answer = self.client.post("/v1/predict", json={"items": items})
        assert answer.status_code == 200, answer.text
        return [row["classes"][0]["class"] for row in answer.json()["predictions"]]

    def knows(self, samples: int) -> dict[str, Any]:
        """The state, once so many samples are published."""
        end = time.monotonic() + PATIENCE
        while True:
            state: dict[str, Any] = self.client.get("/v1/classes").json()
            if state["samples"] == samples:
                return state
            assert time.monotonic() < end, state
            time.sleep(0.02)


@contextmanager
def served(path: Path, *flags: str, token: str = TOKEN) -> Iterator[Served]:
    command = ["serve", str(path), "--port", "0", *flags]
    process = forked.Command(command, env={"ONEPASS_TOKEN": token})
    try:
        line = process.line()
        assert " at http" in line, process.err
        address = line.rsplit(" at ", 1)[1].strip()
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=address.partition("#")[0], headers=headers, timeout=PATIENCE) as client:
            yield Served(process, address, client)
    finally:
        process.kill()
        process.wait()


def png(x: Tensor) -> bytes:
    """A picture of bytes (channels, height, width) as a file."""
    content = io.BytesIO()
    pixels = x.permute(1, 2, 0).numpy()
    Image.fromarray(pixels[:, :, 0] if x.shape[0] == 1 else pixels).save(content, "PNG")
    return content.getvalue()


def image(x: Tensor, **more: Any) -> dict[str, Any]:
    return {"image": base64.b64encode(png(x)).decode(), **more}
