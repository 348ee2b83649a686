"""bf16 beside fp32, against intervals worked out by hand."""

from __future__ import annotations

import pytest

from equivalence import equivalence, interval
from helpers import result_of
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig


def run(method: str, seed: int, final: float, precision: str = "fp32", stream: str = "cifar100") -> Result:
    settings = {"memory": 10, "average": 0.98, "precision": precision}
    return result_of(RunConfig(method, stream, seed=seed, settings=settings), final, final)


def test_the_interval_is_students_at_ninety_per_cent() -> None:
    # mean 0.01, deviation 0.01, t(0.95, 2) = 2.919986
    assert interval([0.0, 0.01, 0.02]) == pytest.approx((0.01 - 2.919986 * 0.01 / 3**0.5, 0.01 + 0.016858535), abs=1e-8)


def test_runs_are_paired_by_all_but_the_precision_and_one_verdict_is_for_all_methods() -> None:
    gains = {"er": (0.001, -0.001, 0.003), "pcr": (-0.003, 0.001, -0.001)}
    full = [run(method, seed, 0.2 + 0.01 * seed) for method in gains for seed in range(3)]
    low = [
        run(method, seed, 0.2 + 0.01 * seed + gain, "bf16")
        for method, group in gains.items()
        for seed, gain in enumerate(group)
    ]
    alone = run("scr", 0, 0.5, "bf16")  # without a twin
    lines = equivalence([*low, alone], full).splitlines()[2:]
    assert lines[0].startswith("| CIFAR-100 | ER | 3 | +0.10 | -0.24 to +0.44 |")
    assert lines[2] == "| CIFAR-100 | **all** | 6 | +0.00 | -0.17 to +0.17 | yes |"
    assert len(lines) == 3
    wide = [
        run(method, seed, 0.2 + 0.01 * seed + (0.02 if seed else -0.03), "bf16")
        for method in gains
        for seed in (0, 1, 2)
    ]
    assert equivalence(wide, full).splitlines()[-1].endswith("| not shown |")
    assert equivalence([], full) == "Not run yet."
