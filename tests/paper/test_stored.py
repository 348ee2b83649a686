"""Which of the paper's figures some stored runs make up."""

from __future__ import annotations

from helpers import result_of
from onepass.bench.result import Result
from onepass.paper.experiments import experiment
from onepass.paper.figures import draw
from onepass.paper.scales import Selection
from onepass.paper.stored import parts


def runs(*streams: str) -> list[Result]:
    whole = experiment("figure5", Selection("small"))
    return [result_of(run, 0.5, 0.5) for run in whole.runs if run.stream in streams and run.seed == 0]


def figure5(found: list[Result]) -> list[str]:
    return [part["title"] for part in parts(found) if part["title"].startswith("Figure 5")]


def test_runs_on_one_stream_of_three_are_one_figure_of_that_stream() -> None:
    [title] = figure5(runs("cifar10"))
    assert "cifar100" not in title


def test_runs_on_all_streams_are_the_papers_figure_and_no_other() -> None:
    [title] = figure5(runs("cifar10", "cifar100", "mini-imagenet"))
    assert all(stream in title for stream in ("cifar10", "cifar100", "mini-imagenet"))


def test_a_stream_that_was_not_run_has_no_empty_axes() -> None:
    found = {one.config: one for one in runs("cifar10", "cifar100")}
    figure = draw(experiment("figure5", Selection("small")), found)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["cifar10", "cifar100"]
