"""What orchestration costs: runs side by side, the overhead around a run, reading a full table.

    python benchmarks/orchestration.py side|overhead|reading [--save results/benchmarks/orchestration.json]

side      two slim-resnet18 runs side by side, one core each, over one after the other with both cores each
overhead  the share of a stored run that is neither a step nor an evaluation
reading   table 1 from its 2,130 different runs (2,400 cells and runs) on disk
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy
import torch

from onepass.bench import run as run_in_progress
from onepass.bench import runner
from onepass.bench.evaluate import predictions
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.bench.store import folder, load_all, save_result
from onepass.data.catalog import Datasets
from onepass.executors import run_many, stored_results
from onepass.files import write_text
from onepass.host import host_facts
from onepass.learner.base import Learner
from onepass.paper.experiments import experiment
from onepass.paper.scales import Selection
from onepass.paper.tables import table

ROOT = Path(__file__).resolve().parent.parent
PER_CLASS = 60  # training images: 60 steps of ten, five tasks
LONGER = 4  # times as many where the start of worker processes is not to count


def photographs(place: Path, times: int = 1) -> str:
    """A stream of random 32x32 photographs."""
    rng = numpy.random.default_rng(0)
    labels = numpy.repeat(numpy.arange(10), times * PER_CLASS)
    pixels = rng.integers(0, 256, (len(labels), 32, 32, 3), dtype=numpy.uint8)
    numpy.savez(place / "photographs.npz", x=pixels, y=labels, x_test=pixels[::6], y_test=labels[::6])
    return str(place / "photographs.npz")


def configs(stream: str, seeds: int) -> list[RunConfig]:
    first = RunConfig("er", stream, net="slim-resnet18", settings={"memory": 100})
    return [replace(first, seed=seed) for seed in range(seeds)]


def side(place: Path) -> dict[str, float]:
    """Seconds of two runs, each way, in turns."""
    runs = configs(photographs(place, LONGER), 2)
    took: dict[str, list[float]] = {"side by side": [], "one after the other": []}
    for number in range(2):
        for name, jobs in (("side by side", 2), ("one after the other", 1)):
            begin = time.perf_counter()
            run_many(runs, place / f"{number}-{jobs}", jobs=jobs, data_dir=place)
            took[name].append(time.perf_counter() - begin)
    best = {name: min(values) for name, values in took.items()}
    return {**best, "ratio": best["side by side"] / best["one after the other"], "cores": os.cpu_count() or 0}


def overhead(place: Path) -> dict[str, float]:
    """The share of a stored run's seconds that is neither a step nor an evaluation."""
    torch.set_num_threads(1)
    [config] = configs(photographs(place, LONGER), 1)
    config = replace(config, settings={"memory": 1000})
    run_in_progress.Run(config, datasets=Datasets(place))  # torch imports much with its first optimiser, in any loop
    inside = 0.0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **named: Any) -> Any:
            nonlocal inside
            begin = time.perf_counter()
            try:
                return function(*words, **named)
            finally:
                inside += time.perf_counter() - begin

        return call

    with (
        mock.patch.object(Learner, "observe", timed(Learner.observe)),
        mock.patch.object(run_in_progress, "predictions", timed(predictions)),
    ):
        begin = time.perf_counter()
        result = runner.run(config, place / "run", data_dir=place)
        seconds = time.perf_counter() - begin
    return {"share": 1 - inside / seconds, "steps": result.steps, "seconds": seconds}


def reading(place: Path) -> dict[str, float]:
    """Results as large as real ones: with the protocol of a stored run, and a loss for every tenth of 5,000 steps."""
    whole = experiment("table1", Selection())
    real = load_all(ROOT / "results/cifar10-fifth")[-1]
    for number, config in enumerate(whole.runs):
        size = config.tasks if config.scenario == "class-incremental" else 1
        matrix = [[(number % 97) / 97] * (task + 1) for task in range(size)]
        facts = [{"learned_in": [[0, 51]], "replayed_in": [[0, 51]]}] * size
        names = [f"class {number}" for number in range(100)]
        filled = Result(
            config=config,
            accuracy_matrix=matrix,
            steps=5000,
            seconds=1.0,
            fingerprint="0" * 64,
            data={"sha256": "0" * 64},
            host=host_facts("cpu"),
        )
        protocol = {**real.protocol, "tasks": [names]}
        save_result(folder(place, config), replace(filled, protocol=protocol, facts=facts, losses=5 * real.losses))
    begin = time.perf_counter()
    whole = experiment("table1", Selection())
    planned = time.perf_counter() - begin
    found = whole.found(stored_results(whole.runs, place, Datasets()))
    loaded = time.perf_counter() - begin - planned
    shown = table(whole, found)
    assert all("not run" not in cell.text for row in shown.rows for cell in row)
    parts = {"planning": planned, "loading": loaded, "table": time.perf_counter() - begin - planned - loaded}
    return {"runs": len(found), "cells": len(whole.cells), **parts, "seconds": sum(parts.values())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["side", "overhead", "reading"])
    parser.add_argument("--save", type=Path)
    values = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = {"side": side, "overhead": overhead, "reading": reading}[values.what](Path(name))
    print(json.dumps({values.what: found}, indent=1))
    if values.save:
        known = json.loads(values.save.read_text()) if values.save.exists() else {}
        write_text(values.save, json.dumps({**known, values.what: found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
