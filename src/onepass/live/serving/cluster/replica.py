"""A replica answers questions by the last snapshot it got, and hands all other requests to the learner."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from onepass.live.serving.app import starlette_app
from onepass.live.serving.asking import Asking
from onepass.live.serving.bodies import Refused
from onepass.live.serving.cluster.learner import Asked, News
from onepass.live.serving.cluster.snapshots import unpacked
from onepass.live.serving.guard import Guard
from onepass.live.serving.service import PAUSE, SHARE, Published
from onepass.text import warn

SILENCE = 5.0  # seconds without a word after which the learner is taken for dead
ANSWER = 60.0  # seconds in which the learner must have answered a request
AT_ONCE = 64  # requests handed on at the same time: questions need room too
PASSED = (b"content-type", b"idempotency-key")  # headers that mean something to the learner


class Mirror:
    """What the learner published last, fetched by a thread."""

    def __init__(self, learner: Any, allow: Iterable[str]) -> None:
        self.learner, self.allow = learner, tuple(allow)
        self.published: Published
        self._status: dict[str, Any] = {}
        self._epoch, self._version, self._taken = "", -1, 0
        self._heard, self._busy, self._open = -SILENCE, False, False
        self._first = threading.Event()
        threading.Thread(target=self._follow, name="onepass-follow", daemon=True).start()

    @property
    def ready(self) -> bool:
        return self._first.is_set()

    @property
    def learning(self) -> bool:
        """Whether the learner lives and takes requests, as far as is known here."""
        return self._open and (self._busy or time.monotonic() - self._heard < SILENCE)

    def status(self) -> dict[str, Any]:
        return self._status

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Requests come once there is something to answer by."""
        await asyncio.to_thread(self._first.wait)
        yield

    def _follow(self) -> None:
        while True:
            try:
                news: News = self.learner.news.remote(self._epoch, self._version).result(timeout_s=2 * SILENCE)
                begin = time.monotonic()
                self._take(news)
            except Exception as error:  # it is being started again; what was taken over last goes on answering
                warn(f"no news from the learner: {type(error).__name__}")
                time.sleep(PAUSE)
            else:
                time.sleep(0 if news["content"] is None else SHARE * (time.monotonic() - begin))

    def _take(self, news: News) -> None:
        self._heard, self._open = time.monotonic(), news["ready"]
        if news["content"] is not None:
            self._busy = True
            try:
                self.published = unpacked(news["content"], self._taken + 1, self.allow)
            finally:
                self._busy = False
            self._taken += 1
            self._heard = time.monotonic()
        self._status = news["status"]
        self._epoch, self._version = news["epoch"], news["version"]
        self._first.set()


class Replica(Asking):
    def __init__(self, mirror: Mirror, *, largest: int) -> None:
        super().__init__(mirror, largest=largest)
        self.mirror, self._handed = mirror, 0

    def routes(self) -> list[Route]:
        methods = ["GET", "POST", "PATCH", "DELETE"]
        return [*self.questions(), Route("/{path:path}", self.hand_on, methods=methods)]

    async def hand_on(self, request: Request) -> Response:
        if not self.mirror.learning or self._handed >= AT_ONCE:
            raise _later("The learner takes no requests now.")
        scope = request.scope
        asked: Asked = {
            "method": request.method,
            "path": scope["path"],
            "query": scope["query_string"],
            "headers": [(name, value) for name, value in scope["headers"] if name in PASSED],
            "body": b"",
        }
        self._handed += 1
        try:
            async with self.body(request) as body:
                status, headers, content = await asyncio.wait_for(self._answer({**asked, "body": body}), ANSWER)
        except Refused:
            raise
        except Exception as error:
            raise _later("The learner was lost before it answered. Repeat the request with its key.") from error
        finally:
            self._handed -= 1
        answer = Response(content, status)
        answer.raw_headers = headers
        return answer

    async def _answer(self, asked: Asked) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        found: tuple[int, list[tuple[bytes, bytes]], bytes] = await self.mirror.learner.answer.remote(asked)
        return found


def _later(reason: str) -> Refused:
    return Refused(503, reason, headers={"Retry-After": "1"})


def replica_app(learner: Any, settings: Mapping[str, Any]) -> ASGIApp:
    """What a replica answers HTTP by."""
    mirror = Mirror(learner, settings["allow"])
    app = starlette_app(Replica(mirror, largest=settings["largest"]).routes(), mirror.lifespan)
    return Guard(app, settings["token"], settings["hosts"])
