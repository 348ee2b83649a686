"""Both phases as commands, one a line: `tune` on CIFAR-10, then runs on CIFAR-100 with the default and the chosen rate.

python phases.py OUT one|two
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from onepass.config import LearnerConfig
from onepass.methods.registry import METHODS, method_class

SHARED = "--net small-cnn --fraction 0.1"
FACTORS = (0.1, 0.3, 1, 3)  # times the method's own rate
SEEDS = (0, 1, 2)


def methods() -> Iterator[tuple[str, str]]:
    """Those that take gradient steps on a stream that comes task by task, and their flags."""
    for name, known in METHODS.items():
        config = method_class(name).Config
        if issubclass(config, LearnerConfig) and not known.reference:
            yield name, SHARED + (" --memory 1000" if "memory" in config().to_json() else "")


def rates(method: str) -> list[float]:
    default = method_class(method).Config().to_json()["lr"]
    return [float(f"{factor * default:.6g}") for factor in FACTORS]


def phase_one(out: str) -> Iterator[str]:
    for name, flags in methods():
        choices = ",".join(map(str, rates(name)))
        yield f"tune {name} --stream cifar10 {flags} --search lr={choices} --trials 4 --save {name} --out {out}/trials"


def phase_two(out: str) -> Iterator[str]:
    for seed in SEEDS:
        for name, flags in methods():
            run = f"run {name} --stream cifar100 {flags} --seed {seed} --out {out}/runs --jobs 1"
            yield run
            yield f"{run} --preset {out}/trials/{name}.json"


if __name__ == "__main__":
    print("\n".join({"one": phase_one, "two": phase_two}[sys.argv[2]](sys.argv[1])))
