"""How large a difference n paired runs could have shown, against another library's values."""

from __future__ import annotations

import random

import pytest
from scipy import stats

from onepass.report.power import detectable, power, standardised

# statsmodels 0.14: TTestPower().solve_power(nobs=n, power=0.8, alpha=0.05), two-sided
STATSMODELS = {2: 11.549890, 3: 3.264044, 5: 1.681997, 10: 0.996002, 34: 0.495029, 100: 0.282912}


@pytest.mark.parametrize("n", list(STATSMODELS))
def test_the_smallest_effect_that_n_pairs_show_is_that_of_statsmodels(n: int) -> None:
    assert standardised(n) == pytest.approx(STATSMODELS[n], rel=1e-5)


def test_a_textbooks_34_pairs_for_half_a_standard_deviation() -> None:
    assert power(33, 0.5) < 0.8 < power(34, 0.5)


def test_in_units_of_the_figures_it_is_that_many_standard_deviations() -> None:
    assert detectable([1.0, 3.0, 5.0]) == pytest.approx(2 * STATSMODELS[3], rel=1e-5)
    assert detectable([0.1, 0.1, 0.1]) is None, "no spread"
    assert detectable([1.0]) is None


def test_a_difference_of_that_size_is_found_in_four_of_five_trials() -> None:
    draw, n, trials = random.Random(0), 5, 2000
    effect = standardised(n)
    found = sum(stats.ttest_1samp([draw.gauss(effect, 1) for _ in range(n)], 0).pvalue < 0.05 for _ in range(trials))
    assert found / trials == pytest.approx(0.8, abs=0.03)  # three standard errors
