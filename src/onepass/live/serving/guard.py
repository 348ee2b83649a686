"""Who may ask. A token says so; on loopback the names of the host and of the asking page must be loopback's too.

Otherwise any web page that is open on this machine could ask in its owner's name (a forged request, or a name that was
made to point here).
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN = frozenset({"/", "/healthz", "/readyz", "/openapi.json"})  # hold nothing of the model
LOOPBACK = ("localhost", "127.0.0.1", "::1")
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """`token` is empty if anybody may ask; `hosts` are the names that requests may come for, all if there are none."""

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str] = ()) -> None:
        self.app, self.token, self.hosts = app, token.encode(), frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refused = self._refusal(scope["path"], Headers(scope=scope))

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        await (refused or self.app)(scope, receive, sending)

    def _refusal(self, path: str, headers: Headers) -> JSONResponse | None:
        host = _name(headers.get("host", ""))
        if self.hosts and host not in self.hosts:
            return _answer(403, "Expected a request for this host, got another name. Use --host to serve others.")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != headers.get("host"):
            return _answer(403, "Expected a request of this server's own page, got one of another site.")
        if path in OPEN or not self.token:
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.token):
            return None
        answer = _answer(401, "Expected the token, got none that is right. Send Authorization: Bearer TOKEN.")
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer


def _name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _answer(status: int, reason: str) -> JSONResponse:
    return JSONResponse({"error": reason, "item": None}, status)
