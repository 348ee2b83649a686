"""Starts a learner and its replicas on a Ray cluster, and stops them."""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from onepass.errors import RunError, UsageError, extra
from onepass.executors.ray_cluster import check, joined
from onepass.live.serving.cluster.learner import Learner
from onepass.live.serving.cluster.replica import AT_ONCE
from onepass.live.serving.guard import is_loopback
from onepass.live.serving.opening import Opening
from onepass.text import warn

APP = "onepass"
ONGOING = 128  # requests at a time, for each replica
WAITING = 512  # requests that wait for a replica
GONE = 30  # seconds that a process has to end after it was closed


@dataclass(frozen=True)
class Plan:
    opening: Opening
    replicas: int
    host: str
    port: int
    token: str
    hosts: tuple[str, ...]
    room: int
    save_seconds: float
    largest: int


def check_ray(on: str) -> None:
    check(on)
    if on.startswith("ray://"):
        raise UsageError(f"Expected ray or HOST:PORT, got {on}. Start it on a node of the cluster.")
    try:
        importlib.import_module("ray.serve")
    except ImportError as error:
        raise UsageError(f"on={on!r} needs Ray Serve: {extra('ray,serve')}") from error


def serve_on(
    on: str,
    plan: Plan,
    announce: Callable[[str, int], None],
    stopped: Callable[[], bool],
    drain: float,
    signals: Callable[[], contextlib.AbstractContextManager[None]],
) -> None:
    """Serve until it is stopped; then learn what is queued for so many seconds, and save.

    `signals` is entered when Ray has started, as it takes over SIGTERM.
    """
    if plan.opening.path.exists():
        plan.opening.model()  # a bad file is refused at once: Ray Serve would try again and again
    with joined(on), signals():
        ray, serve = importlib.import_module("ray"), importlib.import_module("ray.serve")
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        with _serve_running(serve, plan) as (host, port):
            if (cores := ray.cluster_resources().get("CPU", 0)) < plan.replicas + 1:
                text = f"the cluster has {cores:g} cores for a learner and {plan.replicas} replicas"
                warn(f"{text}; those without one wait until a node joins")
            _deploy(serve, plan)
            try:
                announce(host, port)
                _wait(serve, stopped)
                learner = serve.get_deployment_handle("Learner", APP)
                drained, failure = learner.close.remote(drain).result(timeout_s=drain + GONE)
            finally:
                serve.delete(APP)
    if not drained:
        warn("stopped before all that was queued was learned; its senders can repeat it")
    if failure:
        raise RunError(failure)


@contextlib.contextmanager
def _serve_running(serve: Any, plan: Plan) -> Iterator[tuple[str, int]]:
    """Ray Serve; one that runs already stays, and listens where it does. What it serves of this file is taken over."""
    context = importlib.import_module("ray.serve.context")
    try:
        running = context._get_global_client().http_config
    except importlib.import_module("ray.serve.exceptions").RayServeException:
        running = None
    if running is not None:
        if APP in serve.status().applications:  # whoever started it was killed
            where = serve.get_deployment_handle("Learner", APP).where.remote().result(timeout_s=GONE)
            if where != str(plan.opening.path):
                raise UsageError(f"Expected a cluster that serves no other model, got one that serves {where}.")
        yield running.host, running.port
        return
    port = plan.port or _free_port(plan.host)
    where = "HeadOnly" if is_loopback(plan.host) else "EveryNode"
    quiet = {"log_level": "ERROR", "enable_access_log": False}
    try:
        serve.start(proxy_location=where, http_options={"host": plan.host, "port": port}, logging_config=quiet)
    except Exception as error:
        serve.shutdown()
        raise RunError(f"Ray Serve cannot listen at {plan.host}:{port}; try another --port") from error
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    try:
        yield plan.host, port
    finally:
        serve.shutdown()


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as server:
        return int(server.getsockname()[1])


def _deploy(serve: Any, plan: Plan) -> None:
    opening = plan.opening
    settings = {"token": plan.token, "hosts": plan.hosts, "largest": plan.largest, "allow": opening.allow}

    def build() -> Any:
        """On a replica's node."""
        from onepass.live.serving.cluster.replica import replica_app

        return replica_app(importlib.import_module("ray.serve").get_deployment_handle("Learner", APP), settings)

    health = {"health_check_period_s": 1, "health_check_timeout_s": 30}
    at_once = {"max_ongoing_requests": (AT_ONCE + 2) * plan.replicas + 16}  # each waits for news too
    learner = serve.deployment(name="Learner", num_replicas=1, graceful_shutdown_timeout_s=GONE, **at_once, **health)(
        Learner
    )
    limits = {"max_ongoing_requests": ONGOING, "max_queued_requests": WAITING}
    replica = serve.deployment(name="Replica", num_replicas=plan.replicas, **limits, **health)(serve.ingress(build)())
    options = {"room": plan.room, "save_seconds": plan.save_seconds, "largest": plan.largest}
    try:
        serve.run(replica.bind(learner.bind(opening, **options)), name=APP, route_prefix="/")
    except RuntimeError as error:
        said = [d.message for app in serve.status().applications.values() for d in app.deployments.values()]
        serve.delete(APP)
        raise RunError(_reason([*said, str(error)])) from error


def _reason(messages: Iterable[str]) -> str:
    """Why a deployment failed: our own error, if it was one."""
    text = "\n".join(messages)
    ours = re.search(r"onepass\.errors\.\w+: (.*)", text)
    return ours[1] if ours else text


def _wait(serve: Any, stopped: Callable[[], bool]) -> None:
    looked = time.monotonic()
    while not stopped():
        time.sleep(0.1)
        if time.monotonic() - looked > 5:
            looked = time.monotonic()
            try:
                there = APP in serve.status().applications
            except Exception as error:
                raise RunError(f"the Ray cluster was lost: {error}; the same command serves the model again") from error
            if not there:
                raise RunError("the model is no longer served: somebody has removed it from the cluster")
