"""The tables of the study on never forgetting, against figures worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from helpers import result_of
from never_forget import as_it_is, changes, experts, few, sizes
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig


def runs(method: str, stream: str, finals: list[float], **asked: Any) -> list[Result]:
    config = RunConfig(method, stream, **asked)
    return [result_of(replace(config, seed=seed), final, final) for seed, final in enumerate(finals)]


def patches(stream: str, finals: list[float], **settings: Any) -> list[Result]:
    return runs("patch-lda", stream, finals, settings={"filters": 200, **settings})


def test_a_change_is_what_it_gains_on_the_same_seeds() -> None:
    found = [
        *patches("cifar10", [0.60, 0.62, 0.64], root=False),
        *patches("cifar10", [0.70, 0.71, 0.75]),
        *patches("cifar100", [0.40, 0.42, 0.44]),
        *patches("cifar100", [0.41], root=False),
        *patches("cifar10", [0.5, 0.6], reach=0.0),
        *patches("cifar10", [0.6], reach=0.0, pool=3),
    ]
    lines = changes(found).splitlines()
    assert lines[2] == "| as it is | 72.0 ± 6.6 (3) | 42.0 ± 5.0 (3) |"
    assert lines[3] == "| `--root false` | **-10.0 ± 2.5 (3)** | +1.0 (1) |"
    assert lines[4] == "| `--reach 0.0` | 50.0, 60.0 (2) | not run |"
    assert lines[5] == "| `--pool 3` with it | +10.0 (1) | not run |"
    assert len(lines) == 8


def test_sizes_stand_in_order_beside_their_cost(tmp_path: Path) -> None:
    known = {f"patch-lda {n}": {"flops": n / 1000, "time": n / 500, "bytes": n * 10**6} for n in (200, 1000)}
    known["patch-lda 200 --pairs 9"] = {"flops": 0.3, "time": 0.5, "bytes": 5e8}
    (tmp_path / "costs.json").write_text(json.dumps(known))
    found = [*patches("cifar10", [0.8], filters=1000), *patches("cifar10", [0.70, 0.71]), *patches("cifar100", [0.4])]
    found += patches("cifar10", [0.75], pairs=9)
    assert sizes(found, tmp_path / "costs.json").splitlines()[2:] == [
        "| 200 | 0.20 | 0.40 | 200 | 70.0, 71.0 (2) | 40.0 (1) |",
        "| 200, `--pairs 9` | 0.30 | 0.50 | 500 | 75.0 (1) | not run |",
        "| 1000 | 1.00 | 2.00 | 1,000 | 80.0 (1) | not run |",
    ]


def test_the_goal_is_measured_by_patch_lda_as_it_is_of_any_size_and_a_time_that_was_not_taken_is_called_so(
    tmp_path: Path,
) -> None:
    (tmp_path / "costs.json").write_text(json.dumps({"patch-lda 1500": {"flops": 0.6, "bytes": 5 * 10**8}}))
    found = [*patches("cifar100", [0.6], filters=1500), *patches("cifar100", [0.9], reach=0.0)]
    kept = as_it_is([*found, *runs("slda", "cifar100", [0.9])])
    assert sizes(kept, tmp_path / "costs.json").splitlines()[2:] == [
        "| 1500 | 0.60 | not measured | 500 | not run | 60.0 (1) |",
    ]


def test_what_a_network_gains_is_paired_with_patch_lda_alone(tmp_path: Path) -> None:
    (tmp_path / "costs.json").write_text(json.dumps({f"patch-lda {n}": {"flops": n / 3000} for n in (400, 1000)}))
    settings = {"memory": 1000, "expert": True}
    found = [*patches("cifar10", [0.70, 0.71, 0.75], filters=400), *patches("cifar10", [0.8], filters=1000)]
    found += [*patches("cifar100", [0.4], filters=400), *runs("er", "cifar10", [0.60, 0.62, 0.64], settings=settings)]
    assert experts(found, tmp_path / "costs.json").splitlines()[2:5] == [
        "| Patch-LDA, 1,000 filters | 0.33 | 80.0 (1) | not run | +10.0 (1) | not run |",
        "| Patch-LDA, 400 filters | 0.13 | 72.0 ± 6.6 (3) | 40.0 (1) | - | - |",
        "| Patch-LDA, 400 filters, and ER | 1.13 | 62.0 ± 5.0 (3) | not run | **-10.0 ± 2.5 (3)** | not run |",
    ]


def test_few_samples_are_counted_a_class() -> None:
    def learned(n: int, one: Result) -> Result:
        tasks = [["a", "b"], ["c", "d"]]
        return replace(one, data={**one.data, "learned": n}, protocol={**one.protocol, "tasks": tasks})

    found = [learned(40, one) for one in runs("er", "cifar10", [0.3, 0.2], fraction=0.002, settings={"memory": 1000})]
    found += [learned(400, one) for one in runs("er", "cifar10", [0.5], fraction=0.02, settings={"memory": 1000})]
    found += [learned(40, one) for one in runs("slda", "cifar10", [0.4], fraction=0.002)]
    assert few(found).splitlines() == [
        "| method | 10 a class % (seeds) | 100 a class % (seeds) |",
        "|---|---:|---:|",
        "| SLDA | 40.0 (1) | not run |",
        "| ER | 30.0, 20.0 (2) | 50.0 (1) |",
    ]
    others = [*runs("er", "cifar10", [0.6], settings={"memory": 1000}), *runs("gss", "cifar10", [0.9])]
    others += runs("er", "cifar10", [0.9], settings={"memory": 5})
    assert few(found, [learned(4000, one) for one in others]).splitlines()[-1].endswith("| 50.0 (1) | 60.0 (1) |")


def test_what_was_not_run_is_called_so(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.json"
    assert changes([]) == few([]) == sizes([], nothing) == experts([], nothing) == "Not run yet."
