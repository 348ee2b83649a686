"""What was run on whole streams: seeds of each row, and the hours its steps took."""

from __future__ import annotations

from collections.abc import Sequence

from cells import rows
from onepass.bench.result import Result
from onepass.methods.registry import METHODS
from onepass.report.series_names import title

STREAMS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


def ran(results: Sequence[Result]) -> str:
    if not results:
        return "Not run yet."
    found: dict[str, dict[str, set[int]]] = {}
    hours: dict[str, float] = {}
    for one in results:
        name = one.config.method
        found.setdefault(name, {stream: set() for stream in STREAMS})[one.config.stream].add(one.config.seed)
        hours[name] = hours.get(name, 0.0) + one.seconds / 3600
    heads = ["row", *(f"{name}: seeds" for name in STREAMS.values()), "hours"]
    body = [
        [title(name), *(_listed(found[name][stream]) for stream in STREAMS), f"{hours[name]:.1f}"]
        for name in METHODS
        if name in found
    ]
    machines = sorted({f"{one.host['machine']}, {one.host['device']}, torch {one.host['torch']}" for one in results})
    total = f"{len(results)} runs, {sum(hours.values()):.0f} hours of steps, one core each, beside other work"
    return "\n".join([rows(heads, body), "", f"{total}; {'; '.join(machines)}."])


def _listed(seeds: set[int]) -> str:
    return ", ".join(map(str, sorted(seeds))) or "not run"
