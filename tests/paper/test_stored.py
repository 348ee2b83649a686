"""Which of the paper's figures some stored runs make up."""

from __future__ import annotations

from dataclasses import replace

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


def budget(*updates: str) -> list[Result]:
    whole = experiment("budget", Selection("small"))
    return [
        replace(result_of(run, 0.5, 0.5), seconds=float(cell.column.replace("own", "1")))
        for cell in whole.cells
        for run in cell.runs[:1]
        if cell.column in (*updates, "own")
    ]


def test_runs_of_one_update_each_are_no_budget() -> None:
    assert not [part for part in parts(budget("1")) if part["title"].startswith("Accuracy by budget")]
    [part] = [part for part in parts(budget("1", "2", "4")) if part["title"].startswith("Accuracy by budget")]
    assert part["image"]


def test_a_budget_of_results_that_do_not_say_what_they_learned_is_drawn_by_measured_time_alone() -> None:
    figure = draw(
        experiment("budget", Selection("small")),
        {one.config: one for one in budget("1", "2", "4")},
    )
    counted, measured = figure.axes
    x = {line.get_label(): list(line.get_xdata()) for line in measured.get_lines()}  # type: ignore[arg-type]
    assert x["ER"] == x["PCR"] == [1, 2, 4]
    assert all("trains no network" in str(line.get_label()) for line in counted.get_lines())
