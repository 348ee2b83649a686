"""A stream that does not wait: which batches a slow method misses, by hand."""

from __future__ import annotations

import pytest

from onepass.bench.pace import learned
from onepass.bench.run import Run
from onepass.bench.run_config import RunConfig
from onepass.bench.runner import run


@pytest.mark.parametrize(
    ("load", "taken"),
    [
        (0.3, [0, 1, 2, 3, 4, 5, 6, 7]),
        (1.0, [0, 1, 2, 3, 4, 5, 6, 7]),
        (2.0, [0, 2, 4, 6]),
        (1.5, [0, 1, 3, 4, 6, 7]),  # free at 0, 1.5, 3, 4.5, 6 and 7.5: each time the last batch that came
        (3.0, [0, 3, 6]),
        (20.0, [0]),
    ],
)
def test_a_method_takes_the_last_batch_whenever_it_is_free(load: float, taken: list[int]) -> None:
    assert [number for number, kept in enumerate(learned(8, load)) if kept] == taken


def config(speed: float, **more: object) -> RunConfig:
    return RunConfig("er", net="linear", batch=20, fraction=0.4, stream_speed=speed, settings={"memory": 30}, **more)  # type: ignore[arg-type]


def test_er_keeps_up_at_its_own_speed_and_misses_half_at_twice() -> None:
    waiting, same, twice = Run(config(0)), Run(config(1)), Run(config(2))
    assert same.cost == 1
    assert (waiting.total, same.total, twice.total) == (30, 30, 15)
    assert run(config(1)).fingerprint == run(config(0)).fingerprint


def test_missed_batches_are_predicted_but_not_learned_and_the_result_says_so() -> None:
    result = run(config(2, prequential=True))
    assert result.steps == 15
    assert (result.protocol["batches_learned"], result.protocol["cost_over_er"]) == (15, 1.0)
    assert sum(seen for _, seen in result.prequential) == result.data["learned"], "of all that came"
    assert [len(row) for row in result.accuracy_matrix] == [1, 2, 3, 4, 5]


def test_updates_cost_what_they_cost() -> None:
    once = Run(config(1))
    more = RunConfig("er", net="linear", batch=20, stream_speed=1, settings={"memory": 30, "updates": 4})
    assert Run(more).cost == pytest.approx(4 * once.cost)
