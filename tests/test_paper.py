"""The printed numbers, against what the paper's text says about its own table."""

from __future__ import annotations

from onepass.paper import printed

TABLE = printed()["table1"]["rows"]
LARGE = [500, 1000, 2000, 5000]
MEMORIES = {"cifar10": [100, 200, 500, 1000], "cifar100": LARGE, "mini-imagenet": LARGE}


def cell(method: str, stream: str, memory: int) -> float:
    row = TABLE[method][stream]
    return row.get(str(memory), row.get("any"))[0]


def test_table_1_has_twenty_rows_and_twelve_columns() -> None:
    assert len(TABLE) == 20
    for row in TABLE.values():
        for stream, memories in MEMORIES.items():
            assert [*row[stream]] in (["any"], [str(memory) for memory in memories])


def test_gaps_to_pcr_are_those_that_the_text_states() -> None:
    gaps = [cell("er-fsl", "cifar100", memory) - cell("pcr", "cifar100", memory) for memory in MEMORIES["cifar100"]]
    assert [round(gap, 1) for gap in gaps] == [1.6, 0.9, 1.6, 2.2]


def test_er_fsl_is_best_in_nine_of_twelve_columns_though_the_text_says_ten() -> None:
    others = [name for name in TABLE if name not in ("er-fsl", "iid", "iid++", "finetune")]
    best = [
        (stream, memory)
        for stream, memories in MEMORIES.items()
        for memory in memories
        if cell("er-fsl", stream, memory) > max(cell(name, stream, memory) for name in others)
    ]
    assert len(best) == 9
    assert ("cifar10", 100) not in best


def test_single_cells_by_hand() -> None:
    assert TABLE["er"]["cifar10"]["1000"] == [43.2, 5.6]
    assert TABLE["ocm"]["cifar10"]["100"] == [48.5, 2.2]
    assert TABLE["iid++"]["mini-imagenet"]["any"] == [21.2, 1.8]
    assert TABLE["er-wa"]["mini-imagenet"]["500"] == [11.2, 1.6]
