"""How long runs will take, from stored runs of the same kind or from a few steps tried here."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import torch

from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.bench.stream import VALIDATION, problem_of
from onepass.data.catalog import Datasets
from onepass.methods.registry import METHODS, trains

IMAGE = 0.011  # predicting one, as a share of ER's step (docs/decisions.md)


def seconds(runs: Sequence[RunConfig], known: Iterable[Result], datasets: Datasets) -> float:
    """The sum over runs of steps times a step's seconds, and of images times an image's in evaluations after tasks."""
    measured: dict[tuple[str, str, str], float] = {}  # of a step with one update
    for result in known:
        config = result.config
        measured[config.stream, config.net, config.method] = result.seconds / max(1, result.steps * _updates(config))
    total = 0.0
    sizes: dict[tuple[str, int], tuple[int, int]] = {}
    for config in runs:
        place = (config.stream, config.net, config.method)
        cost = METHODS[config.method].cost if config.method in METHODS else 1.0
        if place not in measured and trains(config.method):
            er = (config.stream, config.net, "er")
            if er not in measured:
                measured[er] = _tried("er", config, datasets)
            measured[place] = cost * measured[er]
        elif place not in measured:
            measured[place] = _tried(config.method, config, datasets)
        image = IMAGE / cost if trains(config.method) else 1 / config.batch  # as a share of the step
        kind = (config.stream, config.image_size)
        if kind not in sizes:
            data = datasets.load(config.stream, config.image_size)
            sizes[kind] = len(data.y), len(data.y_test)
        images, tested = sizes[kind]
        held = VALIDATION * images if config.validate else 0
        steps = (images - held) * config.fraction / config.batch
        stages = 1 if config.scenario.startswith("iid") else config.tasks
        predicted = (held or tested) * config.test_fraction * (stages + 1) / 2  # after each task, those of all so far
        total += (steps * _updates(config) + predicted * image) * measured[place]
    return total


def _updates(config: RunConfig) -> int:
    return getattr(config.learner_config, "updates", 1)


def _tried(method: str, config: RunConfig, datasets: Datasets) -> float:
    """The seconds of one step of this method here."""
    from onepass.bench.cost import prepare

    problem = problem_of(config.stream, 10, datasets.load(config.stream, config.image_size).x.shape[1:], 5)
    learner, batches = prepare(method, config.stream, problem, config.net, 100)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as runs side by side have
    try:
        for batch in batches[:2]:  # warms up
            learner.observe(batch)
        begin = time.perf_counter()
        for batch in batches[2:]:
            learner.observe(batch)
        return (time.perf_counter() - begin) / len(batches[2:])
    finally:
        torch.set_num_threads(threads)


def in_words(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 1.5:
        return f"{max(1, round(seconds))} s"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
