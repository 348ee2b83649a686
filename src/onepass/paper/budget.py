"""What runs with several updates on each batch cost, counted."""

from __future__ import annotations

import json
import math
from functools import lru_cache

from onepass.bench.result import Result


def counted_over_er(result: Result) -> float:
    """Training FLOPs of a batch of this run over those of a plain ER run with the same network; NaN where an older
    result does not say what it learned."""
    config = result.config
    shape, tasks = tuple(result.data.get("shape", ())), result.protocol.get("tasks", ())
    if not shape or not tasks:
        return math.nan
    n_classes = len({name for task in tasks for name in task})
    settings = config.learner_config.to_json()
    memory, updates = settings.pop("memory", 1), settings.pop("updates")
    one, two = (
        _flops(config.method, config.stream, config.net, n_classes, shape, len(tasks), memory, json.dumps(settings), n)
        for n in (1, 2)
    )
    er = _flops("er", config.stream, config.net, n_classes, shape, len(tasks), memory, "{}", 1)
    over_er: float = (one + (updates - 1) * (two - one)) / er  # every further update costs the same
    return over_er


@lru_cache(maxsize=1024)
def _flops(
    method: str,
    stream: str,
    net: str,
    n_classes: int,
    shape: tuple[int, ...],
    n_tasks: int,
    memory: int,
    settings: str,
    updates: int,
) -> float:
    from onepass.bench.cost import measure
    from onepass.bench.stream import problem_of

    problem = problem_of(stream, n_classes, shape, n_tasks)
    return measure(method, stream, problem, net, memory, **json.loads(settings), updates=updates).flops
