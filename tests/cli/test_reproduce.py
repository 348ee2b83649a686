"""The paper's tables and figures as lists of runs, and what is made of their results."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch

from helpers import labelled, make, pixel_net, state_of
from onepass.bench import store
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.bench.runner import run
from onepass.cli.main import main
from onepass.cli.reproduce import NAMES
from onepass.data.catalog import Datasets, load
from onepass.errors import RunError, UsageError
from onepass.learner.batch import Task
from onepass.methods.registry import METHODS
from onepass.paper import estimate, figures
from onepass.paper.analysis import Analysis
from onepass.paper.budget import counted_over_er
from onepass.paper.experiments import EXPERIMENTS, experiment
from onepass.paper.scales import Selection
from onepass.paper.tables import table, verdicts
from onepass.report.plots import save


def by_tag(name: str, cut: Selection | None = None) -> dict[str, RunConfig]:
    cells = experiment(name, cut or Selection()).cells
    return {tag: cell.runs[0] for cell in cells for tag in cell.tags}


def result(config: RunConfig, matrix: list[list[float]]) -> Result:
    return Result(
        config=config,
        accuracy_matrix=matrix,
        steps=10,
        seconds=1.0,
        fingerprint="bits",
        data={},
        host={},
        protocol={"features": 100},
    )


def test_table_1_is_twenty_rows_by_twelve_columns_of_ten_runs_on_the_papers_protocol() -> None:
    whole = experiment("table1", Selection())
    assert len(whole.cells) == 240
    assert {len(cell.runs) for cell in whole.cells} == {10}
    assert {run.net for run in whole.runs} == {"resnet18"}
    assert {run.fraction for run in whole.runs} == {1.0}
    assert all(cell.printed["final accuracy"] for cell in whole.cells)
    # finetune, iid and iid++ have no memory: the same runs stand in all four columns of a data set
    assert len(whole.runs) == 10 * (17 * 12 + 3 * 3)
    assert [run.seed for run in whole.runs[:213]] == [0] * 213, "the first seeds of all cells come first"


def test_cuts_leave_what_was_asked_for() -> None:
    cut = Selection("small", only=("cifar10",), methods=("er", "er_fsl"), memory=(1000,), runs=2)
    found = experiment("table1", cut)
    assert [(cell.row, cell.column) for cell in found.cells] == [("ER", "cifar10, 1000"), ("ER-FSL", "cifar10, 1000")]
    assert {(run.net, run.fraction) for run in found.runs} == {("slim-resnet18", 0.2)}
    assert [run.seed for run in found.runs] == [0, 0, 1, 1]


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_another_stream_stands_for_all_data_sets_and_is_named(name: str) -> None:
    found = experiment(name, Selection("small", stream="cifar10"))
    assert {run.stream for run in found.runs} == {"cifar10"}
    assert ("cifar10 in place of cifar100" in found.note) == (name in ("table3", "table4", "figure4", "figure6"))


def test_budgets_are_updates_that_cost_so_many_times_ers_work_and_none_below_one() -> None:
    found = experiment("budget", Selection("tiny", methods=("er", "er-fsl+", "ocm", "slda"), runs=1))
    assert found.note == "digits, small-cnn, 20 % of the stream, memory 100"
    updates = {(cell.row, cell.column): getattr(cell.runs[0].learner_config, "updates", None) for cell in found.cells}
    assert {column: count for (row, column), count in updates.items() if row == "ER"} == {
        "1": 1, "2": 2, "4": 4, "8": 8, "16": 16
    }  # fmt: skip
    assert METHODS["ocm"].cost > 16
    assert [column for row, column in updates if row == "OCM"] == ["16"], "18 times ER's: the nearest is one update"
    assert updates["SLDA", "own"] is None, "it trains no network"
    run = next(cell.runs[0] for cell in found.cells if (cell.row, cell.column) == ("ER", "4"))
    told = replace(result(run, [[0.5]]), data={"shape": [1, 8, 8]}, protocol={"tasks": [["a", "b"], ["c", "d"]]})
    assert counted_over_er(told) == pytest.approx(4)


def test_misuse_says_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"unknown part 'cifar12'; did you mean 'cifar10'"):
        experiment("table1", Selection(only=("cifar12",)))
    with pytest.raises(UsageError, match="unknown scale 'huge'"):
        Selection("huge")
    for cut in (Selection(methods=("er",)), Selection(memory=(500,))):
        with pytest.raises(UsageError, match="does not cut table4"):
            experiment("table4", cut)
    with pytest.raises(UsageError, match=r"^--methods er: table2 has er-cba, er-fsl$"):
        experiment("table2", Selection(methods=("er-fsl", "er")))
    with pytest.raises(UsageError, match=r"^--methods er-fsl\+: figure5 has .*er-fsl$"):
        experiment("figure5", Selection(methods=("er", "er-fsl+")))
    with pytest.raises(UsageError, match=r"^--memory 300: table1 has 100, 200, 500, 1000$"):
        experiment("table1", Selection(stream="cifar10", memory=(1000, 300)))


def test_ablations_change_what_their_columns_say() -> None:
    runs = by_tag("table3")
    changed = {
        index: {
            name: value
            for name, value in runs[index].learner_config.to_json().items()
            if value != runs["1"].learner_config.to_json()[name]
        }
        for index in "234567"
    }
    assert changed == {
        "2": {"new_weight": 0.0},
        "3": {"replay_weight": 0.0},
        "4": {"test_in": "task"},
        "5": {"learn_in": "first"},
        "6": {"learn_in": "used", "replay_in": "task"},
        "7": {"new_weight": 1.0, "replay_weight": 1.0},
    }


def test_column_4_is_column_1_tested_elsewhere() -> None:
    runs = by_tag("table3", Selection("tiny"))
    one, four = (run(runs[index]) for index in "14")
    assert one.fingerprint == four.fingerprint
    assert one.accuracy_matrix != four.accuracy_matrix


def test_sizes_of_table_4_at_the_papers_scale_are_the_papers() -> None:
    runs = by_tag("table4")
    sizes = {size: runs[size].learner_config.to_json()["subspace"] for size in ("10", "20", "50", "100", "400")}
    assert sizes == {"10": 10, "20": 20, "50": 50, "100": 100, "400": 400}
    assert runs["51"] == by_tag("table3")["1"], "51 is the default, 512 features by ten tasks: no run of its own"
    assert runs["first reuse"] == runs["100"]


def test_sizes_of_table_4_keep_their_ratio_to_a_tasks_share_of_another_network() -> None:
    cells = experiment("table4", Selection("small", stream="cifar10")).cells
    columns = [cell.column for cell in cells]
    assert columns == [
        *(f"k={size}, no reuse" for size in (6, 12, 19, 25, 31, 32)),  # the paper's times 32 / 51.2
        *(f"k={size}, reuse" for size in (62, 125, 160)),  # its 300 and 400 would be more than all 160 features
    ]
    assert cells[-1].tags == ("k=160", "300", "400")
    assert [cell.clipped for cell in cells] == [False] * 8 + [True]
    assert cells[6].tags == ("k=62", "100", "first reuse"), "as in the paper, the first that must reuse is twice d / T"


def test_where_50_and_51_are_one_size_the_printed_figure_is_that_of_51() -> None:
    sizes = {tag: cell for cell in experiment("table4", Selection("small")).cells for tag in cell.tags}
    assert sizes["51"] is sizes["50"]
    assert sizes["51"].printed["final accuracy"][0] == 26.6


def test_gamma_sweeps_from_a_tenth_to_nine_and_meets_the_ablation_at_three() -> None:
    runs = by_tag("figure6")
    assert [run.learner_config.to_json()["gamma"] for run in runs.values()] == [step / 10 for step in range(1, 10)]
    assert runs["0.3"] == by_tag("table3")["1"]


def test_figure_2_splits_ten_classes_in_two() -> None:
    assert {run.tasks for run in experiment("figure2", Selection()).runs} == {2}


def two_tasks(learner: Analysis) -> None:
    learner.begin_task(Task(0, (0, 1)))
    for step in range(4):
        learner.observe(labelled([0, 1, 0, 1], seed=step))
    learner.begin_task(Task(1, (2, 3)))


@pytest.mark.parametrize(("rule", "scale"), [("finetune", 1.0), ("er", 1.0), ("er", 0.25)])
def test_all_rules_since_the_second_task_begin_it_with_the_same_bits(rule: str, scale: float) -> None:
    learners = [
        make(Analysis, pixel_net(4), n_tasks=2, memory=8, rule=rule, scale=scale, since=1),
        make(Analysis, pixel_net(4), n_tasks=2, memory=8, since=1),
    ]
    for learner in learners:
        two_tasks(learner)
    one, two = (state_of({k: v for k, v in a.state_dict().items() if k.startswith("net")}) for a in learners)
    assert one == two


def test_new_samples_move_only_their_share_of_the_prototypes_where_nothing_is_replayed() -> None:
    learner = make(Analysis, pixel_net(4), n_tasks=2, memory=8, rule="finetune", scale=0.25)
    before = learner.net.head.weight.detach().clone()
    two_tasks(learner)
    learner.observe(labelled([2, 3]))
    moved = (learner.net.head.weight.detach() != before).any(dim=0)
    assert moved[:4].all()
    assert not moved[4:].any()


def test_products_are_those_of_a_double_loop_over_stored_samples_of_the_first_task() -> None:
    learner = make(Analysis, pixel_net(4), n_tasks=2, memory=8, rule="er", scale=0.5, since=1)
    two_tasks(learner)
    for step in range(3):
        learner.observe(labelled([2, 3, 2], seed=50 + step))
    found, weight = learner.facts(), learner.net.head.weight
    stored = learner.memory.read(torch.arange(8))
    old = [x.flatten().float() / 255 for x, y in zip(stored.x, stored.y, strict=True) if y < 2]
    assert 0 < len(old) < 8
    for name, classes in (("old", (0, 1)), ("new", (2, 3))):
        for i in range(16):
            value = sum(weight[c, i].item() * z[i].item() for z in old for c in classes) / (len(old) * len(classes))
            assert found[name][i] == pytest.approx(value, rel=1e-4)


def test_figures_stand_beside_printed_ones_and_what_was_not_run_says_so() -> None:
    whole = experiment("table1", Selection(only=("cifar10",), methods=("er", "er-fsl"), memory=(100, 1000), runs=2))
    er = [cell for cell in whole.cells if cell.row == "ER"]
    found = {run: result(run, [[0.5]]) for cell in er[:1] for run in cell.runs}
    shown = table(whole, found)
    assert shown.heads == ["", "cifar10, 100", "cifar10, 1000"]
    assert [[cell.text for cell in row] for row in shown.rows] == [
        ["ER", "50.0, 50.0 (35.5 ± 2.0)", "not run (43.2 ± 5.6)"],
        ["ER-FSL", "not run (46.9 ± 2.7)", "not run (61.5 ± 2.1)"],
    ]
    assert shown.rows[0][1].numbers == {"mean": 50, "±": None, "n": 2, "printed": 35.5, "printed ±": 2.0}


def test_a_stream_of_the_papers_stands_for_itself() -> None:
    found = experiment("table1", Selection("small", stream="cifar100", methods=("er",)))
    assert [cell.column for cell in found.cells] == [f"cifar100, {memory}" for memory in (500, 1000, 2000, 5000)]
    assert found.cells[1].printed["final accuracy"][0] == 15.7
    assert found.note == "cifar100, slim-resnet18, 20 % of the stream"
    assert table(found, {}).title == "Table 1: final accuracy, %; cifar100, slim-resnet18, 20 % of the stream"


def test_the_papers_figures_stand_beside_ours_only_for_its_data_set_and_memory() -> None:
    for name in ("table1", "table3", "figure6"):
        for selection in (Selection("small", stream="digits"), Selection("tiny")):
            other = experiment(name, selection)
            assert not any(cell.printed for cell in other.cells)
            assert "printed" not in " ".join(table(other, {}).notes)
    elsewhere = verdicts(experiment("figure2", Selection("small", stream="digits", runs=2)), {})
    assert elsewhere is not None
    assert {row[4].text for row in elsewhere.rows} == {"-"}


def test_the_tiny_scale_judges_nothing() -> None:
    assert verdicts(experiment("table3", Selection("tiny")), {}) is None
    assert verdicts(experiment("table3", Selection("small")), {}) is not None


def test_bytes_stand_beside_the_rows_of_methods() -> None:
    whole = experiment("table1", Selection("small", only=("cifar10",), methods=("er", "finetune"), runs=1))
    facts = {"tasks": [["a"], ["b"]]}
    found = {run: replace(result(run, [[0.5]]), data={"shape": [3, 32, 32]}, protocol=facts) for run in whole.runs}
    shown = table(whole, found)
    assert shown.heads[-1] == "MB held"
    alone, er = (row[-1].text for row in shown.rows)
    low, high = er.split(" to ")
    assert float(low) == pytest.approx(float(alone) + 100 * 3080 / 1e6, abs=0.1)  # memories of 100 and of 1,000
    assert float(high) == pytest.approx(float(alone) + 1000 * 3080 / 1e6, abs=0.1)


def test_runs_on_other_data_or_of_another_protocol_do_not_stand_in_one_table() -> None:
    whole = experiment("table1", Selection(only=("cifar10, 1000",), methods=("er", "er-fsl"), runs=2))
    runs = {run: replace(result(run, [[0.5]]), data={"sha256": "a" * 64}) for run in whole.runs}
    table(whole, runs)
    other = whole.cells[1].runs[0]
    with pytest.raises(UsageError, match=r"sha256 of the data, cifar10 is aaaaaaaaaaaa \(er, er-fsl\) and bbbb"):
        table(whole, {**runs, other: replace(runs[other], data={"sha256": "b" * 64})})
    with pytest.raises(UsageError, match=r"for ER-FSL, cifar10, 1000, features is 7 \(seed 0\) and 100 \(seed 1\)"):
        table(whole, {**runs, other: replace(runs[other], protocol={"features": 7})})


def test_readings_of_table_2_do_not_compete_and_less_forgetting_is_better() -> None:
    whole = experiment("table2", Selection(only=("cifar10",), memory=(200,), runs=3))
    finals = {"ER-CBA, lr 0.03": 0.3, "ER-FSL, lr 0.03": 0.5}
    found = {}
    for cell in whole.cells:
        for config in cell.runs:
            final = finals.get(cell.row, 0.9) + 0.01 * config.seed * cell.row.startswith("ER-FSL")
            found[config] = result(config, [[1.0], [final, final]])
    shown = table(whole, found)
    assert [row[0].text for row in shown.rows if row[1].bold] == [
        "ER-FSL, lr 0.03: final accuracy",
        "ER-FSL, lr 0.03: forgetting",
    ]
    assert shown.rows[0][1].text == "30.0 ± 0.0 (44.31)", "two decimals, as the paper prints here"


def test_verdicts_follow_the_paired_differences() -> None:
    whole = experiment("table3", Selection(runs=3, only=("1", "2", "3", "5")))
    levels = {"1": (0.5, 0.6, 0.7), "2": (0.3, 0.4, 0.51), "3": (0.55, 0.66, 0.74), "5": (0.5, 0.65, 0.6)}
    found = {
        config: result(config, [[1.0], [levels[cell.tags[0]][config.seed]] * 2])
        for cell in whole.cells
        for config in cell.runs
    }
    shown = verdicts(whole, found)
    assert shown is not None
    words = {row[0].text: (row[1].text, row[5].text) for row in shown.rows}
    # 20, 20, 19 points: mean 19.67, standard deviation 0.577, t(0.975, 2) = 4.303
    assert words["without L_c accuracy falls"] == ("+19.7 ± 1.43", "held")
    assert words["without L_b accuracy falls"] == ("-5 ± 2.48", "not held")
    assert words["one subspace for all tasks is worse"] == (
        "+1.67 ± 19",
        "undecided; in the mean as claimed; 3 runs detect no less than 24.9",  # 3.264 standard deviations of 0, -5, 10
    )
    assert [row[3].text for row in shown.rows][:2] == ["1.88", "3.26"]
    assert words["without gamma accuracy falls"] == ("-", "left out")
    unfinished = verdicts(
        whole, {config: one for config, one in found.items() if config.learner_config.to_json()["new_weight"] is None}
    )
    assert unfinished is not None
    assert {row[5].text for row in unfinished.rows if row[0].text == "without L_c accuracy falls"} == {"not run"}


def words_of(name: str, cut: Selection, levels: dict[str, float]) -> dict[str, str]:
    """The verdict on each claim where each cell has one accuracy in all its runs but for the seed's share."""
    whole = experiment(name, cut)
    found = {
        config: result(config, [[1.0], [0.01 * config.seed * level + level] * 2])
        for cell in whole.cells
        for tag, level in levels.items()
        if tag in cell.tags
        for config in cell.runs
    }
    shown = verdicts(whole, found)
    assert shown is not None
    return {row[0].text: row[5].text for row in shown.rows}


