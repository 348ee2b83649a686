"""Routes. What takes long is done in threads, of which each kind of request has its own few."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, TypeVar

from anyio import CapacityLimiter, fail_after, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from onepass.errors import UsageError
from onepass.host import cores
from onepass.live.export import onnx_bytes
from onepass.live.labels import Label
from onepass.live.serving import bodies, commands
from onepass.live.serving.bodies import Items, Refused
from onepass.live.serving.guard import Guard
from onepass.live.serving.metrics import Metrics
from onepass.live.serving.openapi import document
from onepass.live.serving.page import page
from onepass.live.serving.service import ClosingError, KeyUsedError, QueueFullError, Service

Result = TypeVar("Result")
LARGEST = 16 << 20  # bytes of a request
BODY_SECONDS = 30.0  # in which a request must have come
BUFFERED = 8  # times the largest body: what all requests together may hold


class Api:
    def __init__(self, service: Service, *, largest: int) -> None:
        self.service, self.largest = service, largest
        self.metrics: Metrics
        self._buffered = 0
        self._onnx: tuple[int, bytes] | None = None
        self._limits = {
            name: CapacityLimiter(n) for name, n in {"predict": cores(), "learn": 1, "read": 1, "export": 1}.items()
        }

    def routes(self) -> list[Route]:
        images = len(self.service.model.shape) == 3
        return [
            Route("/", self.show_page),
            Route("/healthz", self.health),
            Route("/readyz", self.readiness),
            Route("/openapi.json", self.openapi),
            Route("/metrics", self.show_metrics),
            _route("/v1/predict", self.predict, "top", method="POST"),
            _route("/v1/learn", self.learn, *(("label", "id") if images else ()), method="POST"),
            _route("/v1/batches/{id}", self.show_batch),
            _route("/v1/samples/{id:path}", self.forget, "rebuild", method="DELETE"),
            _route("/v1/samples/{id:path}", self.relabel, method="PATCH"),
            _route("/v1/classes", self.classes),
            _route("/v1/events", self.events, "after"),
            _route("/v1/memory", self.memory, "limit", "offset", "class"),
            _route("/v1/model.onnx", self.onnx),
        ]

    async def _thread(self, kind: str, function: Callable[[], Result]) -> Result:
        return await to_thread.run_sync(function, limiter=self._limits[kind])

    # Asking.

    async def predict(self, request: Request) -> Response:
        snapshot = self.service.published.snapshot
        if snapshot is None or not snapshot.names:
            raise Refused(409, "Expected a class to be known, got none so far. Learn samples first.")
        kind, top = _kind(request), _number(request, "top", 3, 1, 1000)

        def work() -> list[list[tuple[Label, float]]]:
            if kind == "image":
                return snapshot.top(bodies.picture(body, snapshot.shape)[None], top)
            items = bodies.items_of(body, snapshot.shape, labelled=False)
            return snapshot.top(items.x, items.top or top)

        async with self._body(request) as body:
            answers = await self._thread("predict", work)
        for item, answer in enumerate(answers):
            if not all(math.isfinite(p) for _, p in answer):
                raise Refused(422, f"item {item}: Expected a sample like those learned, got one without a score.", item)
        predictions = [{"classes": [{"class": c, "probability": p} for c, p in answer]} for answer in answers]
        facts = {"calibrated": snapshot.calibrated, "samples": snapshot.learned}
        return answered({"predictions": predictions, **facts})

    async def classes(self, request: Request) -> Response:
        return answered(commands.state(self.service))

    async def events(self, request: Request) -> Response:
        after = _number(request, "after", 0, 0, 1 << 53)
        found = await self._thread("read", lambda: self.service.recent.after(after))
        return answered({"events": found, "kept": self.service.recent.numbers()})

    async def memory(self, request: Request) -> Response:
        limit, offset = _number(request, "limit", 60, 1, 200), _number(request, "offset", 0, 0, 1 << 53)
        label = request.query_params.get("class")
        return answered(await self._thread("read", lambda: commands.memory(self.service, offset, limit, label)))

    async def onnx(self, request: Request) -> Response:
        snapshot = self.service.published.snapshot
        if snapshot is None or not snapshot.names:
            raise Refused(409, "Expected a class to be known, got none so far. Learn samples first.")

        def work() -> bytes:
            if self._onnx is None or self._onnx[0] != snapshot.version:
                self._onnx = snapshot.version, onnx_bytes(snapshot)
            return self._onnx[1]

        try:
            content = await self._thread("export", work)
        except UsageError as error:
            raise Refused(501, str(error)) from error
        named = {"Content-Disposition": 'attachment; filename="model.onnx"'}
        return Response(content, media_type="application/octet-stream", headers=named)

    # Learning.

    async def learn(self, request: Request) -> Response:
        self._writable()
        kind, query = _kind(request), request.query_params

        def work() -> tuple[str, dict[str, Any]]:
            id = bodies.id_of(query["id"]) if "id" in query else None
            if kind == "image" or "label" in query:  # beside JSON it says nothing, but a wrong one is still refused
                label = commands.spoken_label(self.service.model, query.get("label"))
            if kind == "image":
                items = Items(bodies.picture(body, self.service.model.shape)[None], [label], [id])
            else:
                items = bodies.items_of(body, self.service.model.shape, labelled=True)
            key = request.headers.get("idempotency-key")
            return commands.learn(self.service, items, key, body, str(request.url.query))

        async with self._body(request) as body:
            id, found = await self._thread("learn", work)
        return answered(found, 202, {"Location": f"/v1/batches/{id}"})

    async def show_batch(self, request: Request) -> Response:
        return answered(commands.batch_state(self.service, request.path_params["id"]))

    async def forget(self, request: Request) -> Response:
        self._writable()
        id, x = bodies.id_of(request.path_params["id"]), None
        rebuild = request.query_params.get("rebuild", "false")
        if rebuild not in ("true", "false"):
            raise Refused(422, "Expected rebuild to be true or false.")
        async with self._body(request) as body:
            if body:
                _json_only(request)
                x, _ = await self._thread("learn", lambda: commands.given_sample(self.service.model, body, False))
        work = self.service.in_turn(lambda: commands.forget(self.service, id, x, rebuild == "true"))
        return answered(await asyncio.wrap_future(work))

    async def relabel(self, request: Request) -> Response:
        self._writable()
        id = bodies.id_of(request.path_params["id"])
        _json_only(request)
        async with self._body(request) as body:
            x, label = await self._thread("learn", lambda: commands.given_sample(self.service.model, body, True))
        work = self.service.in_turn(lambda: commands.relabel(self.service, id, label, x))
        return answered(await asyncio.wrap_future(work))

    def _writable(self) -> None:
        if self.service.read_only:
            raise Refused(403, "Expected a question: this server is read-only.")

    # About the server.

    async def show_page(self, request: Request) -> Response:
        html, policy = page()
        return Response(html, media_type="text/html", headers={"Content-Security-Policy": policy})

    async def health(self, request: Request) -> Response:
        good = self.service.healthy
        return answered({"status": "alive" if good else "learning has stopped"}, 200 if good else 503)

    async def readiness(self, request: Request) -> Response:
        good = self.service.ready
        return answered({"status": "ready" if good else "closing"}, 200 if good else 503)

    async def openapi(self, request: Request) -> Response:
        return answered(document(self.service.model.shape, self.service.model.labels.names))

    async def show_metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    @asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytes]:
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
        finally:
            self._buffered -= size


Endpoint = Callable[[Request], Awaitable[Response]]


def _route(path: str, endpoint: Endpoint, *known: str, method: str = "GET") -> Route:
    """A route that takes these query parameters and no others: a mistyped one is said, not ignored."""

    @wraps(endpoint)
    async def checked(request: Request) -> Response:
        if request.query_params.keys() - set(known):
            raise Refused(422, f"Expected {' and '.join(known) or 'nothing'} after '?', got another name.")
        return await endpoint(request)

    return Route(path, checked, methods=[method])


def answered(found: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """In ASCII: names of folders need not be UTF-8."""
    content = json.dumps(found, allow_nan=False, separators=(",", ":"))
    return Response(content, status, headers, media_type="application/json")


def _kind(request: Request) -> str:
    """Whether a body is an image file or JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind.startswith("image/") or kind == "application/octet-stream":
        return "image"
    if kind == "application/json":
        return "json"
    raise Refused(415, "Expected Content-Type application/json, or image/* for the bytes of one image.")


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
        raise Refused(422, f"Expected {name} from {least} to {most}.")
    return int(text)


