"""Which changes to ER-FSL help? Each on its own, beside the same runs without it; measured on validation images.

    python studies/er_fsl_plus/plus.py cifar10 --data-dir DIR --out results/plus --runs 3 [--only NAME ...]
    python studies/er_fsl_plus/plus.py cifar10 --data-dir DIR --out results/plus --runs 3 --kept NAME ...
    python studies/er_fsl_plus/plus.py cifar10 --data-dir DIR --out results/plus --runs 3 --rivals

The second line runs what was kept again, all together and with one left out at a time, on seeds that chose nothing; the
third gives rivals the change that helped most.
All runs keep the average of their weights (--average); a tenth of the training images is held back and measured.
Runs are stored like any others; those that are there are not made again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onepass.bench.run_config import RunConfig
from onepass.errors import UsageError
from onepass.executors import run_many

LEARNER = "candidates:Candidate"
DECAY = 0.98
FEATURES = 160  # of slim-resnet18
RUNS = 3
BASE, ALL = "ER-FSL with the average", "all that was kept"
MORE = "thirty replayed, one view each, gamma 0.7"
PART = "gamma 0.7"  # of that change, alone: what does the rest of it do?
CHANGES: dict[str, Mapping[str, Any]] = {
    BASE: {},
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
    PART: {"gamma": 0.7},
    MORE: {"learner": "once:Once", "replay": 30, "gamma": 0.7},
}
RIVALS: dict[str, Mapping[str, Any]] = {  # that are given more replay too
    "er": {"learner": "rivals:MoreER", "replay": 30},
    "pcr": {"learner": "rivals:MorePCR", "replay": 30},
}


def learner(change: Mapping[str, Any]) -> str:
    return str(change.get("learner", LEARNER))


def settings(change: Mapping[str, Any], stream: str) -> dict[str, Any]:
    """With the average, and with a subspace in dimensions instead of in times features / tasks."""
    given = {"average": DECAY, **{name: value for name, value in change.items() if name != "learner"}}
    if "subspace" in given:
        given["subspace"] *= FEATURES // RunConfig(LEARNER, stream).tasks
    return given


def config(change: Mapping[str, Any], stream: str, seed: int) -> RunConfig:
    given = {"memory": 1000, **settings(change, stream)}
    return RunConfig(
        learner(change), stream, net="slim-resnet18", fraction=0.2, validate=True, seed=seed, settings=given
    )


def together(kept: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """All of these changes at once, with one left out at a time if there are several, and none."""

    def merged(names: Iterable[str]) -> dict[str, Any]:
        pairs = [pair for name in names for pair in CHANGES[name].items()]
        if len(dict(pairs)) < len(set(pairs)):
            raise UsageError(f"{', '.join(names)}: two of these change the same setting and cannot be had together")
        return dict(pairs)

    found: dict[str, Mapping[str, Any]] = {BASE: {}, ALL: merged(kept)}
    for out in kept if len(kept) > 1 else ():
        found[f"without: {out}"] = merged([name for name in kept if name != out])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream")
    parser.add_argument("--only", nargs="+", help="names of changes, or of lines of the table of what was kept")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--kept", nargs="+", choices=list(CHANGES)[1:], help="run these again, together, on fresh seeds")
    which.add_argument("--rivals", action="store_true", help=f"run {' and '.join(RIVALS)} with thirty replayed")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    values = parser.parse_args()
    cases = together(values.kept) if values.kept else RIVALS if values.rivals else CHANGES
    if unknown := set(values.only or cases) - set(cases):
        parser.error(f"--only {' '.join(sorted(unknown))}: allowed are {', '.join(cases)}")
    for seed in range(RUNS, RUNS + values.runs) if values.kept else range(values.runs):
        for name in values.only or cases:
            [result] = run_many(
                [config(cases[name], values.stream, seed)], values.out, data_dir=values.data_dir, jobs=1
            )
            print(f"seed {seed}  {100 * result.final_accuracy:5.1f}  {name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
