"""The README's table of ER-FSL+ and its baselines against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from headline import headline
from helpers import result_of
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig


def runs(method: str, finals: list[tuple[float, float]], **settings: float) -> list[Result]:
    config = RunConfig(method, "cifar10", tasks=2, net="slim-resnet18", anytime=20, settings=settings)
    return [result_of(replace(config, seed=seed), *both) for seed, both in enumerate(finals)]


def test_baselines_stand_by_both_sides_over_the_seeds_of_er_fsl_plus() -> None:
    baseline = runs("er-fsl", [(0.3, 0.5), (0.5, 0.6), (0.9, 0.9)], average=0.9)  # the third seed is not ER-FSL+'s
    reference = runs("iid++", [(0.6, 0.7), (0.8, 0.9)], average=0.9)
    assert headline([*baseline, *reference]) == "Not run yet."
    own = [replace(one, accuracy_matrix_last=[]) for one in runs("er-fsl+", [(0, 0.5), (0, 0.6)])]
    assert headline([*baseline, *own, *reference]).splitlines()[2:] == [
        "| ER-FSL+ | - | 50.0, 60.0 | 1 | 2 |",
        "| ER-FSL | 30.0, 50.0 | 50.0, 60.0 | 1 | 2 |",
        "| IID++ | 60.0, 80.0 | 70.0, 90.0 | 1 | 2 |",
    ]
