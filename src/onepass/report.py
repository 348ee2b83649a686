"""Results as a table and a picture. Reads results only; never trains."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass import metrics
from onepass.checkpoint import atomic, write_text
from onepass.methods import METHODS
from onepass.metrics import Summary, summarise

if TYPE_CHECKING:
    from rich.table import Table

    from onepass.results import Result

COLUMNS: dict[str, tuple[str, Callable[[metrics.Matrix], float | None]]] = {
    "final_accuracy": ("final accuracy %", metrics.final_accuracy),
    "forgetting": ("forgetting %", metrics.forgetting),
    "learning_accuracy": ("just after learning %", metrics.learning_accuracy),
}
BANDED = 3  # runs from which an interval tells more than the runs themselves
CROWD = 8  # methods up to which a picture has room for their intervals
NOTE = "mean ± 95 % Student-t interval over runs; forgetting as in Chaudhry et al. 2018"


def by_method(results: Sequence[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.config.method, []).append(result)
    return groups


def summary(results: Sequence[Result]) -> dict[str, dict[str, Summary | None]]:
    """For each method and column the mean, interval and n; None where a measure does not exist (one task)."""
    rows: dict[str, dict[str, Summary | None]] = {}
    for method, group in by_method(results).items():
        rows[method] = {}
        for name, (_, measure) in COLUMNS.items():
            values = [value for result in group if (value := measure(result.accuracy_matrix)) is not None]
            rows[method][name] = summarise(values) if values else None
    return rows


def document(results: Sequence[Result]) -> dict[str, Any]:
    """The one JSON document of `--json`. Accuracies are fractions."""
    rows = {
        method: {name: None if cell is None else vars(cell) for name, cell in columns.items()}
        for method, columns in summary(results).items()
    }
    return {"runs": [result.to_json() for result in results], "summary": rows, "forgetting_variant": "chaudhry2018"}


def title(method: str) -> str:
    return METHODS[method].title if method in METHODS else method


def cell(value: Summary | None) -> str:
    if value is None:
        return "n/a"
    interval = "n/a" if value.interval is None else f"{100 * value.interval:.1f}"
    return f"{100 * value.mean:.1f} ± {interval}"


def lines(results: Sequence[Result]) -> list[list[str]]:
    """Header and rows of the table, as text."""
    rows = [["method", *(heading for heading, _ in COLUMNS.values()), "runs"]]
    counts = {method: len(group) for method, group in by_method(results).items()}
    for method, columns in summary(results).items():
        rows.append([title(method), *(cell(value) for value in columns.values()), str(counts[method])])
    return rows


def caption(results: Sequence[Result]) -> str:
    config = results[0].config
    sizes = sorted({getattr(result.config.settings, "memory", 0) for result in results} - {0})
    memory = f", memory {'/'.join(map(str, sizes))}" if sizes else ""
    n_tasks = max(len(result.accuracy_matrix) for result in results)
    return f"{config.stream_label}, {n_tasks} tasks, {config.net}{memory}"


def markdown(results: Sequence[Result]) -> str:
    header, *rows = lines(results)
    rule = ["---", *("---:" for _ in header[1:])]
    table = "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])
    return f"{caption(results)}\n\n{table}\n\n{NOTE}\n"


def table(results: Sequence[Result]) -> Table:
    from rich import box
    from rich.table import Table

    header, *rows = lines(results)
    shown = Table(title=caption(results), title_justify="left", box=box.SIMPLE_HEAD)
    for number, heading in enumerate(header):
        shown.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    return shown


def picture(results: Sequence[Result], path: Path) -> None:
    """Accuracy on the tasks learned so far, after each task, with its 95 % interval where few methods leave room."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = by_method(results)
    crowded = len(groups) > CROWD
    figure = Figure(figsize=(8.5, 5.2) if crowded else (7, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    curves = {}
    for method, group in groups.items():
        after = zip(*(metrics.average_accuracies(result.accuracy_matrix) for result in group), strict=True)
        curves[method] = [summarise(values) for values in after]
    n_tasks = max(len(points) for points in curves.values())
    colours = colormaps["tab20"].colors if crowded else colormaps["tab10"].colors  # type: ignore[attr-defined]
    for number, method in enumerate(sorted(curves, key=lambda name: -curves[name][-1].mean) if crowded else curves):
        points, colour = curves[method], colours[number % len(colours)]
        means = [100 * point.mean for point in points]
        label = f"{title(method)}  {means[-1]:.1f}"
        if len(points) == 1 < n_tasks:  # all classes at once: nothing is learned after anything
            axes.axhline(means[0], linestyle="--", linewidth=1, color=colour, label=label)
            continue
        tasks = range(1, len(points) + 1)
        axes.plot(tasks, means, marker="o", markersize=4 if crowded else 6, color=colour, label=label)
        if len(groups[method]) < BANDED and not crowded:
            for result in groups[method]:
                single = [100 * value for value in metrics.average_accuracies(result.accuracy_matrix)]
                axes.plot(tasks, single, linewidth=0.8, alpha=0.5, color=colour)
        elif not crowded:
            spread = [100 * (point.interval or 0) for point in points]
            low, high = zip(*((m - s, m + s) for m, s in zip(means, spread, strict=True)), strict=True)
            axes.fill_between(tasks, low, high, alpha=0.15, linewidth=0, color=colour)
    axes.set(xlabel="tasks learned", ylabel="accuracy on all of them so far, %", ylim=(0, 102))
    axes.set_xticks(range(1, n_tasks + 1))
    counts = "/".join(map(str, sorted({len(group) for group in groups.values()})))
    banded = not crowded and all(len(group) >= BANDED for group in groups.values())
    bands = ", 95 % intervals" if banded else "" if crowded else ", each run thin"
    axes.set_title(f"{caption(results)}; n = {counts}{bands}", fontsize="medium", loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    place: dict[str, Any] = {"loc": "lower left"}
    if crowded:
        place = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "fontsize": "small"}
    axes.legend(frameon=False, title="after the last task", **place)
    image = io.BytesIO()
    figure.savefig(image, format="png")

    def write(temporary: Path) -> None:
        temporary.write_bytes(image.getvalue())

    atomic(path, write)


def write(results: Sequence[Result], out: Path) -> tuple[Path, Path]:
    """The table as Markdown and the picture, named after the stream."""
    paths = out / f"{results[0].config.stream_label}.md", out / f"{results[0].config.stream_label}.png"
    write_text(paths[0], markdown(results))
    picture(results, paths[1])
    return paths
