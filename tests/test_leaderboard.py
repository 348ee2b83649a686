"""The leaderboard's tables against figures worked out by hand."""

from __future__ import annotations

from leaderboard import leaderboard
from test_whole_streams import runs


def test_rows_stand_by_last_weights_and_both_ways_of_one_training_share_a_row() -> None:
    memory = {"memory": 1000}
    found = [
        *runs("er", "cifar10", [0.20], settings=memory),
        *runs("er", "cifar10", [0.60, 0.70], last=0.20, settings={**memory, "average": 0.98}),
        *runs("pcr", "cifar10", [0.49, 0.50, 0.51], settings=memory),
        *runs("iid", "cifar10", [0.55]),
        *runs("patch-lda", "cifar10", [0.60], settings={"filters": 1000}),
        *runs("pcr", "cifar10", [0.99], settings=memory, validate=True),
    ]
    rows = [line[2:-2].split(" | ") for line in leaderboard(found).splitlines()[2:]]
    assert [row[:4] for row in rows] == [
        ["-", "Patch-LDA, filters 1000", "60.0", "-"],
        ["-", "IID", "55.0", "-"],
        ["1", "PCR", "50.0 ± 2.5", "-"],
        ["2", "ER", "20.0, 20.0", "60.0, 70.0"],
    ]
    assert [row[7] for row in rows] == ["1", "1", "3", "2"]
    assert [row[5:7] for row in (rows[3], rows[0])] == [["1", "1"], ["-", "-"]]  # costs are those of the defaults
    assert rows[3][8] == "`onepass run er --stream cifar10 --net resnet18 --memory 1000`"
