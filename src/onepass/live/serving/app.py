"""All routes. What takes long is done in threads, of which each kind of request has its own few."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from onepass.errors import UsageError
from onepass.live.serving import bodies, commands
from onepass.live.serving.asking import Asking, answered, kind_of, number_of, route
from onepass.live.serving.bodies import Items, Refused
from onepass.live.serving.guard import Guard
from onepass.live.serving.metrics import Metrics
from onepass.live.serving.service import ClosingError, KeyUsedError, QueueFullError, Service

LARGEST = 16 << 20  # bytes of a request


class Api(Asking):
    def __init__(self, service: Service, *, largest: int) -> None:
        super().__init__(service, largest=largest)
        self.service = service
        self.metrics: Metrics

    def routes(self) -> list[Route]:
        images = len(self.service.model.shape) == 3
        return [
            *self.questions(),
            Route("/healthz", self.health),
            Route("/metrics", self.show_metrics),
            route("/v1/learn", self.learn, *(("label", "id") if images else ()), method="POST"),
            route("/v1/batches/{id}", self.show_batch),
            route("/v1/samples/{id:path}", self.forget, "rebuild", method="DELETE"),
            route("/v1/samples/{id:path}", self.relabel, method="PATCH"),
            route("/v1/events", self.events, "after"),
            route("/v1/memory", self.memory, "limit", "offset", "class"),
        ]

    async def events(self, request: Request) -> Response:
        after = number_of(request, "after", 0, 0, 1 << 53)
        found = await self.thread("read", lambda: self.service.recent.after(after))
        return answered({"events": found, "kept": self.service.recent.numbers()})

    async def memory(self, request: Request) -> Response:
        limit, offset = number_of(request, "limit", 60, 1, 200), number_of(request, "offset", 0, 0, 1 << 53)
        label = request.query_params.get("class")
        return answered(await self.thread("read", lambda: commands.memory(self.service, offset, limit, label)))

    # Learning.

    async def learn(self, request: Request) -> Response:
        self._writable()
        kind, query = kind_of(request), request.query_params

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

        async with self.body(request) as body:
            id, found = await self.thread("learn", work)
        return answered(found, 202, {"Location": f"/v1/batches/{id}"})

    async def show_batch(self, request: Request) -> Response:
        return answered(commands.batch_state(self.service, request.path_params["id"]))

    async def forget(self, request: Request) -> Response:
        self._writable()
        id, x = bodies.id_of(request.path_params["id"]), None
        rebuild = request.query_params.get("rebuild", "false")
        if rebuild not in ("true", "false"):
            raise Refused(422, "Expected rebuild to be true or false.")
        async with self.body(request) as body:
            if body:
                _json_only(request)
                x, _ = await self.thread("learn", lambda: commands.given_sample(self.service.model, body, False))
        work = self.service.in_turn(lambda: commands.forget(self.service, id, x, rebuild == "true"))
        return answered(await asyncio.wrap_future(work))

    async def relabel(self, request: Request) -> Response:
        self._writable()
        id = bodies.id_of(request.path_params["id"])
        _json_only(request)
        async with self.body(request) as body:
            x, label = await self.thread("learn", lambda: commands.given_sample(self.service.model, body, True))
        work = self.service.in_turn(lambda: commands.relabel(self.service, id, label, x))
        return answered(await asyncio.wrap_future(work))

    def _writable(self) -> None:
        if self.service.read_only:
            raise Refused(403, "Expected a question: this server is read-only.")

    # About the server.

    async def health(self, request: Request) -> Response:
        good = self.service.healthy
        return answered({"status": "alive" if good else "learning has stopped"}, 200 if good else 503)

    async def show_metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")


def _json_only(request: Request) -> None:
    if kind_of(request) != "json":
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


Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]


def starlette_app(routes: list[Route], lifespan: Lifespan | None = None) -> Starlette:
    handlers: dict[Any, Any] = {
        Refused: _refused,
        HTTPException: _unknown,
        QueueFullError: _full,
        KeyUsedError: _used,
        ClosingError: _closing,
        UsageError: _misused,
    }
    return Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)


def open_app(service: Service, *, largest: int = LARGEST) -> ASGIApp:
    """The server for those who may ask."""
    api = Api(service, largest=largest)
    api.metrics = Metrics(starlette_app(api.routes()), service)
    return api.metrics


def build_app(service: Service, *, token: str = "", hosts: Iterable[str] = (), largest: int = LARGEST) -> ASGIApp:
    """The whole server. `hosts` are the names it may be asked by, all if there are none."""
    return Guard(open_app(service, largest=largest), token, hosts)
