"""`onepass serve`: a model behind HTTP, with a page."""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from onepass.cli.flags import Parser, count
from onepass.cli.learn import POLL
from onepass.cli.signals import handled
from onepass.errors import RunError, UsageError, extra
from onepass.live.claim import claimed
from onepass.methods.registry import canonical
from onepass.names import NET_NAMES
from onepass.text import printable, warn

if TYPE_CHECKING:
    from onepass.live.folder import FolderStream
    from onepass.live.serving.opening import Opening
    from onepass.live.serving.service import Service

DRAIN = 20.0  # seconds in which what is queued is still learned
GRACE = 5  # seconds for requests under way
CONNECTIONS = 128
REPLICAS = 2
TOKEN = "ONEPASS_TOKEN"


def serve(command: str, words: Sequence[str]) -> None:
    parser = Parser(
        prog="onepass serve",
        description="Serve a model: it is asked, taught and corrected over HTTP, and on a page.\n"
        f"A token is asked for: that of the variable {TOKEN}, or a new one, which is printed.",
    )
    add = parser.add_argument
    add("model", type=Path, metavar="FILE", help="a model's file; a new model is made if it is not there")
    add("--host", default="127.0.0.1", metavar="NAME", help="address to listen at (default: 127.0.0.1, this machine)")
    add("--port", type=int, default=8000, metavar="N", help="0: any that is free (default: 8000)")
    add("--no-token", action="store_true", help="anybody who can reach it may ask and teach")
    add("--read-only", action="store_true", help="predict, and learn nothing")
    add("--watch", type=Path, metavar="DIR", help="learn from class folders too, as images arrive there")
    add("--on", default="", metavar="WHERE", help="ray, or HOST:PORT: a learner and replicas on that Ray cluster")
    add("--replicas", type=count, metavar="N", help="with --on: processes that answer questions (default: 2)")
    add("--queue", type=count, default=10_000, metavar="N", help="samples that may wait (default: 10000)")
    add("--max-body", type=count, default=16, metavar="MB", help="size of a request, at most (default: 16)")
    add("--save-seconds", type=float, default=60.0, metavar="S", help="at most so much is lost (default: 60)")
    add("--method", default="", metavar="METHOD", help="of a new model (default: one that keeps statistics)")
    add("--net", default="", help=f"of a new model: {', '.join(NET_NAMES)}, or MODULE:FACTORY")
    add("--image-size", type=count, default=32, metavar="N", help="side of the images of a new model (default: 32)")
    add("--vectors", type=count, default=0, metavar="N", help="a new model of vectors of N numbers, not of images")
    add("--seed", type=int, default=0, metavar="N", help="of a new model (default: 0)")
    add("--allow", action="append", default=[], metavar="MODULE:NAME", help="code of your own that the file may name")
    values = parser.parse(words)
    if values.read_only and values.watch is not None:
        raise UsageError("Expected --watch or --read-only, got both.")
    try:
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UsageError(f"Expected {error.name} to be installed. Do: {extra('serve')}.") from error
    if values.on:
        _serve_on(values)
        return
    if values.replicas is not None:
        raise UsageError("Expected --on with --replicas, got none. Do: --on ray")
    with nullcontext() if values.read_only else claimed(values.model):
        _serve(values)


def _token(values: argparse.Namespace) -> str:
    return "" if values.no_token else os.environ.get(TOKEN) or secrets.token_urlsafe(24)


def _opening(values: argparse.Namespace) -> Opening:
    from onepass.live.serving.opening import Opening

    side = values.image_size
    shape = (values.vectors,) if values.vectors else (3, side, side)
    method = canonical(values.method) if values.method else ""
    made = shape, method, values.net, values.seed
    return Opening(values.model, *made, tuple(values.allow), values.read_only)


def _hosts(host: str) -> tuple[str, ...]:
    from onepass.live.serving.guard import LOOPBACK, is_loopback

    return (*LOOPBACK, host) if is_loopback(host) else ()


def _serve_on(values: argparse.Namespace) -> None:
    from onepass.live.serving.cluster.run import Plan, check_ray, serve_on

    if values.watch is not None:
        raise UsageError("Expected --watch or --on, got both. Do: onepass learn --watch on another model.")
    check_ray(values.on)
    token, opening = _token(values), replace(_opening(values), path=values.model.absolute())
    plan = Plan(
        opening,
        values.replicas or REPLICAS,
        values.host,
        values.port,
        token,
        _hosts(values.host),
        values.queue,
        values.save_seconds,
        values.max_body << 20,
    )
    asked: list[bool] = []

    def stop() -> None:
        if asked or not announced:
            raise KeyboardInterrupt
        asked.append(True)

    announced: list[bool] = []

    def announce(host: str, port: int) -> None:
        announced.append(True)
        _announce(values, host, port, token)

    serve_on(values.on, plan, announce, lambda: bool(asked), DRAIN, lambda: handled(stop))
    raise KeyboardInterrupt


def _serve(values: argparse.Namespace) -> None:
    from onepass.live.autosave import Autosave
    from onepass.live.folder import FolderStream
    from onepass.live.serving.app import build_app
    from onepass.live.serving.run import Server
    from onepass.live.serving.service import Service

    token = _token(values)
    model = _opening(values).model()
    stream = None if values.watch is None else FolderStream(model, values.watch)
    listening = _listen(values.host, values.port)
    autosave = (
        None if values.read_only else Autosave(model, values.model, values.save_seconds, held=values.model.exists())
    )
    service = Service(model, autosave, room=values.queue)
    app = build_app(service, token=token, hosts=_hosts(values.host), largest=values.max_body << 20)
    server = Server(app, listening, grace=GRACE, connections=CONNECTIONS)
    asked: list[bool] = []

    def stop() -> None:
        asked.append(True)
        server.stop(at_once=len(asked) > 1)

    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(stream, service, ended), name="onepass-watch", daemon=True)
    with handled(stop):
        if stream is not None:
            watcher.start()
        name, port = listening.getsockname()[:2]
        _announce(values, name, port, token)
        try:
            server.run()
        finally:
            ended.set()
            if stream is not None:
                watcher.join()
            drained = service.close(DRAIN)
            if autosave is not None:
                autosave.close()
    if not drained:
        warn("stopped before all that was queued was learned; its senders can repeat it")
    if autosave is not None and autosave.failure:
        raise RunError(autosave.failure)
    if asked:
        raise KeyboardInterrupt


def _listen(host: str, port: int) -> socket.socket:
    """Before anything is printed, so that the address is true."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(CONNECTIONS)
    except (OSError, OverflowError) as error:
        raise UsageError(f"Expected an address to listen at, got {host}:{port} ({error}). Try --port 0.") from error
    return found


def _announce(values: argparse.Namespace, name: str, port: int, token: str) -> None:
    name = f"[{name}]" if ":" in name else name
    print(f"onepass serves {printable(str(values.model))} at http://{name}:{port}/{f'#token={token}' if token else ''}")
    sys.stdout.flush()


def _watch(stream: FolderStream, service: Service, ended: threading.Event) -> None:
    """Learn what arrives in a folder, between the requests. Nothing that goes wrong there ends it."""
    said = ""
    while not ended.is_set():
        try:
            for _ in stream.scan():
                service.stir()
                if ended.is_set():
                    return
            said = ""
        except Exception as error:
            words = str(error) if isinstance(error, OSError | RunError | UsageError) else repr(error)
            if words != said:
                warn(f"{printable(words)}; it is tried again every {POLL:g} s")
            said = words
        ended.wait(POLL)
