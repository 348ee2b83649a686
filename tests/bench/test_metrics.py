"""Measures of hand-worked matrices, and intervals against SciPy."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from onepass.bench.metrics import (
    FORGETTING,
    average_accuracies,
    average_anytime,
    backward_transfer,
    class_accuracies,
    final_accuracy,
    forgetting,
    forward_transfer,
    learning_accuracy,
    lowest_class,
    new_accuracy,
    old_accuracy,
    prequential_accuracy,
    summarise,
    worst_case,
)

# Task 0 is best in the middle, task 1 just after it was learned, task 2 just before the end.
MATRIX = [
    [0.5],
    [0.9, 0.8],
    [0.75, 0.3, 0.4],
    [0.6, 0.2, 0.1, 1.0],
]
# What comes back: task 0 is best at the very end, task 1 never changes.
RETURNS = [
    [0.5],
    [0.6, 0.4],
    [0.9, 0.4, 0.7],
]


def test_average_accuracy_is_the_mean_of_each_row() -> None:
    assert average_accuracies(MATRIX) == pytest.approx([0.5, 0.85, 1.45 / 3, 0.475])


def test_final_accuracy_is_the_mean_of_the_last_row() -> None:
    assert final_accuracy(MATRIX) == pytest.approx(0.475)  # (0.6 + 0.2 + 0.1 + 1.0) / 4
    assert final_accuracy(RETURNS) == pytest.approx(2 / 3)


def test_learning_accuracy_is_the_mean_of_the_diagonal() -> None:
    assert learning_accuracy(MATRIX) == pytest.approx(0.675)  # (0.5 + 0.8 + 0.4 + 1.0) / 4


def test_new_and_old_accuracy_split_the_last_row_at_the_last_task() -> None:
    assert new_accuracy(MATRIX) == 1.0
    assert old_accuracy(MATRIX) == pytest.approx(0.3)  # (0.6 + 0.2 + 0.1) / 3


@pytest.mark.parametrize(
    ("variant", "answer"),
    [
        ("chaudhry2018", (0.3 + 0.6 + 0.3) / 3),  # 0.9 - 0.6, 0.8 - 0.2, 0.4 - 0.1
        ("cba", (0.3 + 0.6 + 0.3) / 3),
        ("raptormai", (0.3 + 0.6 + 0.3) / 4),  # and 0 for the last task
        ("avalanche", (-0.1 + 0.6 + 0.3) / 3),  # 0.5 - 0.6 first
    ],
)
def test_forgetting_of_a_hand_worked_matrix(variant: str, answer: float) -> None:
    assert forgetting(MATRIX, variant) == pytest.approx(answer)


@pytest.mark.parametrize(
    ("variant", "answer"),
    [
        ("chaudhry2018", (-0.3 + 0.0) / 2),  # the best before the end, 0.6, minus 0.9
        ("cba", 0.0),  # the best may be the last, so nothing was forgotten
        ("raptormai", 0.0),
        ("avalanche", (-0.4 + 0.0) / 2),  # 0.5 - 0.9
    ],
)
def test_what_comes_back_is_negative_forgetting_for_some_and_none_for_others(variant: str, answer: float) -> None:
    assert forgetting(RETURNS, variant) == pytest.approx(answer, abs=1e-15)


def test_forgetting_of_two_tasks_is_one_drop() -> None:
    assert forgetting([[0.9], [0.5, 0.8]]) == pytest.approx(0.4)


def test_forgetting_by_default_is_that_of_chaudhry_2018() -> None:
    assert forgetting(RETURNS) == forgetting(RETURNS, "chaudhry2018") != forgetting(RETURNS, "cba")


def test_every_variant_has_a_hand_worked_answer_here() -> None:
    assert set(FORGETTING) == {"chaudhry2018", "cba", "raptormai", "avalanche"}


def test_one_task_has_an_accuracy_and_nothing_old() -> None:
    assert average_accuracies([[0.75]]) == [0.75]
    assert final_accuracy([[0.75]]) == learning_accuracy([[0.75]]) == new_accuracy([[0.75]]) == 0.75
    assert old_accuracy([[0.75]]) is None
    for variant in FORGETTING:
        assert forgetting([[0.75]], variant) is None


def test_backward_transfer_is_the_end_minus_just_after_learning_over_all_tasks_but_the_last() -> None:
    assert backward_transfer(MATRIX) == pytest.approx((0.1 - 0.6 - 0.3) / 3)  # 0.6 - 0.5, 0.2 - 0.8, 0.1 - 0.4
    assert backward_transfer(RETURNS) == pytest.approx((0.4 + 0.0) / 2)  # what comes back is positive
    assert backward_transfer([[0.75]]) is None


def test_forward_transfer_is_what_is_known_before_a_task_beyond_what_the_untrained_learner_knew() -> None:
    """Tasks two, three and four, by hand: 0.3 - 0.1, 0.2 - 0.25, 0.6 - 0.1."""
    assert forward_transfer([0.3, 0.2, 0.6], [0.1, 0.25, 0.1]) == pytest.approx((0.2 - 0.05 + 0.5) / 3)
    assert forward_transfer([], []) is None
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        forward_transfer([0.3], [])


# Class 0: three of four right, one taken for 2. Class 1 has no images. Class 2: never right. Class 3: always.
CONFUSION = [[0, 3, 2, 1], [], [0, 2, 3, 5], [3, 6]]


def test_the_accuracy_of_a_class_is_the_share_of_its_own_in_its_row() -> None:
    assert class_accuracies(CONFUSION) == [0.75, None, 0.0, 1.0]
    assert class_accuracies([]) == []


def test_the_lowest_class_is_among_those_that_have_images() -> None:
    assert lowest_class(CONFUSION) == 0
    assert lowest_class([[0, 3, 2, 1], [], [2, 2, 3, 1], []]) == pytest.approx(2 / 3)
    assert lowest_class([[], []]) is None
    assert lowest_class([]) is None


# Three tasks with looks in between: two during the first, three during the second, two during the third.
LOOKS = [[0.1], [0.6], [0.5, 0.2], [0.3, 0.4], [0.7, 0.6], [0.6, 0.5, 0.05], [0.4, 0.7, 0.3]]
AFTER = [[0.2], [0.8, 0.1], [0.5, 0.6, 0.9]]


def test_average_anytime_is_the_mean_over_looks_of_the_mean_over_tasks() -> None:
    means = [0.1, 0.6, 0.35, 0.35, 0.65, 1.15 / 3, 1.4 / 3]
    assert average_anytime(LOOKS) == pytest.approx(sum(means) / 7)
    assert average_anytime([[0.2], [0.6, 0.0]]) == pytest.approx(0.25)  # the mean of all numbers would be 0.8 / 3
    assert average_anytime([[0.4]]) == 0.4


def test_worst_case_takes_what_each_old_task_fell_to_and_the_last_task_as_it_ended() -> None:
    """Task 0 fell to 0.3, while task 1 was learned; its 0.1 and 0.2 come before its end or at it. Task 1 fell to 0.5;
    its 0.2 and 0.1 likewise. Task 2 is the last: its 0.9 at the end, not the 0.05 on the way."""
    assert worst_case(LOOKS, AFTER) == pytest.approx((0.3 + 0.5 + 0.9) / 3)


def test_worst_case_may_be_what_a_task_had_after_another_one() -> None:
    assert worst_case([[0.9], [0.6, 0.5]], [[0.9], [0.3, 0.8]]) == pytest.approx((0.3 + 0.8) / 2)
    assert worst_case([], MATRIX) == pytest.approx((0.6 + 0.2 + 0.1 + 1.0) / 4)  # 0.5 of task 0 was at its own end
    assert worst_case([], RETURNS) == pytest.approx((0.6 + 0.4 + 0.7) / 3)


def test_worst_case_of_one_task_is_its_accuracy_at_the_end() -> None:
    assert worst_case([[0.1], [0.3]], [[0.75]]) == 0.75
    assert worst_case([], [[0.75]]) == 0.75


def test_worst_case_is_never_above_final_accuracy() -> None:
    for matrix in (MATRIX, RETURNS, AFTER):
        assert worst_case([], matrix) <= final_accuracy(matrix)


def test_prequential_accuracy_counts_samples_and_not_stretches() -> None:
    assert prequential_accuracy([[3, 10], [9, 10], [1, 5]]) == pytest.approx(13 / 25)  # not (0.3 + 0.9 + 0.2) / 3
    assert prequential_accuracy([[0, 40]]) == 0
    assert prequential_accuracy([[7, 7]]) == 1


# Table 3 of the paper: all, new and old classes, Split CIFAR100, ten tasks.
ABLATIONS = [
    (26.6, 33.8, 25.7),
    (17.5, 10.5, 18.2),
    (12.6, 38.2, 9.7),
    (7.2, 71.6, 0.0),
    (24.7, 28.4, 24.2),
    (17.8, 18.6, 17.8),
    (24.7, 29.5, 24.2),
]


@pytest.mark.parametrize(("all_classes", "new", "old"), ABLATIONS)
def test_nine_old_tasks_and_a_new_one_make_up_the_papers_final_accuracy(
    all_classes: float, new: float, old: float
) -> None:
    matrix = [[1.0] * i for i in range(1, 10)] + [[old / 100 + shift for shift in (-0.04, 0.04, 0) * 3] + [new / 100]]
    assert old_accuracy(matrix) == pytest.approx(old / 100)
    assert new_accuracy(matrix) == pytest.approx(new / 100)
    assert final_accuracy(matrix) == pytest.approx((9 * old + new) / 1000)
    assert 100 * final_accuracy(matrix) == pytest.approx(all_classes, abs=0.1)  # all three are rounded to 0.1


def test_interval_of_a_hand_worked_sample() -> None:
    summary = summarise([1.0, 2.0, 3.0, 4.0])
    assert summary.mean == 2.5
    assert summary.n == 4
    assert summary.interval == pytest.approx(3.182446 * math.sqrt(5 / 3) / 2, rel=1e-6)  # t(3) * s / sqrt(4)


@pytest.mark.parametrize("n", [3, 10, 31])
def test_interval_is_scipys(n: int) -> None:
    values = [math.sin(7 * i) + 0.1 * i for i in range(n)]
    summary = summarise(values)
    low, high = stats.t.interval(0.95, n - 1, loc=sum(values) / n, scale=stats.sem(values))
    assert summary.interval is not None
    assert (summary.mean - summary.interval, summary.mean + summary.interval) == pytest.approx((low, high))
    assert summary.n == n


def test_equal_values_have_an_interval_of_nothing() -> None:
    assert summarise([0.25, 0.25, 0.25]).interval == 0


def test_one_value_has_no_interval_nor_have_two() -> None:
    summary = summarise([0.4])
    assert (summary.mean, summary.interval, summary.n) == (0.4, None, 1)
    assert summarise([0.4, 0.6]).interval is None
