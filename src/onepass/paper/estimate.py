"""How long runs will take, from stored runs of the same kind or from a few steps tried here."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import torch

from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.bench.stream import VALIDATION, problem_of
from onepass.data.catalog import Datasets
from onepass.methods.registry import METHODS

IMAGE = 0.011  # predicting one, as a share of ER's step (docs/decisions.md)


def seconds(runs: Sequence[RunConfig], known: Iterable[Result], datasets: Datasets) -> float:
    """The sum over runs of steps times a step's seconds, and of images times an image's in evaluations after tasks."""
    measured: dict[tuple[str, str, str], float] = {}
    for result in known:
        config = result.config
        measured[config.stream, config.net, config.method] = result.seconds / max(1, result.steps)
    total = 0.0
    sizes: dict[tuple[str, int], tuple[int, int]] = {}
    for config in runs:
        place = (config.stream, config.net, config.method)
        cost = METHODS[config.method].cost if config.method in METHODS else 1.0
        if place not in measured:
            er = (config.stream, config.net, "er")
            if er not in measured:
                measured[er] = _tried(config, datasets)
            measured[place] = cost * measured[er]
        kind = (config.stream, config.image_size)
        if kind not in sizes:
            data = datasets.load(config.stream, config.image_size)
            sizes[kind] = len(data.y), len(data.y_test)
        images, tested = sizes[kind]
        held = VALIDATION * images if config.validate else 0
        steps = (images - held) * config.fraction / config.batch
        stages = 1 if config.scenario.startswith("iid") else config.tasks
        predicted = (
            (held or tested) * config.test_fraction * (stages + 1) / 2
        )  # after each task, those of all tasks so far
        total += (steps + predicted * IMAGE / cost) * measured[place]
    return total


def _tried(config: RunConfig, datasets: Datasets) -> float:
    """The seconds of one step of ER here."""
    from onepass.bench.cost import prepare

    problem = problem_of(config.stream, 10, datasets.load(config.stream, config.image_size).x.shape[1:], 5)
    learner, batches = prepare("er", config.stream, problem, config.net, 100)
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