def test_one_run_tests_no_claim() -> None:
    words = words_of("figure6", Selection(runs=1), {"0.1": 0.5, "0.3": 0.6, "0.9": 0.7})
    assert words["a suitable gamma is better: 0.3 than 0.1"] == "as claimed in one run; no test"
    assert words["a suitable gamma is better: 0.3 than 0.9"] == "not as claimed in one run; no test"


def test_a_size_that_was_cut_down_to_all_features_says_nothing_about_the_papers() -> None:
    levels = {"51": 0.4, "100": 0.5, "200": 0.3, "400": 0.2}
    words = words_of("table4", Selection("small", stream="cifar10", runs=3), levels)
    assert words["beyond that accuracy tends to fall: four times d / T"] == "held"
    assert words["beyond that accuracy tends to fall: eight times d / T"] == "not tested at this scale"
    assert words["a larger subspace is better: d / T than a fifth of it"] == "not run"
    assert words["that fall is not significant"] == "not tested: no run can show that there is none"
    wide = words_of("table4", Selection(runs=3), levels)
    assert wide["beyond that accuracy tends to fall: eight times d / T"] == "held"


def test_panel_a_is_the_first_task_of_three_others() -> None:
    assert [cell.tags[0] for cell in experiment("figure2", Selection(only=("a",))).cells] == ["b", "c", "d"]


