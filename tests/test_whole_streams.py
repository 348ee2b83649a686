"""The README's table of whole streams, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from helpers import result_of
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from whole_streams import short, whole_streams


def runs(method: str, stream: str, finals: list[float], last: float | None = None, **asked: Any) -> list[Result]:
    config = RunConfig(method, stream, **asked)
    found = [result_of(replace(config, seed=seed), last or final, final) for seed, final in enumerate(finals)]
    return [one if last else replace(one, accuracy_matrix_last=[]) for one in found]


def test_rows_stand_by_the_stream_of_more_classes_with_what_was_printed_for_the_same_data() -> None:
    memory = {"memory": 1000}
    found = [
        *runs("er", "cifar10", [0.50, 0.40], settings=memory),
        *runs("er", "cifar100", [0.20], last=0.15, settings={**memory, "average": 0.98}),
        *runs("patch-lda", "cifar10", [0.75, 0.76, 0.77]),
        *runs("patch-lda", "cifar100", [0.51, 0.52, 0.53]),
        *runs("patch-lda", "cifar100", [0.55], settings={"filters": 1000}),
        *runs("patch-lda", "cifar100", [0.99], fraction=0.2),
        *runs("patch-lda", "cifar100", [0.99], validate=True),
        *runs("iid++", "cifar10", [0.72]),
    ]
    lines = whole_streams(found).splitlines()[2:]
    assert lines == [
        "| Patch-LDA, filters 1000 | not run | - | - | - | 55.0 | - | 1 | - |",
        "| Patch-LDA | 76.0 ± 2.5 | - | 3 | - | 52.0 ± 2.5 | - | 3 | - |",
        "| ER | 50.0, 40.0 | - | 2 | 43.2 ± 5.6 | 15.0 | 20.0 | 1 | 15.7 ± 1.1 |",
        "| IID++ | 72.0 | - | 1 | 66.1 ± 2.6 | not run | - | - | - |",
    ]


def test_the_short_table_has_both_sides_and_some_methods() -> None:
    found = [
        *runs("er", "cifar100", [0.20], last=0.15, settings={"memory": 1000, "average": 0.98}),
        *runs("er", "cifar10", [0.50, 0.40], settings={"memory": 1000}),
        *runs("er-fsl+", "cifar100", [0.16], settings={"memory": 1000}),
        *runs("scr", "cifar100", [0.30], settings={"memory": 1000}),
        *runs("patch-lda", "cifar100", [0.51, 0.52, 0.53]),
        *runs("patch-lda", "cifar100", [0.55], settings={"filters": 1000}),
        *runs("patch-lda", "cifar100", [0.56], settings={"filters": 200, "pairs": 64}),
        *runs("patch-lda", "cifar10", [0.84], settings={"filters": 300, "pairs": 96}),
    ]
    assert short(found).splitlines() == [
        "| method | CIFAR-10 | average | n | CIFAR-100 | average | n |",
        "|---|---:|---:|---:|---:|---:|---:|",
        "| Patch-LDA, filters 200, pairs 64 | not run | - | - | 56.0 | - | 1 |",
        "| Patch-LDA | not run | - | - | 52.0 ± 2.5 | - | 3 |",
        "| ER-FSL+ | not run | - | - | - | 16.0 | 1 |",
        "| ER | 50.0, 40.0 | - | 2 | 15.0 | 20.0 | 1 |",
    ]
