"""The table of methods on one stream, its conditions and its command, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from helpers import result_of
from measured import measured
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig


def runs(method: str, finals: list[float], stream: str = "digits", **asked: object) -> list[Result]:
    config = RunConfig(method, stream, tasks=2, **asked)  # type: ignore[arg-type]
    found = [result_of(replace(config, seed=seed), final, final) for seed, final in enumerate(finals)]
    return [replace(one, data={"sha256": "none that is known"}, anytime=[], accuracy_matrix_last=[]) for one in found]


def test_rows_stand_by_rank_below_their_conditions_and_the_command_that_makes_them() -> None:
    found = [
        *runs("er", [0.4, 0.5], settings={"memory": 100}),
        *runs("slda", [0.8, 0.9]),
        *runs("er-fsl", [0.6, 0.6], settings={"memory": 100}),
    ]
    lines = measured(found).splitlines()
    assert lines[0] == "digits, 2 tasks, `small-cnn`, memory 100, n = 2 seeds, mean ± 95 % interval, test samples:"
    asked = "--stream digits --net small-cnn --tasks 2 --memory 100 --runs 2"
    assert lines[1] == f"`onepass compare er slda er-fsl {asked}`"
    assert [line.split(" | ")[:2] for line in lines[5:8]] == [
        ["| SLDA", "80.0, 90.0"],
        ["| ER-FSL †", "60.0, 60.0"],
        ["| ER †", "40.0, 50.0"],
    ]
    assert "†: ends below SLDA, which trains no network and replays nothing" in lines


def test_a_file_of_ones_own_is_named_without_its_place_and_a_share_is_told() -> None:
    found = runs("ncm", [0.5], "/somewhere/else/table.csv", fraction=0.2) + runs(
        "er", [0.5, 0.6], "/somewhere/else/table.csv", fraction=0.2, settings={"memory": 50}
    )
    conditions, command, *_ = measured(found).splitlines()
    assert conditions.startswith("table.csv, 20% of the stream, 2 tasks, `mlp`, memory 50, n = 1 to 2 seeds, ")
    asked = "--stream table.csv --net mlp --tasks 2 --fraction 0.2 --memory 50 --runs 2"
    assert command == f"`onepass compare ncm er {asked}`"


def test_where_one_row_predicts_by_an_average_both_accuracies_stand_there_and_the_best_comes_first() -> None:
    lines = measured([*runs("er", [0.4, 0.5]), *runs("er-fsl+", [0.6, 0.7]), *runs("slda", [0.55, 0.55])]).splitlines()
    assert [cell.strip() for cell in lines[3].split("|")[1:4]] == ["method", "by last weights %", "by average %"]
    assert [[cell.strip() for cell in line.split("|")[1:4]] for line in lines[5:8]] == [
        ["ER-FSL+", "n/a", "60.0, 70.0"],
        ["SLDA", "55.0, 55.0", "n/a"],
        ["ER †", "40.0, 50.0", "n/a"],
    ]
    assert not [line for line in lines if line.startswith("MB held")]  # a column that is not shown


def test_nothing_stored_says_so() -> None:
    assert measured([]) == "Not run yet."
