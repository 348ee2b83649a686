"""The text and the series that the study makes vectors of, on small examples worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

import package_descriptions
import time_series

AVAILABLE = """\
Package: zeta-data
Source: zeta (1.2)
Section: games
Description: levels of a game
 that go on and on

Package: zeta
Section: games
Description: a game of letters

Package: libalpha1
Source: alpha
Section: libs
Description: a library

Package: alpha
Section: non-free/net
Description: a client: of a net

Package: beta
Section: games
Description: a client: of a net

Package: broken
Section: net
"""


def test_one_description_is_kept_for_each_source_and_none_twice() -> None:
    pairs = package_descriptions.descriptions(AVAILABLE.splitlines(keepends=True))
    assert ("games", "a game of letters") in pairs, "zeta comes before zeta-data, of the same source"
    assert ("games", "levels of a game") not in pairs
    assert ("games", "a client: of a net") in pairs, "beta comes after alpha"
    assert len(pairs) == 2


def test_the_largest_sections_are_chosen_and_cut_by_a_fixed_seed() -> None:
    pairs = [("games", f"g{i}") for i in range(9)] + [("net", f"n{i}") for i in range(5)] + [("web", "w")]
    rows = package_descriptions.chosen(pairs, n_sections=2, most=6)
    assert [section for section, _ in rows] == ["games"] * 6 + ["net"] * 5
    assert len(set(rows)) == 11
    assert rows == package_descriptions.chosen(pairs, n_sections=2, most=6)


def test_series_have_mean_zero_and_deviation_one_but_flat_ones_are_zeros() -> None:
    x = time_series.normalised(np.array([[1.0, 3.0, 5.0], [2.0, 2.0, 2.0]]))
    assert x[0] == pytest.approx([-(1.5**0.5), 0, 1.5**0.5])
    assert x[1].tolist() == [0, 0, 0]


def test_convolutions_are_those_of_a_loop_over_every_place() -> None:
    x = time_series.normalised(np.random.default_rng(1).normal(size=(3, 20)))
    features = time_series.convolutions(x, 15, seed=4)
    rng = np.random.default_rng(4)
    for kernel in range(15):
        size = int(rng.choice([7, 9, 11]))
        weights = rng.normal(size=size)
        weights = weights - weights.mean()
        bias = rng.uniform(-1, 1)
        dilation = int(2 ** rng.uniform(0, np.log2(19 / (size - 1))))
        margin = (size - 1) * dilation // 2 if rng.random() < 0.5 else 0
        for row, series in enumerate(x):
            outputs = []
            for start in range(-margin, 20 + margin - (size - 1) * dilation):
                places = [start + dilation * step for step in range(size)]
                values = [series[place] if 0 <= place < 20 else 0.0 for place in places]
                outputs.append(bias + float(np.dot(weights, values)))
            share = sum(output > 0 for output in outputs) / len(outputs)
            assert features[row, 2 * kernel] == pytest.approx(share)
            assert features[row, 2 * kernel + 1] == pytest.approx(max(outputs), rel=1e-5)
