"""The paper's figures, drawn from stored results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onepass.bench import metrics
from onepass.bench.metrics import summarise
from onepass.bench.run_config import RunConfig
from onepass.paper.budget import counted_over_er
from onepass.paper.experiments import Cell, Experiment
from onepass.paper.tables import StoredResults, by_seed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RED, BLUE = "#c0392b", "#2166ac"
POINT = ("panel", "curve", "x", "y")
USES = ["not used yet", "replayed in", "learned and replayed in"]


def draw(experiment: Experiment, found: StoredResults) -> Figure:
    """A figure of the paper with our results in it."""
    from matplotlib.figure import Figure

    figure = Figure(dpi=150, layout="constrained")
    FIGURES[experiment.name](figure, experiment, found)
    figure.suptitle(f"{experiment.title}\n{experiment.note}", fontsize="small", x=0.01, ha="left")
    return figure


def points(figure: Figure) -> list[dict[str, Any]]:
    """Everything that was drawn."""
    rows: list[tuple[Any, ...]] = []
    for axes in figure.axes:
        panel = axes.get_title(loc="left")
        for line in axes.lines:
            label = str(line.get_label())
            curve = "printed" if label.startswith("_") else label
            rows += [(panel, curve, x, float(f"{y:.6g}")) for x, y in np.asarray(line.get_xydata()).tolist()]
        for image in axes.images:
            for task, dimensions in enumerate(np.asarray(image.get_array()).tolist(), start=1):
                rows += [(panel, f"task {task}", place, USES[use]) for place, use in enumerate(dimensions)]
    return [dict(zip(POINT, row, strict=True)) for row in rows]


def _plain(axes: Axes, title: str, **labels: Any) -> None:
    axes.set(**labels)
    axes.set_title(title, fontsize="small", loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(axes: Axes, **place: Any) -> None:
    if axes.lines:
        axes.legend(framealpha=0.8, edgecolor="none", fontsize="x-small", **place)


def _line(axes: Axes, x: Sequence[float], samples: Sequence[Sequence[float]], **style: Any) -> None:
    """A curve through the means; a band where three runs or more make an interval worth drawing."""
    points = [summarise(values) for values in samples]
    means = [100 * point.mean for point in points]
    [line] = axes.plot(x, means, marker="o", markersize=3, **style)
    if min(point.n for point in points) >= 3:
        low, high = ([100 * (p.mean + sign * (p.interval or 0)) for p in points] for sign in (-1, 1))
        axes.fill_between(x, low, high, alpha=0.15, linewidth=0, color=line.get_color())


def _sweep(axes: Axes, cells: Sequence[Cell], measures: Mapping[str, Any], found: StoredResults) -> None:
    """A curve for each measure over the cells' columns, which are numbers."""
    for number, (name, measure) in enumerate(measures.items()):
        rows = [(cell, list(by_seed(cell, measure, found).values())) for cell in cells]
        rows = [(cell, values) for cell, values in rows if values]
        if rows:
            _line(axes, [float(cell.column) for cell, _ in rows], [v for _, v in rows], label=name, color=f"C{number}")
        for cell, _ in rows:
            if name in cell.printed:
                axes.plot(float(cell.column), cell.printed[name][0], "x", color=f"C{number}", markersize=7)
    _legend(axes)


def _figure2(figure: Figure, experiment: Experiment, found: StoredResults) -> None:
    figure.set_size_inches(10, 9)
    grid = figure.subplots(3, 2).flatten().tolist()
    cells = {panel: [cell for cell in experiment.cells if cell.tags[0] == panel] for panel in "bcdef"}
    titles = {
        "a": "(a) after task 1, learned in all features",
        "b": "(b) after task 2, fine-tuned",
        "c": "(c) after task 2, ER",
        "d": "(d) after task 2, ER with new samples in the first 0.3",
    }
    for axes, panel in zip(grid, "abcd", strict=False):
        shown = [*cells["b"], *cells["c"], *cells["d"]] if panel == "a" else cells[panel]  # one task 1 for all three
        runs = [run for cell in shown for run in cell.runs if run in found][:1]
        _plain(axes, titles[panel], xlabel="dimension", ylabel="$w_{ci} z_i$, mean")
        for run in runs:
            facts, row = found[run].facts[panel != "a"], found[run].accuracy_matrix[-1]
            axes.plot(facts["old"], color=RED, linewidth=0.8, label="first task's classes")
            axes.plot(facts["new"], color=BLUE, linewidth=0.8, label="second task's classes")
            _legend(axes)
            if panel != "a":
                words = f"{titles[panel]}: {100 * metrics.mean(row):.1f} %, seed {run.seed}"
                axes.set_title(words, fontsize="small", loc="left")
    share = "share of the features that new samples are learned in"
    measures = experiment.measures
    named = {"first task": measures["first task when learned"], "second task": measures["new classes"]}
    _plain(grid[4], "(e) fine-tuned: each task when it was learned", xlabel=share, ylabel="accuracy, %")
    _sweep(grid[4], cells["e"], named, found)
    _plain(grid[5], "(f) ER: after task 2", xlabel=share, ylabel="accuracy, %")
    _sweep(grid[5], cells["f"], {name: measures[name] for name in ("all classes", "old classes")}, found)