def test_claims_about_products_compare_their_means_over_dimensions() -> None:
    whole = experiment("figure2", Selection(runs=2, only=("b", "c")))
    products = {"b": (-0.2, 0.4), "c": (0.1, 0.3)}
    found = {}
    for cell in whole.cells:
        for config in cell.runs:
            old, new = products[cell.tags[0]]
            old, new = old + 0.01 * config.seed, new - 0.01 * config.seed
            facts = [{"old": [1.0, 3.0], "new": [0.0, 1.0 - config.seed]}, {"old": [old] * 4, "new": [new, new]}]
            found[config] = replace(result(config, [[0.5], [0.5, 0.5]]), facts=facts)
    shown = verdicts(whole, found)
    assert shown is not None
    words = {row[0].text: (row[1].text, row[4].text) for row in shown.rows}
    assert words["after task 1, its samples point to its own classes"] == ("+1.5, +2", "-")  # 2 less 0.5 and 0
    assert words["fine-tuning: old samples point to new classes more than to old ones"] == ("+0.6, +0.58", "-")
    assert words["ER improves the values for old classes"] == ("+0.3, +0.3", "-")
    assert words["ER: those for new ones are still higher"] == ("+0.2, +0.18", "+0.0029")


def test_figure_4_draws_the_dimensions_as_the_learner_took_them(tmp_path: Path) -> None:
    whole = experiment("figure4", Selection("tiny"))
    small = [replace(cell, runs=tuple(replace(run, batch=50) for run in cell.runs)) for cell in whole.cells]
    whole = replace(whole, cells=small)
    drawn = figures.draw(whole, {config: run(config) for config in whole.runs})
    pictures = [numpy.asarray(axes.images[0].get_array()) for axes in drawn.axes]
    assert pictures[0].tolist() == [[1] * 20 * task + [2] * 20 + [0] * 20 * (4 - task) for task in range(5)], (
        "each task its own twentieth, and all before it replayed"
    )
    reused = pictures[1]
    assert [(row == 2).sum() for row in reused] == [39] * 5
    assert (reused[2:] > 0).all(), "from the first reuse on, all dimensions are replayed in"
    written = [point["y"] for point in figures.points(drawn) if point["curve"] == "task 2"]
    assert written[:100] == ["replayed in"] * 20 + ["learned and replayed in"] * 20 + ["not used yet"] * 60
    save(drawn, tmp_path / "figure4.svg")
    assert (tmp_path / "figure4.svg").read_text().startswith("<?xml")


