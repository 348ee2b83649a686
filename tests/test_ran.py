"""The table of what was run on whole streams, against runs written by hand."""

from __future__ import annotations

from dataclasses import replace

from helpers import result_of
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from ran import ran

HOST = {"machine": "x86_64", "device": "cpu", "torch": "2.13.0+cpu"}


def run(method: str, stream: str, seed: int, seconds: float) -> Result:
    return replace(result_of(RunConfig(method, stream, seed=seed), 0.5, 0.5), seconds=seconds, host=HOST)


def test_seeds_of_both_streams_and_hours_stand_beside_each_row_and_what_was_not_run_is_called_so() -> None:
    found = [run("er-fsl", "cifar100", 1, 1800), run("er-fsl", "cifar100", 0, 3600), run("er", "cifar10", 0, 900)]
    assert ran(found).splitlines() == [
        "| row | CIFAR-10: seeds | CIFAR-100: seeds | hours |",
        "|---|---:|---:|---:|",
        "| ER | 0 | not run | 0.2 |",
        "| ER-FSL | not run | 0, 1 | 1.5 |",
        "",
        "3 runs, 2 hours of steps, one core each, beside other work; x86_64, cpu, torch 2.13.0+cpu.",
    ]
    assert ran([]) == "Not run yet."