def _figure4(figure: Figure, experiment: Experiment, found: StoredResults) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    shown = [(cell, run) for cell in experiment.cells for run in cell.runs if run in found]
    figure.set_size_inches(9, 1 + 2.2 * max(1, len(shown)))
    colours = ["#f2f2f2", "#9ecae1", "#e6550d"]
    grid = figure.subplots(max(1, len(shown)), 1, squeeze=False)[:, 0]
    for axes, (cell, run) in zip(grid, shown, strict=False):
        width = found[run].protocol["features"]
        picture = [[0] * width for _ in found[run].facts]
        for row, facts in zip(picture, found[run].facts, strict=True):
            for value, name in ((1, "replayed_in"), (2, "learned_in")):
                for first, end in facts[name]:
                    row[first:end] = [value] * (end - first)
        axes.imshow(picture, aspect="auto", interpolation="nearest", cmap=ListedColormap(colours), vmin=0, vmax=2)
        axes.set(ylabel="task", xlabel="feature dimension")
        axes.set_yticks(range(len(picture)), [str(task + 1) for task in range(len(picture))])
        axes.set_title(cell.column, fontsize="small", loc="left")
    patches = [Patch(color=colour, label=name) for colour, name in zip(colours, USES, strict=True)]
    figure.legend(handles=patches, loc="outside lower center", ncols=3, frameon=False, fontsize="small")


def _figure5(figure: Figure, experiment: Experiment, found: StoredResults) -> None:
    from matplotlib.ticker import MaxNLocator

    run = [cell for cell in experiment.cells if any(one in found for one in cell.runs)]
    streams = list(dict.fromkeys(cell.column for cell in run or experiment.cells))
    figure.set_size_inches(1 + 5 * len(streams), 4.5)
    for axes, stream in zip(figure.subplots(1, len(streams), squeeze=False)[0], streams, strict=True):
        _plain(axes, stream, xlabel="tasks learned", ylabel="accuracy on all of them so far, %")
        for number, cell in enumerate(cell for cell in experiment.cells if cell.column == stream):
            curves = [metrics.average_accuracies(found[run].accuracy_matrix) for run in cell.runs if run in found]
            if curves:
                style = {"color": f"C{number % 10}", "linestyle": "--" if number >= 10 else "-"}
                _line(axes, range(1, len(curves[0]) + 1), list(zip(*curves, strict=True)), label=cell.row, **style)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend(axes, loc="center left", bbox_to_anchor=(1, 0.5))


def _figure6(figure: Figure, experiment: Experiment, found: StoredResults) -> None:
    figure.set_size_inches(6.5, 4.2)
    axes = figure.subplots()
    printed = any(cell.printed for cell in experiment.cells)
    _plain(axes, "crosses: printed" if printed else "", xlabel="gamma", ylabel="final accuracy, %")
    _sweep(axes, experiment.cells, experiment.measures, found)


def _budget(figure: Figure, experiment: Experiment, found: StoredResults) -> None:
    """Accuracy by counted FLOPs and by measured time, over ER's with one update; what trains no network is a line."""
    figure.set_size_inches(10, 4.5)
    measure = experiment.measures["final accuracy"]
    once = [run for cell in experiment.cells if cell.tags == ("1", "er") for run in cell.runs if run in found]
    panels: list[tuple[str, Callable[[Sequence[RunConfig]], float]]] = [
        ("training FLOPs a batch, times ER's", lambda runs: counted_over_er(found[runs[0]]))
    ]
    if once:
        of_er = metrics.mean([found[run].seconds for run in once])
        panels.append(("measured time of all steps, times ER's", lambda runs: _seconds(runs, found) / of_er))
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0].tolist()
    for axes, (label, over_er) in zip(grid, panels, strict=True):
        _plain(axes, "", xlabel=label, xscale="log")
        for number, row in enumerate(dict.fromkeys(cell.row for cell in experiment.cells)):
            of_row = [
                (cell, list(by_seed(cell, measure, found).values())) for cell in experiment.cells if cell.row == row
            ]
            measured = [(cell, finals) for cell, finals in of_row if finals]
            if measured and measured[0][0].column == "own":
                level = 100 * summarise(measured[0][1]).mean
                axes.axhline(level, linestyle="--", linewidth=1, color=f"C{number}", label=f"{row} (trains no network)")
                continue
            works = [over_er([run for run in cell.runs if run in found]) for cell, _ in measured]
            points = [(work, finals) for work, (_, finals) in zip(works, measured, strict=True) if math.isfinite(work)]
            if points:
                work, samples = zip(*points, strict=True)
                _line(axes, work, samples, label=row, color=f"C{number}")
        ticks = [2**place for place in range(5)]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_xticks([], minor=True)
    grid[0].set_ylabel("final accuracy, %")
    _legend(grid[-1], loc="center left", bbox_to_anchor=(1, 0.5))


def _seconds(runs: Sequence[RunConfig], found: StoredResults) -> float:
    return metrics.mean([found[run].seconds for run in runs])


FIGURES: dict[str, Callable[[Figure, Experiment, StoredResults], None]] = {
    "figure2": _figure2,
    "figure4": _figure4,
    "figure5": _figure5,
    "figure6": _figure6,
    "budget": _budget,
}