def test_figure_5_draws_the_mean_over_tasks_met_after_each_task() -> None:
    whole = experiment("figure5", Selection(stream="cifar10", methods=("er", "er-fsl"), runs=2))
    matrices = {"er": [[0.9], [0.5, 0.7]], "er-fsl": [[0.8], [0.6, 0.8]]}
    drawn = figures.draw(whole, {config: result(config, matrices[config.method]) for config in whole.runs})
    assert [(point["curve"], point["x"], point["y"]) for point in figures.points(drawn)] == [
        ("ER", 1, 90),
        ("ER", 2, 60),
        ("ER-FSL", 1, 80),
        ("ER-FSL", 2, 70),
    ]


def test_figure_6_draws_all_new_and_old_classes_by_gamma_and_the_printed_ones_at_three() -> None:
    whole = experiment("figure6", Selection(runs=1, only=("0.3", "0.9")))
    matrices = {0.3: [[0.9], [0.4, 0.6]], 0.9: [[0.9], [0.5, 0.2]]}
    gammas = {config: config.learner_config.to_json()["gamma"] for config in whole.runs}
    drawn = figures.draw(whole, {config: result(config, matrices[gamma]) for config, gamma in gammas.items()})
    found: dict[str, list[tuple[float, float]]] = {}
    for point in figures.points(drawn):
        found.setdefault(point["curve"], []).append((point["x"], point["y"]))
    assert found == {
        "all classes": [(0.3, 50), (0.9, 35)],
        "new classes": [(0.3, 60), (0.9, 20)],
        "old classes": [(0.3, 40), (0.9, 50)],
        "printed": [(0.3, 26.6), (0.3, 33.8), (0.3, 25.7)],
    }


