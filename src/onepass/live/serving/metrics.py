"""What Prometheus reads: requests, and what the model is like now."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onepass.live.serving.service import Service
from onepass.text import printable

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class ModelCollector(Collector):
    def __init__(self, service: Service) -> None:
        self.service = service

    def collect(self) -> Iterator[GaugeMetricFamily]:
        service, facts = self.service, self.service.published.facts
        autosave = service.autosave
        drift = facts["drift"]
        values = {
            "samples": ("Samples learned and not forgotten", facts["samples"]),
            "classes": ("Classes known", len(facts["classes"])),
            "memory_samples": ("Samples in memory", facts["memory"][0]),
            "queue_samples": ("Samples that wait to be learned", service.waiting),
            "queue_room_samples": ("Samples that may wait", service.room),
            "requests_not_learned": ("Requests that could not be learned", service.failed),
            "recent_accuracy": ("Accuracy of the last predictions before learning", facts["accuracy"]),
            "drift": ("-1 or 1: recent accuracy is below or above its band", drift and drift["side"]),
            "unsaved": ("1: something was learned that is in no file", _unsaved(service)),
            "save_failing": ("1: the last try to save failed", None if autosave is None else bool(autosave.failure)),
        }
        for name, (text, value) in values.items():
            family = GaugeMetricFamily(f"onepass_{name}", text)
            if value is not None:
                family.add_metric([], float(value))
            yield family
        by_class = GaugeMetricFamily("onepass_class_recent_accuracy", "Recent accuracy of a class", labels=["class"])
        for row in facts["classes"]:
            if row["accuracy"] is not None:
                by_class.add_metric([printable(str(row["name"]))], row["accuracy"])
        yield by_class


def _unsaved(service: Service) -> bool | None:
    return None if service.autosave is None else service.autosave.saved != service.model.version


class Metrics:
    """Counts requests around an app."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app = app
        self.registry = CollectorRegistry()
        self.registry.register(ModelCollector(service))
        names = ["route", "status"]
        self.requests = Counter("onepass_requests", "Requests answered", names, registry=self.registry)
        self.seconds = Histogram(
            "onepass_request_seconds", "Time to answer", ["route"], buckets=BUCKETS, registry=self.registry
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, sending)
        finally:
            route = getattr(scope.get("endpoint"), "__name__", "none")  # a name of ours: paths are without number
            self.requests.labels(route, status).inc()
            self.seconds.labels(route).observe(time.perf_counter() - begin)

    def text(self) -> bytes:
        return generate_latest(self.registry)