def _json_only(request: Request) -> None:
    if _kind(request) != "json":
        raise Refused(415, "Expected Content-Type application/json.")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return answered({"error": error.reason, "item": error.item}, error.status, error.headers)


async def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return answered({"error": error.detail, "item": None}, error.status_code, dict(error.headers or {}))


async def _full(request: Request, error: Exception) -> Response:
    return answered({"error": "The queue is full. Come back later.", "item": None}, 429, {"Retry-After": "1"})


async def _used(request: Request, error: Exception) -> Response:
    reason = "Expected a new Idempotency-Key, got one of another request. Make up another."
    return answered({"error": reason, "item": None}, 409)


async def _closing(request: Request, error: Exception) -> Response:
    return answered({"error": "The server is about to stop.", "item": None}, 503, {"Retry-After": "5"})


async def _misused(request: Request, error: Exception) -> Response:
    return answered({"error": str(error), "item": None}, 422)


def build_app(service: Service, *, token: str = "", hosts: Iterable[str] = (), largest: int = LARGEST) -> ASGIApp:
    """The whole server. `hosts` are the names it may be asked by, all if there are none."""
    api = Api(service, largest=largest)
    handlers: dict[Any, Any] = {
        Refused: _refused,
        HTTPException: _unknown,
        QueueFullError: _full,
        KeyUsedError: _used,
        ClosingError: _closing,
        UsageError: _misused,
    }
    api.metrics = Metrics(Starlette(routes=api.routes(), exception_handlers=handlers), service)
    return Guard(api.metrics, token, hosts)
