"""The tables of docs/beyond.md against figures worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from scipy.special import stdtrit

import blocks
import plus
from helpers import result_of
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.errors import UsageError
from onepass.report import plots
from onepass.report.significance import Difference


def study(seed: int, last: float, better: float, **changes: object) -> dict[str, object]:
    """As average.py stores it; on its way one look lies 0.02 below each end."""
    ends = {"last": [last, last], blocks.CHOSEN: [better - 0.1, better + 0.1]}
    return {
        "config": {"stream": "cifar10", "method": "er", "seed": seed},
        "accuracy": ends,
        "looks": {"last": [[last - 0.02], [last]], blocks.CHOSEN: [[better - 0.01], [better]]},
        "data": {"sha256": "a"},
        "protocol": {"loss": "b"},
        **changes,
    }


def test_averages_stand_as_differences_to_the_chosen_one_of_the_same_run(tmp_path: Path) -> None:
    assert blocks.averages(tmp_path) == "Not run yet."
    for seed, (last, better) in enumerate([(0.2, 0.3), (0.4, 0.52)]):
        (tmp_path / f"{seed}.json").write_text(json.dumps(study(seed, last, better)))
    lines = blocks.averages(tmp_path).splitlines()
    assert lines[0] == "| kept | ER, CIFAR-10 |"
    assert lines[2] == "| decay 0.98 | 30.0, 52.0 |"  # 30 and 52
    assert lines[3] == "| the last weights | -10.0, -12.0 (2) |"  # 10 and 12; t = 11, one degree of freedom: p = 0.058
    # deviations of 2 and 1 points apart: 2 / sqrt(2), 1 / sqrt(2); of 20 and 40, 30 and 52
    last, kept = (
        "by the last weights 1.4 (reach 2.0), between runs 14.1",
        "by the average 0.7 (reach 1.0), between runs",
    )
    assert lines[-1] == f"- ER, CIFAR-10: {last}; {kept} 15.6 (n = 2)"
    (tmp_path / "2.json").write_text(json.dumps(study(2, 0.3, 0.4, data={"sha256": "other"})))
    with pytest.raises(UsageError, match="several protocols"):
        blocks.averages(tmp_path)


def test_last_weights_and_average_stand_side_by_side() -> None:
    config = RunConfig("er", "cifar10", tasks=2, net="slim-resnet18", anytime=20, settings={"average": 0.9})
    results = [result_of(replace(config, seed=seed), 0.3 + 0.1 * seed, 0.5 + 0.101 * seed) for seed in range(2)]
    [head, _, row, *rest] = blocks.last_and_average(results).splitlines()
    assert head.startswith("| row | final, last weights | final, average | anytime, last weights | anytime, average |")
    # anytime (0.6 + 0.3) / 2 and (0.8 + 0.5) / 2; worst case: (0.2 + 0.3) / 2 and (0.2 + 0.4) / 2, by the average
    # (0.4 + 0.5) / 2 and (0.4 + 0.601) / 2
    cells = ["ER", "30.0, 40.0", "**+20.0, +20.1 (2)**", "45.0, 45.0", "+20.0, +20.0 (2)", "25.0, 30.0"]
    cells += ["**+20.0, +20.1 (2)**", "0, 1"]
    assert row == "| " + " | ".join(cells) + " |"
    assert "- by last weights: 7.1 points (1 rows)" in rest  # 30 and 40: 5 sqrt(2)
    assert blocks.last_and_average([replace(one, anytime=[]) for one in results]) == "Not run yet."


def test_one_task_has_no_worst_case_and_does_not_count_among_the_comparisons() -> None:
    config = RunConfig("iid", "cifar10", net="slim-resnet18", anytime=20, settings={"average": 0.9})
    one = replace(result_of(config, 0.3, 0.5), accuracy_matrix=[[0.5]], accuracy_matrix_last=[[0.3]])
    looks = [{"step": 10, "accuracy": [0.8], "accuracy_last": [0.6]}]
    row = blocks.last_and_average([replace(one, anytime=looks)]).splitlines()[2]
    assert row == "| IID | 30.0 | +20.0 (1) | 60.0 | +20.0 (1) | - | - | 0 |"


def test_agreement_with_the_paper_is_of_ranks() -> None:
    # printed at memory 1000: FINE-TUNE 16.6, ER 43.2, PCR 55.8, ER-FSL 61.5
    finals = {"finetune": (0.1, 0.1), "er": (0.2, 0.4), "pcr": (0.9, 0.3), "er-fsl": (0.8, 0.2)}
    groups = {}
    for name, (last, by_average) in finals.items():
        settings = {"average": 0.9} | ({} if name == "finetune" else {"memory": 1000})
        groups[name] = [result_of(RunConfig(name, "cifar10", anytime=20, settings=settings), last, by_average)]
    [last_line, average_line] = blocks.noise(groups).splitlines()[2:]
    assert last_line == "- by last weights: rank correlation with the paper's column 0.80 (4 rows)"  # one swap
    assert average_line.endswith("column 0.20 (4 rows)")  # ranks 1, 4, 3, 2: 1 - 6 (4 + 4) / 60


def test_er_fsl_plus_stands_beside_its_rivals_over_common_seeds() -> None:
    def runs(method: str, finals: list[tuple[float, float]], **settings: float) -> list[Result]:
        config = RunConfig(method, "cifar10", tasks=2, net="slim-resnet18", anytime=20, settings=settings)
        return [result_of(replace(config, seed=seed), *both) for seed, both in enumerate(finals)]

    rival = runs("er-fsl", [(0.3, 0.5), (0.5, 0.6), (0.9, 0.9)], average=0.9)
    assert blocks.claim(rival) == "Not run yet."
    looks = [{"step": 10, "accuracy": [0.6]}, {"step": 30, "accuracy": [0.2, 0.4]}]
    own = runs("er-fsl+", [(0, 0.5), (0, 0.6)])
    own = [replace(one, accuracy_matrix_last=[], anytime=looks) for one in own]
    reference = runs("iid++", [(0.6, 0.7), (0.8, 0.9)], average=0.9)
    lines = blocks.claim([*rival, *own, *reference]).splitlines()
    assert lines[2] == "| ER-FSL+ | 50.0, 60.0 |  | 45.0, 45.0 |  | 1 | 2 |"
    # over seeds 0 and 1, the third is not ER-FSL+'s: -20 and -10; ER-FSL+ is its average there
    assert lines[3] == "| ER-FSL | 30.0, 50.0 | -20.0, -10.0 (2) | 45.0, 45.0 | +0.0, +0.0 (2) | 1 | 2 |"
    cells = ["ER-FSL by its average", "50.0, 60.0", "+0.0, +0.0 (2)", "65.0, 65.0", "+20.0, +20.0 (2)", "1", "2"]
    assert lines[4] == "| " + " | ".join(cells) + " |"
    # Welch: variances 0.02 and 0.005 over 2, so 15 points with a standard error of sqrt(0.0125) and
    # 0.0125^2 / (0.01^2 + 0.0025^2) = 1.47 degrees of freedom
    half = 100 * 0.0125**0.5 * stdtrit(0.0125**2 / (0.01**2 + 0.0025**2), 0.975)
    welch = blocks.behind("iid++", {0: 0.6, 1: 0.8}, {0: 0.5, 1: 0.6}, blocks.FINAL)
    assert (welch.mean, welch.interval) == pytest.approx((0.15, half / 100))
    assert lines[5] == "| IID++ | 60.0, 80.0 | +15.0 (2) | 45.0, 45.0 | - | 1 | 2 |"
    assert lines[8].endswith("Not run on these seeds: OCM, PCR, SCR, ER-ACE, IID.")
    means = "in the mean above: ER-FSL; in the mean below: ER-FSL by its average, IID++, IID++ by its average"
    assert lines[-2] == f"- at the end, above: none; below: none; {means}"
    certain = {"A": Difference(-0.1, 0.01, 0.04, 3), "B": Difference(0.1, 0.01, 0.04, 3), "C": blocks.NOT_RUN}
    assert blocks.standing(certain) == "above: A; below: B; in the mean above: none; in the mean below: none"
    pcr = replace(RunConfig("pcr", "cifar10", tasks=2, net="slim-resnet18", anytime=20), seed=7)
    rival = [result_of(replace(pcr, settings=replace(pcr.learner_config, average=0.9)), 0.3, 0.4)]
    shown = blocks.claim([*rival, *own])  # no seed in common
    assert "| PCR" not in shown
    assert "Not run on these seeds: ER-FSL, OCM, PCR, SCR," in shown


def test_the_spread_is_pooled_by_degrees_of_freedom() -> None:
    groups = {}
    for name, finals in (("er", [0.2, 0.4]), ("pcr", [0.3, 0.3, 0.3])):  # variances 0.02 and 0, with 1 and 2 degrees
        config = RunConfig(name, "cifar10", anytime=20, settings={"average": 0.9})
        groups[name] = [result_of(replace(config, seed=seed), final, final) for seed, final in enumerate(finals)]
    # sqrt(0.02 / 3); both rows have the mean 0.3
    assert "- by last weights: 8.2 points (2 rows); between the means of these rows 0.0" in blocks.noise(groups)


def test_curves_show_the_mean_of_the_runs_by_last_weights_and_by_average(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig("er", "cifar10", tasks=2, net="slim-resnet18", anytime=20, settings={"average": 0.9})
    results = [result_of(replace(config, seed=seed), 0.3, 0.5) for seed in range(2)]
    results[1].anytime[0]["accuracy_last"] = [0.8]
    drawn: list[Figure] = []
    monkeypatch.setattr(plots, "save", lambda figure, path: drawn.append(figure))
    blocks.curves(results, tmp_path / "curves.png")
    panel = drawn[0].axes[0]
    means = {line.get_label(): list(line.get_ydata()) for line in panel.lines if line.get_alpha() is None}
    assert panel.get_title(loc="left") == "ER, n = 2"
    assert means["last weights"] == pytest.approx([70, 30])  # 60 and 80; 20 and 40 in both
    assert means["average"] == pytest.approx([80, 50])


def test_a_change_stands_as_its_difference_to_the_runs_without_it() -> None:
    base, joint, *_ = plus.CHANGES
    runs = [result_of(plus.config(plus.CHANGES[base], "cifar10", seed), 0.1, 0.4) for seed in range(3)]
    gains = (0.01, 0.02, 0.03)
    runs += [result_of(plus.config(plus.CHANGES[joint], "cifar10", s), 0.9, 0.4 + gain) for s, gain in enumerate(gains)]
    lines = blocks.changes(runs, {joint: {"flops": 1.0, "time": 0.912}}).splitlines()
    assert lines[0] == "| change | CIFAR-10 | FLOPs / ER | time / ER | kept |"
    assert lines[2] == f"| {base} | 40.0 ± 0.0 | not measured | not measured |  |"
    assert (
        lines[3] == f"| {joint} | +2.0 ± 2.5 (3) | 1.00 | 0.91 | open |"
    )  # sd 1, t(0.975, 2) = 4.303, over sqrt(3); p = 0.074
    assert f"| {plus.PART} | not run | not measured | not measured |  |" in lines  # no change that could be kept
    assert len(lines) == 2 + len(plus.CHANGES) + 2
    assert blocks.changes(runs[3:], {}) == "Not run yet."


def test_what_was_kept_stands_beside_all_of_it_with_one_left_out_on_fresh_seeds() -> None:
    base, joint, larger, *others = plus.CHANGES

    def runs(change: Mapping[str, object], stream: str, finals: list[float], first: int = 0) -> list[Result]:
        return [result_of(plus.config(change, stream, first + seed), 0.1, final) for seed, final in enumerate(finals)]

    chosen = [one for stream in blocks.TITLES for one in runs({}, stream, [0.4] * 3)]
    chosen += [one for name in others for one in runs(plus.CHANGES[name], "cifar10", [0.3] * 3)]
    assert blocks.again(chosen) == "Not run yet."
    for name in (joint, larger):
        chosen += [one for stream in blocks.TITLES for one in runs(plus.CHANGES[name], stream, [0.41, 0.42, 0.43])]
    assert blocks.again(chosen) == "Not run yet."
    both = {**plus.CHANGES[joint], **plus.CHANGES[larger]}
    fresh = runs(both, "cifar10", [0.5, 0.6], 3) + runs(plus.CHANGES[larger], "cifar10", [0.45, 0.53], 3)
    lines = blocks.again([*chosen, *fresh]).splitlines()
    assert lines[0] == f"| kept: {joint}, {larger} | CIFAR-10 |"
    assert lines[2] == "| all that was kept | 50.0, 60.0 |"
    assert lines[3] == f"| {base} | not run |"
    assert lines[4] == f"| without: {joint} | -5.0, -7.0 (2) |"
    assert "Not yet decided" not in lines[-1]
    assert "By the rule" not in lines[-1]
    without = [one for stream in blocks.TITLES for one in runs({}, stream, [0.5, 0.6, 0.7], 3)]
    for last, said in ((0.8, "all that was kept"), (0.7, "the average alone")):  # equal in the mean is not better
        of_all = [one for stream in blocks.TITLES for one in runs(both, stream, [0.5, 0.6, last], 3)]
        assert blocks.again([*chosen, *without, *of_all]).endswith(f"By the rule ER-FSL+ is {said}.")
    some = [one for one in chosen if one.config.learner_config.to_json()["lr"] == 0.1]
    decided_last = ("half the learning rate", "Adam at 0.001")
    assert blocks.again([*some, *fresh]).endswith(f"Not yet decided, so not in it: {', '.join(decided_last)}.")
    worse = [one for name in (joint, larger) for one in runs(plus.CHANGES[name], "cifar10", [0.3] * 3)]
    assert blocks.again([*(one for one in chosen if one not in worse), *worse]) == "No change was kept."


def test_what_the_last_change_gives_rivals_stands_beside_the_studies_without_it(tmp_path: Path) -> None:
    for name, better in (("er-fsl", 0.4), ("er", 0.3)):
        for seed in range(2):
            (tmp_path / f"cifar10-{name}-{seed}.json").write_text(json.dumps(study(seed, 0.1, better)))
    assert blocks.rivals([], tmp_path) == "Not run yet."
    cases = ((plus.CHANGES[plus.MORE], (0.45, 0.55)), (plus.RIVALS["er"], (0.31, 0.33)))
    runs = [
        result_of(plus.config(change, "cifar10", seed), 0.1, final)
        for change, finals in cases
        for seed, final in enumerate(finals)
    ]
    lines = blocks.rivals(runs, tmp_path).splitlines()
    assert lines[2] == "| ER-FSL | 40.0, 40.0 | 45.0, 55.0 | +5.0, +15.0 (2) |"  # t(0.975, 1) = 12.706
    assert lines[3] == "| ER | 30.0, 30.0 | 31.0, 33.0 | +1.0, +3.0 (2) |"
    assert len(lines) == 6
    with pytest.raises(UsageError, match="different data"):
        blocks.rivals([replace(one, data={"sha256": "b"}) for one in runs], tmp_path)


def test_a_change_is_kept_if_it_helps_on_both_streams_and_in_all_pairs_but_one() -> None:
    assert blocks.verdict([[1, 2, 3], [0.1, 0.2, 0.3]], 3) == "yes"
    assert blocks.verdict([[1, 2, 3], [0.3, -0.1, 0.3]], 3) == "yes"
    assert blocks.verdict([[1, -1, 3], [0.3, -0.1, 0.3]], 3) == "no"
    assert blocks.verdict([[1, 2, 3], [-0.1, 0.2, -0.3]], 3) == "no"
    assert blocks.verdict([[1, 2, 3], []], 3) == "open"
    assert blocks.verdict([[1, 2], []], 3) == "open"
    assert blocks.verdict([[-1, -2, -3], []], 3) == "no"
    assert blocks.verdict([[1, -0.1, -0.1], []], 3) == "no"


def test_runs_of_two_versions_of_a_learners_file_cannot_stand_in_one_table() -> None:
    def runs(codes: str) -> list[Result]:
        names = (plus.BASE, "one joint forward pass", plus.MORE)  # the last is in a file of its own
        made = [result_of(plus.config(plus.CHANGES[name], "cifar10", 0), 0.1, 0.4) for name in names]
        return [replace(one, protocol={"code": code}) for one, code in zip(made, codes, strict=True)]

    assert blocks.changes(runs("aab"), {}).startswith("| change | CIFAR-10 |")
    with pytest.raises(UsageError, match="several versions"):
        blocks.changes(runs("acb"), {})
