"""uvicorn, without its own handling of signals: the command does that as every other command."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

SWITCH = 5e-4  # seconds until the thread that learns lets others run, instead of 5e-3: an answer takes several turns


class _Quiet(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """An app on a socket that listens already."""

    def __init__(self, app: ASGIApp, listening: socket.socket, *, grace: int = 5, connections: int = 128) -> None:
        self.listening = listening
        self._server = _Quiet(
            uvicorn.Config(
                app,
                lifespan="off",
                log_level="warning",
                access_log=False,
                server_header=False,
                limit_concurrency=connections,
                timeout_graceful_shutdown=grace,
                timeout_keep_alive=10,
            )
        )

    def run(self) -> None:
        """Until it is stopped."""
        sys.setswitchinterval(SWITCH)
        self._server.run(sockets=[self.listening])

    def stop(self, at_once: bool = False) -> None:
        """Take no new requests, and end when those under way are answered; from any thread, or a handler."""
        self._server.should_exit = True
        self._server.force_exit = at_once
