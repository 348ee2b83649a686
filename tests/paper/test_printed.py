"""The printed numbers, against what the paper's text says about its own table."""

from __future__ import annotations

from collections.abc import Iterable

from onepass.paper.printed import printed

TABLE = printed()["table1"]["rows"]
LARGE = [500, 1000, 2000, 5000]
MEMORIES = {"cifar10": [100, 200, 500, 1000], "cifar100": LARGE, "mini-imagenet": LARGE}


def cell(method: str, stream: str, memory: int) -> float:
    row = TABLE[method][stream]
    mean: float = row.get(str(memory), row.get("any"))[0]
    return mean


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


# Sums over the paper's own text, in tenths: of a row's means and of its intervals, taken by a script from its LaTeX.
ROWS = {
    "iid": (869, 43),
    "iid++": (1143, 69),
    "finetune": (264, 23),
    "er": (2705, 259),
    "gss": (2672, 208),
    "mir": (2889, 257),
    "er-wa": (2859, 271),
    "derpp": (2856, 262),
    "gmed": (3001, 303),
    "aser": (2680, 223),
    "ss-il": (3467, 204),
    "scr": (3066, 137),
    "er-dvc": (2723, 294),
    "er-ace": (3305, 205),
    "ocm": (3566, 176),
    "obc": (3362, 191),
    "pcr": (3872, 235),
    "er-lode": (3501, 178),
    "er-cba": (3120, 184),
    "er-fsl": (4199, 144),
}
COLUMNS = [6456, 7343, 7918, 8394, 2747, 3246, 3534, 3734, 2150, 2463, 2839, 3019]  # of the rows with a memory


def tenths(values: Iterable[float]) -> int:
    return round(10 * sum(values))


def test_rows_and_columns_of_table_1_sum_to_those_of_the_papers_text() -> None:
    pairs = {name: [pair for cells in row.values() for pair in cells.values()] for name, row in TABLE.items()}
    assert {name: tuple(map(tenths, zip(*row, strict=True))) for name, row in pairs.items()} == ROWS
    with_memory = [row for row in pairs.values() if len(row) == 12]
    assert [tenths(row[place][0] for row in with_memory) for place in range(12)] == COLUMNS


def test_the_small_tables_are_those_of_the_papers_text() -> None:
    table2 = {method: [*streams.values()] for method, streams in printed()["table2"]["rows"].items()}
    assert table2 == {
        "er-cba": [{"200": [44.31, 27.55], "500": [49.63, 19.99]}, {"2000": [26.90, 9.41], "5000": [29.09, 8.05]}],
        "er-fsl": [{"200": [51.41, 15.51], "500": [58.43, 12.98]}, {"2000": [28.58, 9.7], "5000": [30.14, 8.25]}],
    }
    assert [*zip(*printed()["table3"]["columns"].values(), strict=True)] == [
        (26.6, 17.5, 12.6, 7.2, 24.7, 17.8, 24.7),
        (33.8, 10.5, 38.2, 71.6, 28.4, 18.6, 29.5),
        (25.7, 18.2, 9.7, 0.0, 24.2, 17.8, 24.2),
    ]
    sizes = printed()["table4"]["columns"]
    assert [*sizes] == ["10", "20", "30", "40", "50", "51", "100", "200", "300", "400"]
    assert [*sizes.values()] == [25.3, 26.1, 26.9, 27.0, 26.9, 26.6, 27.6, 27.0, 25.9, 24.8]
    costs = printed()["table5"]
    assert costs["computation"] == {"er": 1, "er-ace": 1, "obc": 1.5, "ocm": 16, "pcr": 1, "er-fsl": 1}
    assert costs["memory"] == {"er": 1, "er-ace": 1, "obc": "> 1", "ocm": 2, "pcr": 1, "er-fsl": 1}


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
