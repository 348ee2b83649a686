"""A stream that does not wait (Ghunaim et al., CVPR 2023): a method too slow for it misses batches."""

from __future__ import annotations

import math

from onepass.bench.cost import measure
from onepass.bench.run_config import RunConfig
from onepass.data.catalog import suited
from onepass.learner.problem import Problem
from onepass.methods.registry import trains


def learned(n_batches: int, load: float) -> list[bool]:
    """Which batches are learned by a method that takes `load` times as long as a batch is there.

    Whenever it is free it takes the batch that came last; those that came meanwhile are gone.
    """
    if load <= 1:
        return [True] * n_batches
    taken = {math.floor(place * load + 1e-9) for place in range(n_batches)}
    return [number in taken for number in range(n_batches)]


def cost_over_er(config: RunConfig, problem: Problem) -> float:
    """Training FLOPs of a step of this run over those of ER's with the same network: the same on every machine."""
    settings = config.learner_config.to_json()
    memory = settings.pop("memory", 0) or 1
    net = config.net if trains(config.method) else suited(config.stream).net
    own = measure(config.method, config.stream, problem, config.net, memory, **settings)
    return own.flops / measure("er", config.stream, problem, net, memory).flops
