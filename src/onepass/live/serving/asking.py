"""Questions: routes that need nothing but what was published. The server answers them, and replicas of it do."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Protocol, TypeVar

import torch
from anyio import CapacityLimiter, fail_after, to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from onepass.errors import UsageError
from onepass.host import cores
from onepass.live.export import onnx_bytes
from onepass.live.labels import Label
from onepass.live.serving import bodies
from onepass.live.serving.bodies import Refused
from onepass.live.serving.openapi import document
from onepass.live.serving.page import page
from onepass.live.serving.service import Published

Result = TypeVar("Result")
BODY_SECONDS = 30.0  # in which a request must have come
BUFFERED = 8  # times the largest body: what all requests together may hold


class Source(Protocol):
    """Where answers come from."""

    @property
    def published(self) -> Published: ...
    @property
    def ready(self) -> bool: ...
    def status(self) -> dict[str, Any]: ...


class Asking:
    def __init__(self, source: Source, *, largest: int) -> None:
        self.source, self.largest = source, largest
        self._buffered = 0
        self._onnx: tuple[int, bytes] | None = None
        self._limits = {
            name: CapacityLimiter(n) for name, n in {"predict": cores(), "learn": 1, "read": 1, "export": 1}.items()
        }

    def questions(self) -> list[Route]:
        return [
            Route("/", self.show_page),
            Route("/readyz", self.readiness),
            Route("/openapi.json", self.openapi),
            route("/v1/predict", self.predict, "top", method="POST"),
            route("/v1/classes", self.classes),
            route("/v1/model.onnx", self.onnx),
        ]

    async def thread(self, kind: str, function: Callable[[], Result]) -> Result:
        return await to_thread.run_sync(function, limiter=self._limits[kind])

    async def predict(self, request: Request) -> Response:
        snapshot = self.source.published.snapshot
        if snapshot is None or not snapshot.names:
            raise Refused(409, "Expected a class to be known, got none so far. Learn samples first.")
        kind, top = kind_of(request), number_of(request, "top", 3, 1, 1000)

        def work() -> list[list[tuple[Label, float]]]:
            if torch.get_num_threads() != 1:  # of this thread: several would wait for each other while another learns
                torch.set_num_threads(1)
            if kind == "image":
                return snapshot.top(bodies.picture(body, snapshot.shape)[None], top)
            items = bodies.items_of(body, snapshot.shape, labelled=False)
            return snapshot.top(items.x, items.top or top)

        async with self.body(request) as body:
            answers = await self.thread("predict", work)
        for item, answer in enumerate(answers):
            if not all(math.isfinite(p) for _, p in answer):
                raise Refused(422, f"item {item}: Expected a sample like those learned, got one without a score.", item)
        predictions = [{"classes": [{"class": c, "probability": p} for c, p in answer]} for answer in answers]
        facts = {"calibrated": snapshot.calibrated, "samples": snapshot.learned}
        return answered({"predictions": predictions, **facts})

    async def classes(self, request: Request) -> Response:
        return answered({**self.source.published.facts, **self.source.status()})

    async def onnx(self, request: Request) -> Response:
        snapshot = self.source.published.snapshot
        if snapshot is None or not snapshot.names:
            raise Refused(409, "Expected a class to be known, got none so far. Learn samples first.")

        def work() -> bytes:
            if self._onnx is None or self._onnx[0] != snapshot.version:
                self._onnx = snapshot.version, onnx_bytes(snapshot)
            return self._onnx[1]

        try:
            content = await self.thread("export", work)
        except UsageError as error:
            raise Refused(501, str(error)) from error
        named = {"Content-Disposition": 'attachment; filename="model.onnx"'}
        return Response(content, media_type="application/octet-stream", headers=named)

    async def show_page(self, request: Request) -> Response:
        html, policy = page()
        return Response(html, media_type="text/html", headers={"Content-Security-Policy": policy})

    async def readiness(self, request: Request) -> Response:
        good = self.source.ready
        return answered({"status": "ready" if good else "closing"}, 200 if good else 503)

    async def openapi(self, request: Request) -> Response:
        facts = self.source.published.facts
        return answered(document(tuple(facts["shape"]), [row["name"] for row in facts["classes"]]))

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """All of it, if it is not too large, comes in time, and fits beside those of the others."""
        parts, size = [], 0
        try:
            with fail_after(BODY_SECONDS):
                async for part in request.stream():
                    size += len(part)
                    self._buffered += len(part)
                    if size > self.largest:
                        raise Refused(413, f"Expected at most {self.largest:,} bytes. Send several requests.")
                    if self._buffered > BUFFERED * self.largest:
                        raise Refused(503, "Too many requests at a time.", headers={"Retry-After": "1"})
                    parts.append(part)
            yield b"".join(parts)
        except TimeoutError as error:
            raise Refused(408, f"Expected the whole request within {BODY_SECONDS:g} s.") from error
        except ClientDisconnect as error:
            raise Refused(400, "The client has gone.") from error
        except asyncio.CancelledError as error:  # it came too slowly for a server that ends
            raise Refused(503, "The server is about to stop.", headers={"Retry-After": "5"}) from error
        finally:
            self._buffered -= size


Endpoint = Callable[[Request], Awaitable[Response]]


def route(path: str, endpoint: Endpoint, *known: str, method: str = "GET") -> Route:
    """A route that takes these query parameters and no others: a mistyped one is said, not ignored."""

    @wraps(endpoint)
    async def checked(request: Request) -> Response:
        if request.query_params.keys() - set(known):
            raise Refused(422, f"Expected {' and '.join(known) or 'nothing'} after '?', got another name.")
        if len(request.query_params.multi_items()) > len(request.query_params):
            raise Refused(422, "Expected each name once after '?', got one twice.")
        return await endpoint(request)

    return Route(path, checked, methods=[method])


def answered(found: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """In ASCII: names of folders need not be UTF-8."""
    content = json.dumps(found, allow_nan=False, separators=(",", ":"))
    return Response(content, status, headers, media_type="application/json")


def kind_of(request: Request) -> str:
    """Whether a body is an image file or JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind.startswith("image/") or kind == "application/octet-stream":
        return "image"
    if kind == "application/json":
        return "json"
    raise Refused(415, "Expected Content-Type application/json, or image/* for the bytes of one image.")


def number_of(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
        raise Refused(422, f"Expected {name} from {least} to {most}.")
    return int(text)
