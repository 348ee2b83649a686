"""Each method's step time (CPU time) over ER's, beside its training FLOPs over ER's.

    python benchmarks/cost.py [--count] [--save results/benchmarks/cost.json] [METHOD ...]

FLOPs are the same on every machine: `--count` counts them and leaves the times that are stored as they are.

slim-resnet18, images of 32x32, ten classes in five tasks, memory 1000 and full, one thread. ER and the method take
turns of five steps; the ratio is that of the medians. A method with larger or smaller passes than ER's may take more or
less time than its FLOPs say: convolutions are not equally quick in all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from onepass.bench.cost import STEPS, measure, prepare
from onepass.learner.problem import Problem
from onepass.methods.registry import METHODS

Case = tuple[str, Mapping[str, Any]]  # a method and its settings
SETTING = ("cifar10", Problem(10, (3, 32, 32), "colour", 5), "slim-resnet18", 1000)


def milliseconds(method: str, settings: Mapping[str, Any], rounds: int) -> tuple[float, float]:
    """A step of ER and one of the method."""
    times: list[list[float]] = [[], []]
    for _ in range(rounds + 1):
        for (name, given), taken in zip((("er", {}), (method, settings)), times, strict=True):
            learner, batches = prepare(
                name, *SETTING, **given
            )  # anew, so that they are the steps whose FLOPs were counted
            begin = time.process_time()  # of one thread: what else the machine does counts little
            for batch in batches:
                learner.observe(batch)
            taken.append(1e3 * (time.process_time() - begin) / STEPS)
    er, own = (statistics.median(taken[1:]) for taken in times)  # the first turn warms up
    return er, own


def main(cases: Mapping[str, Case], about: str | None) -> None:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(cases))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", action="store_true", help="FLOPs and bytes alone, no times")
    parser.add_argument("--save", type=Path, help="add the figures to this JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    er_cost = measure("er", *SETTING)
    for name in options.names:
        method, settings = cases.get(name, (name, {}))  # a method of your own: MODULE:CLASS
        cost = measure(method, *SETTING, **settings)
        row = {"flops": cost.flops / er_cost.flops, "model": cost.model / er_cost.model, "bytes": cost.model}
        said = f"{name:40} FLOPs {row['flops']:6.2f}"
        if not options.count:
            er, own = milliseconds(method, settings, options.rounds)
            row |= {"time": own / er, "er_ms": er, "ms": own}
            said += f"  time {row['time']:6.2f}"
        print(said, flush=True)
        if options.save:
            known = json.loads(options.save.read_text()) if options.save.exists() else {}
            known[name] = known.get(name, {}) | row
            options.save.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main({name: (name, {}) for name in METHODS}, __doc__)
