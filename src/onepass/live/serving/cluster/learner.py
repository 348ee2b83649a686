"""The one process that learns and saves. Ray Serve starts it again when it dies: it goes on from its file."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from contextlib import ExitStack
from typing import Any, TypedDict

from starlette.types import ASGIApp, Message

from onepass.live.autosave import Autosave
from onepass.live.claim import claimed
from onepass.live.serving.app import open_app
from onepass.live.serving.cluster.snapshots import packed
from onepass.live.serving.opening import Opening
from onepass.live.serving.service import PAUSE, SHARE, Service

HEARTBEAT = 1.0  # seconds after which a replica is answered even if nothing is new
ENDING = 10.0  # seconds in which what is queued is still learned when Ray Serve ends the process
LOOK = 0.05  # seconds between two looks whether something is

Headers = list[tuple[bytes, bytes]]


class Asked(TypedDict):
    """A request, handed on by a replica that has checked who asks."""

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes


class News(TypedDict):
    """What is new to a replica; no content: nothing."""

    epoch: str  # of the learner's process: versions of another one mean something else
    version: int
    content: bytes | None
    status: dict[str, Any]
    ready: bool


class Learner:
    def __init__(self, opening: Opening, *, room: int, save_seconds: float, largest: int) -> None:
        self._held = ExitStack()
        if not opening.read_only:
            self._held.enter_context(claimed(opening.path))
        model = opening.model()
        self.autosave = (
            None if opening.read_only else Autosave(model, opening.path, save_seconds, held=opening.path.exists())
        )
        self.service = Service(model, self.autosave, room=room)
        self.app = open_app(self.service, largest=largest)
        self.path, self.epoch = opening.path, secrets.token_hex(8)
        self._packing, self._closing = threading.Lock(), threading.Lock()
        self._packed, self._due = packed(model), 0.0
        self._drained: bool | None = None

    def check_health(self) -> None:
        """Ray Serve asks."""
        if not self.service.healthy:
            raise RuntimeError("learning has stopped")

    def where(self) -> str:
        return str(self.path)

    async def answer(self, asked: Asked) -> tuple[int, Headers, bytes]:
        return await called(self.app, asked)

    async def news(self, epoch: str, version: int) -> News:
        """What came after a version, as soon as there is something, or how it is after a second."""
        end = time.monotonic() + HEARTBEAT
        same = epoch == self.epoch
        while same and time.monotonic() < end and not self._is_due(version):
            await asyncio.sleep(LOOK)
        await asyncio.to_thread(self._pack)
        found, content = self._packed
        known = same and found == version
        service = self.service
        return {
            "epoch": self.epoch,
            "version": found,
            "content": None if known else content,
            "status": service.status(),
            "ready": service.ready,
        }

    def _is_due(self, version: int) -> bool:
        changed = self.service.model.version != self._packed[0]
        return self._packed[0] != version or (changed and time.monotonic() >= self._due)

    def _pack(self) -> None:
        """Once for all replicas, and at most a fifth of the time: learning waits while the model is copied."""
        with self._packing:
            begin = time.monotonic()
            if self.service.model.version != self._packed[0] and begin >= self._due:
                self._packed = packed(self.service.model)
                end = time.monotonic()
                self._due = end + max(PAUSE, SHARE * (end - begin))

    async def close(self, seconds: float) -> tuple[bool, str]:
        """Learn what is queued, save, and let go of the file. Whether all was learned, and why it is not saved."""
        return await asyncio.to_thread(self._close, seconds)

    def _close(self, seconds: float) -> tuple[bool, str]:
        with self._closing:
            if self._drained is None:
                self._drained = self.service.close(seconds)
                if self.autosave is not None:
                    self.autosave.close()
                self._held.close()
        return self._drained, "" if self.autosave is None else self.autosave.failure

    async def __del__(self) -> None:  # Ray Serve calls and awaits it, before it starts another or ends
        await self.close(ENDING)


async def called(app: ASGIApp, asked: Asked) -> tuple[int, Headers, bytes]:
    """What an app answers to a request that is here already."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": asked["method"],
        "scheme": "http",
        "path": asked["path"],
        "query_string": asked["query"],
        "root_path": "",
        "headers": asked["headers"],
        "server": None,
        "client": None,
    }
    status, headers, parts = 500, Headers(), list[bytes]()

    async def receive() -> Message:
        return {"type": "http.request", "body": asked["body"], "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], list(message.get("headers", []))
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return status, headers, b"".join(parts)