def test_figure_2_draws_each_panel_from_its_own_runs() -> None:
    whole = experiment("figure2", Selection(runs=1, only=("b", "c", "d", "e0.1", "f0.1")))
    found = {}
    for number, cell in enumerate(whole.cells):
        facts = [{"old": [1.0, 2.0], "new": [-1.0, -2.0]}, {"old": [number + 0.1], "new": [number + 0.2]}]
        matrix = [[0.9], [number / 10, 0.3]]
        found[cell.runs[0]] = replace(result(cell.runs[0], matrix), facts=facts)
    curves: dict[tuple[str, str], list[float]] = {}
    for point in figures.points(figures.draw(whole, found)):
        curves.setdefault((point["panel"][:3], point["curve"]), []).append(point["y"])
    old, new = "first task's classes", "second task's classes"
    assert curves == {
        ("(a)", old): [1, 2],
        ("(a)", new): [-1, -2],
        **{(f"({panel})", old): [number + 0.1] for number, panel in enumerate("bcd")},
        **{(f"({panel})", new): [number + 0.2] for number, panel in enumerate("bcd")},
        ("(e)", "first task"): [90],
        ("(e)", "second task"): [30],
        ("(f)", "all classes"): [35],  # 40 and 30
        ("(f)", "old classes"): [40],
    }


