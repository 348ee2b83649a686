"""Which changes to ER-FSL help? Each on its own, beside the same runs without it; measured on validation images.

    python benchmarks/plus.py cifar10 --data-dir DIR --out results/plus --runs 3 [--only NAME ...]

All runs keep the average of their weights (--average); a tenth of the training images is held back and measured.
Runs are stored like any others; those that are there are not made again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from onepass.executors import run_many
from onepass.metrics import final_accuracy
from onepass.results import RunConfig

DECAY = 0.98
FEATURES = 160  # of slim-resnet18
RUNS = 3
CHANGES: dict[str, Mapping[str, Any]] = {
    "ER-FSL with the average": {},
    "one joint forward pass": {"forward": "joint"},
    "subspaces twice as large, reused": {"subspace": 2},  # times features / tasks
    "class-balanced retrieval": {"draw": "balanced"},
    "class-balanced storage": {"store": "balanced"},
    "replay without the running task": {"draw": "old"},
    "gamma follows the share of old classes": {"follow": True},
    "softmax over all classes": {"scope": "all"},
    "cosine scores, times 10": {"cosine": 10.0},
    "the average teaches on replay": {"teach": 1.0},
    "half the learning rate": {"lr": 0.05},
    "Adam at 0.001": {"adam": True, "lr": 0.001},
}


def config(change: Mapping[str, Any], stream: str, seed: int) -> RunConfig:
    settings = {"memory": 1000, "average": DECAY, **change}
    made = RunConfig(
        "candidates:Candidate", stream, net="slim-resnet18", fraction=0.2, validate=True, seed=seed, settings=settings
    )
    if "subspace" in change:
        settings["subspace"] = change["subspace"] * (FEATURES // made.tasks)
    return replace(made, settings=settings)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream")
    parser.add_argument("--only", nargs="+", choices=CHANGES, default=list(CHANGES))
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    values = parser.parse_args()
    for seed in range(values.runs):
        configs = [config(CHANGES[name], values.stream, seed) for name in values.only]
        results = run_many(configs, values.out, data_dir=values.data_dir, jobs=1)
        for name, result in zip(values.only, results, strict=True):
            by_average = final_accuracy(result.accuracy_matrix_average)
            print(f"seed {seed}  {100 * by_average:5.1f}  {name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
