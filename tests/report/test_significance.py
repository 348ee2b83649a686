"""Paired differences, their tests and what may be bold: by hand, and against SciPy."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from onepass.report.significance import Difference, against, best, holm, paired


def test_a_paired_difference_of_three_pairs_worked_by_hand() -> None:
    found = paired([11.0, 22.0, 33.0], [10.0, 20.0, 30.0])  # differences 1, 2, 3: standard error 1 / sqrt(3)
    t = 2 * math.sqrt(3)
    assert found.mean == pytest.approx(2)
    assert found.interval == pytest.approx(4.302652730 / math.sqrt(3))
    assert found.p == pytest.approx(1 - t / math.sqrt(t**2 + 2))  # Student's distribution with two degrees of freedom
    assert found.n == 3


def test_a_paired_difference_of_two_pairs_worked_by_hand() -> None:
    found = paired([0.0, 0.0], [1.0, 3.0])  # differences -1, -3: t = -2
    assert found.mean == pytest.approx(-2)
    assert (found.interval, found.values) == (None, (-1.0, -3.0))  # two values say more than their interval
    assert found.p == pytest.approx(1 - 2 / math.pi * math.atan(2))  # one degree of freedom is Cauchy's


@pytest.mark.parametrize("n", [2, 3, 5, 10, 40])
def test_p_and_interval_are_scipys(n: int) -> None:
    draw = random.Random(n)
    ours, theirs = [draw.random() for _ in range(n)], [draw.random() for _ in range(n)]
    expected = stats.ttest_rel(ours, theirs)
    found = paired(ours, theirs)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-8)
    low, high = expected.confidence_interval(0.95)
    assert found.interval == (None if n < 3 else pytest.approx((high - low) / 2, rel=1e-8))
    assert found.mean == pytest.approx((high + low) / 2, rel=1e-8)


def test_pairs_that_all_differ_equally() -> None:
    assert paired([0.5, 0.7, 0.9], [0.5, 0.7, 0.9]) == Difference(0.0, 0.0, 1.0, 3)
    constant = paired([0.4, 0.5, 0.6], [0.3, 0.4, 0.5])  # 0.1 each, but for rounding: no spread, so no test
    assert constant == Difference(constant.mean, None, None, 3)
    assert constant.mean == pytest.approx(0.1)
    rounding = paired([0.1 + 0.2, 0.1 + 0.2], [0.3, 0.3])
    assert rounding.p == 1.0


def test_below_two_pairs_there_is_no_interval_and_no_test() -> None:
    assert paired([0.5], [0.25]) == Difference(0.25, None, None, 1)
    assert paired([], []) == Difference(None, None, None, 0)
    with pytest.raises(ValueError, match="shorter"):
        paired([0.5, 0.6], [0.5])


def test_holm_of_four_worked_by_hand() -> None:
    # in order: 4 x 0.005, 3 x 0.01, 2 x 0.03, and 1 x 0.04, which must not fall below the one before it
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_leaves_out_what_was_not_tested_and_ends_at_one() -> None:
    assert holm([0.02, None, 0.5]) == [pytest.approx(0.04), None, pytest.approx(0.5)]
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([None]) == [None]
    assert holm([]) == []


# The top row is ahead by 0.018, 0.028 and 0.038: t = 2.8 sqrt(3), so p = 1 - t / sqrt(t^2 + 2) = 0.04.
AHEAD = {0: 0.9, 1: 0.5, 2: 0.1}
BEHIND = {2: 0.062, 0: 0.882, 1: 0.472}


def test_seeds_are_paired_whatever_their_order() -> None:
    found = against({"behind": BEHIND, "ahead": AHEAD}, "ahead")["behind"]
    t = 2.8 * math.sqrt(3)
    assert found.mean == pytest.approx(-0.028)
    assert found.p == pytest.approx(1 - t / math.sqrt(t**2 + 2))
    assert found.p == pytest.approx(0.04, abs=1e-4)


def test_bold_is_what_is_ahead_on_every_seed_though_seeds_differ_far_more() -> None:
    assert best({"behind": BEHIND, "ahead": AHEAD}) == "ahead"


def test_two_comparisons_need_more_than_one_does() -> None:
    assert best({"ahead": AHEAD, "behind": BEHIND, "also behind": BEHIND}) is None  # 2 x 0.04
    far = {0: 0.3, 1: -0.11, 2: -0.5}
    assert (
        best({"ahead": AHEAD, "behind": BEHIND, "far behind": far}) == "ahead"
    )  # the other p is below 0.0001: 1 x 0.04


def test_one_row_that_may_be_as_good_is_enough_for_no_bold() -> None:
    near = {0: 0.8, 1: 0.6, 2: 0.05}
    assert best({"ahead": AHEAD, "far": dict.fromkeys(range(3), -5.0), "near": near}) is None


def test_without_two_seeds_in_common_nothing_is_bold() -> None:
    assert best({"a": {0: 0.9, 1: 0.91}, "b": {1: 0.1, 2: 0.11}}) is None
    assert best({"a": {0: 0.9, 1: 0.91}, "b": {2: 0.1, 3: 0.11}}) is None
    assert best({"a": {0: 0.9, 1: 0.91}, "b": {0: 0.1, 1: 0.11}}) is None  # differences without spread
    assert best({"a": {0: 0.9, 1: 0.91}, "b": {0: 0.1, 1: 0.12}}) == "a"


def test_a_mean_that_is_higher_by_an_easy_seed_is_not_better() -> None:
    easy = {0: 0.50, 1: 0.51, 2: 0.99}  # mean 0.67, but behind by 0.1 where both were run
    assert best({"easy": easy, "other": {0: 0.60, 1: 0.61}}) is None


def test_a_row_alone_and_equal_rows_are_not_bold() -> None:
    assert best({}) is None
    assert best({"a": AHEAD}) is None
    assert best({"a": AHEAD, "b": AHEAD}) is None