def test_the_plan_is_said_before_anything_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reproduce", "table3", "--scale", "tiny", "--only", "1", "2", "--runs", "1", "--out", str(tmp_path)]
    assert main([*words, "--plan"]) == 0
    said = capsys.readouterr()
    assert "2 runs, 0 stored, 2 to do; about" in said.err
    assert not said.out
    assert not list(tmp_path.rglob("result.json"))
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [cell["column"] for cell in document["cells"]] == ["1 ER-FSL", "2 no L_c"]
    assert document["cells"][0]["printed"] == {}, "digits are not the paper's"
    assert main([*words, "--plan"]) == 0
    assert "2 runs, 2 stored, 0 to do\n" in capsys.readouterr().err
    assert main(["reproduce", "table3", "--scale", "tiny", "--stored", "--out", str(tmp_path)]) == 0
    assert "not run" in capsys.readouterr().out
    assert {path.name for path in tmp_path.glob("*.csv")} == {
        "table3-tiny.csv",
        "table3-tiny-part.csv",
    }


def test_the_time_that_is_left_is_that_of_steps_and_of_evaluations() -> None:
    er, gss, shuffled = (RunConfig(name, "digits", batch=10, fraction=0.5) for name in ("er", "gss", "iid"))
    known = [replace(result(er, [[1.0]]), steps=200, seconds=100.0)]  # half a second a step
    data = load("digits")
    steps, images = len(data.y) / 20, len(data.y_test)
    image = estimate.IMAGE * 0.5
    assert estimate.seconds([er], known, Datasets()) == pytest.approx(0.5 * steps + image * images * 3)  # 1 to 5 fifths
    assert estimate.seconds([shuffled], known, Datasets()) == pytest.approx(
        METHODS["iid"].cost * 0.5 * steps + image * images
    )
    both = estimate.seconds([er, gss], known, Datasets()) - estimate.seconds([er], known, Datasets())
    assert both == pytest.approx(METHODS["gss"].cost * 0.5 * steps + image * images * 3)
    thrice = replace(er, settings={"updates": 3})
    assert estimate.seconds([thrice], known, Datasets()) == pytest.approx(3 * 0.5 * steps + image * images * 3)


