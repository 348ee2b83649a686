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


def test_all_classes_of_the_ablation_are_the_mean_of_nine_old_tasks_and_a_new_one() -> None:
    for everything, new, old in printed()["table3"]["columns"].values():
        assert abs((9 * old + new) / 10 - everything) < 0.1


def test_the_best_subspace_size_is_100_as_the_text_says() -> None:
    sizes = printed()["table4"]["columns"]
    assert max(sizes, key=sizes.get) == "100"
    assert sizes["51"] == printed()["table3"]["columns"]["1"][0] == TABLE["er-fsl"]["cifar100"]["1000"][0]


def test_er_fsl_is_above_cba_in_cbas_setting_and_forgets_less_on_cifar10_alone() -> None:
    rows = printed()["table2"]["rows"]
    for stream, columns in rows["er-fsl"].items():
        for memory, (accuracy, forgetting) in columns.items():
            assert accuracy > rows["er-cba"][stream][memory][0]
            assert (forgetting < rows["er-cba"][stream][memory][1]) == (stream == "cifar10")


def test_the_analysis_captions_rise_from_fine_tuning_to_er_to_the_subspace() -> None:
    assert printed()["figure2"]["accuracy"] == {"b": 38.9, "c": 54.2, "d": 62.4}
    assert (printed()["figure2"]["er_mean_new"], printed()["figure2"]["er_mean_old"]) == (0.0013, -0.0016)