def test_the_time_of_what_trains_no_network_is_that_of_steps_tried_here(capsys: pytest.CaptureFixture[str]) -> None:
    ncm = RunConfig("ncm", "digits", batch=10)
    data = load("digits")
    known = [replace(result(ncm, [[1.0]]), steps=100, seconds=1.0)]
    expected = 0.01 * len(data.y) / 10 + 0.001 * 3 * len(data.y_test)
    assert estimate.seconds([ncm], known, Datasets()) == pytest.approx(expected)
    assert 0 < estimate.seconds([ncm], [], Datasets()) < 60
    assert main(["reproduce", "budget", "--scale", "tiny", "--methods", "ncm", "--plan"]) == 0
    assert "2 runs, 0 stored, 2 to do; about" in capsys.readouterr().err


def test_what_is_stored_is_shown_without_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reproduce", "figure6", "--scale", "small", "--stream", "cifar10", "--runs", "1", "--only", "0.3"]
    words += ["--out", str(tmp_path), "--data-dir", str(tmp_path)]
    assert main([*words, "--plan"]) == 0
    assert "1 to do; how long that takes cannot be said without the data: no cifar10" in capsys.readouterr().err
    assert main(words) == 2
    [config] = experiment("figure6", Selection("small", stream="cifar10", only=("0.3",), runs=1)).runs
    store.save_result(store.folder(tmp_path, config), result(config, [[1.0], [0.5, 0.7]]))
    capsys.readouterr()
    assert main(words) == 0
    assert "60.0" in capsys.readouterr().out


def test_after_a_failed_run_the_others_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done, _ = experiment("table3", Selection("tiny", only=("1", "2"), runs=1)).runs

    def fail(*_: object) -> None:
        store.save_result(store.folder(tmp_path, done), result(done, [[1.0], [0.5, 0.7]]))
        raise RunError("1 of 2 runs failed")

    monkeypatch.setattr("onepass.cli.session.Session.execute", fail)
    words = ["reproduce", "table3", "--scale", "tiny", "--only", "1", "2", "--runs", "1", "--out", str(tmp_path)]
    assert main(words) == 1
    said = capsys.readouterr()
    assert "60.0" in said.out
    assert "not run" in said.out
    assert "1 of 2 runs failed" in said.err


@pytest.mark.system
def test_every_table_and_figure_is_made_offline_at_the_tiny_scale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cuts = {"table1": ["--memory", "1000"], "figure2": ["--only", "a", "e0.1", "e1", "f0.3", "f1"]}
    cuts |= {
        "budget": ["--methods", "er", "slda", "--only", "1", "2", "own"],
        "figure6": ["--only", "0.1", "0.3", "0.5", "0.9"],
    }
    for name in NAMES:
        words = ["reproduce", name, "--scale", "tiny", "--jobs", "1", "--out", str(tmp_path)]
        runs = [] if name in ("table5", "figure6") else ["--runs", "1"]  # figure 6 with its two runs
        assert main([*words, *runs, *cuts.get(name, [])]) == 0
        shown = capsys.readouterr().out
        if name == "table5":
            assert "FLOPs / ER" in shown
        stem = f"{name}-tiny{'-part' if name in cuts else ''}"
        rows = list(csv.reader((tmp_path / f"{stem}.csv").read_text().splitlines()))
        assert len(rows) > 1
        assert "not run" not in shown
        for suffix in ("md", "tex", *(("png", "svg", "pdf") if name in figures.FIGURES else ())):
            assert (tmp_path / f"{stem}.{suffix}").stat().st_size > 100
        if name in figures.FIGURES:
            points = (tmp_path / f"{stem}-points.csv").read_text().splitlines()[1:]
            # By FLOPs and by time: two of ER, two ends of SLDA's line.
            assert len(points) == 8 if name == "budget" else len(points) > 9
        if name == "figure6":
            assert "one run" not in shown
    stored = [path.parent for path in tmp_path.rglob("result.json")]
    assert len(stored) == len({json.loads((path / "result.json").read_text())["fingerprint"] for path in stored}) + 2
