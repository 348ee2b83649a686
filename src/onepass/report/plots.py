"""Results as curves: after each task, and during the stream where runs measured on their way."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.bench.metrics import FEWEST, Summary, average_accuracies, mean, prequential_curve, summarise
from onepass.errors import UsageError
from onepass.files import write_bytes
from onepass.methods.registry import is_reference
from onepass.report.footing import basis, even, mixed
from onepass.report.grouping import by_method, check_one_protocol
from onepass.report.series_names import title
from onepass.report.summary import caption

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from onepass.bench.result import Result

KINDS: dict[str, dict[str, None]] = {  # no dates in them: equal figures are equal files
    "png": {},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}
BANDED = FEWEST  # runs from which an interval tells more than the runs themselves
MOST_WITH_INTERVALS = 8  # methods up to which a picture has room for their intervals


@dataclass(frozen=True)
class Curve:
    """What each run of a method measured at the same places, in per cent."""

    method: str
    x: list[int]
    runs: list[list[float]]

    @property
    def points(self) -> list[Summary]:
        return [summarise(values) for values in zip(*self.runs, strict=True)]


@dataclass(frozen=True)
class Words:
    x: str
    y: str
    legend: str
    marker: str = ""  # given where there are few points, each with a number of its own


def picture(results: Sequence[Result], path: Path) -> None:
    """Accuracy on the tasks learned so far, after each task, with its 95 % interval where few methods leave room."""
    compared, apart = even(results)
    found = []
    for method, group in by_method(compared).items():
        runs = [[100 * value for value in average_accuracies(result.accuracy_matrix)] for result in group]
        found.append(Curve(method, list(range(1, len(runs[0]) + 1)), runs))
    words = Words("tasks learned", "accuracy on all of them so far, %", "after the last task", marker="o")
    _draw(compared, found, words, path, _basis(results, apart))


def curves(results: Sequence[Result], path: Path) -> None:
    """Accuracy on the tasks met so far every so many steps, of the runs that measured it."""
    compared, apart = even(results)
    looked = [result for result in compared if result.anytime]
    if not looked:
        raise UsageError("no run measured on its way: train with --anytime K to measure every K steps")
    found = []
    for method, group in by_method(looked).items():
        looks = [{point["step"]: 100 * mean(point["accuracy"]) for point in result.anytime} for result in group]
        steps = sorted(set.intersection(*(set(one) for one in looks)))
        if not steps:
            raise UsageError(f"the runs of {method} never measured at the same step: train them with one --anytime K")
        found.append(Curve(method, steps, [[one[step] for step in steps] for one in looks]))
    words = Words("steps", "accuracy on all tasks met so far, %", "at the last evaluation")
    _draw(looked, found, words, path, _basis(results, apart))


def prequential(results: Sequence[Result], path: Path) -> None:
    """How much of each stretch of the stream was predicted right just before it was learned."""
    from onepass.bench.result import WINDOW

    compared, _ = even(results)
    counted = [result for result in compared if result.prequential]
    if not counted:
        raise UsageError("no run predicted its batches before it learned them: train with --prequential")
    found = []
    for method, group in by_method(counted).items():
        runs = [[100 * value for value in prequential_curve(result.prequential)] for result in group]
        length = min(map(len, runs))
        last = min(result.steps for result in group)
        steps = [min(WINDOW * (number + 1), last) for number in range(length)]
        found.append(Curve(method, steps, [run[:length] for run in runs]))
    words = Words("steps", f"right before being learned, by {WINDOW} batches, %", "at the end")
    apart = [result for result in results if result.prequential and result.config.average is not None]
    _draw(counted, found, words, path, _basis(results, apart if mixed(results) else []))


def _basis(results: Sequence[Result], apart: Sequence[Result]) -> str:
    """By which weights the curves are, and which methods are left out because theirs are by others."""
    names = dict.fromkeys(title(result.config.method) for result in apart)
    left_out = f"; not by these, and left out: {', '.join(names)}" if names else ""
    said = basis(results)
    return f", {said}{left_out}" if said else ""


def _draw(results: Sequence[Result], found: list[Curve], words: Words, path: Path, basis: str) -> None:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    check_one_protocol(results)
    _kind(path)  # refused before anything is drawn
    crowded = len(found) > MOST_WITH_INTERVALS
    outside = crowded or not words.marker  # curves over steps leave no corner free
    size = (8.5 if outside else 7, 5.2 if crowded else 4.2)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    axes = figure.add_subplot()
    colours = colormaps["tab20"].colors if crowded else colormaps["tab10"].colors  # type: ignore[attr-defined]
    longest = max(len(curve.x) for curve in found)
    ranked = sorted(found, key=lambda curve: -curve.points[-1].mean) if crowded else found
    for number, curve in enumerate(ranked):
        colour = colours[number % len(colours)]
        if words.marker and len(curve.x) == 1 < longest:  # all classes at once: nothing is learned after anything
            level = curve.points[0].mean
            axes.axhline(level, linestyle="--", linewidth=1, color=colour, label=_label(curve))
        else:
            _line(axes, curve, colour, crowded, words.marker)
    if words.marker:
        axes.set_xticks(range(1, longest + 1))
    axes.set_title(_title(results, found, basis), fontsize="medium", loc="left")
    _furnish(axes, words, outside)
    save(figure, path)


def _furnish(axes: Axes, words: Words, outside: bool) -> None:
    axes.set(xlabel=words.x, ylabel=words.y, ylim=(0, 102))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    place: dict[str, Any] = {"loc": "lower left"}
    if outside:
        place = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "fontsize": "small"}
    axes.legend(frameon=False, title=words.legend, **place)


def _label(curve: Curve) -> str:
    return f"{title(curve.method)}  {curve.points[-1].mean:.1f}"


def _line(axes: Axes, curve: Curve, colour: Any, crowded: bool, marker: str) -> None:
    """The mean over runs, and beside it their interval, or the runs themselves where they are few."""
    points = curve.points
    style = "--" if is_reference(curve.method) else "-"
    size = 4 if crowded else 6
    marker = marker if len(curve.x) > 1 else "o"  # a line of one point shows nothing else
    means = [point.mean for point in points]
    axes.plot(curve.x, means, style, marker=marker, markersize=size, color=colour, label=_label(curve))
    if crowded:
        return
    if len(curve.runs) < BANDED:
        for run in curve.runs:
            axes.plot(curve.x, run, linewidth=0.8, alpha=0.5, color=colour)
        return
    low = [point.mean - (point.interval or 0) for point in points]
    high = [point.mean + (point.interval or 0) for point in points]
    axes.fill_between(curve.x, low, high, alpha=0.15, linewidth=0, color=colour)


def _title(results: Sequence[Result], found: list[Curve], basis: str) -> str:
    sizes = sorted({len(curve.runs) for curve in found})
    bands = ", 95 % intervals" if sizes[0] >= BANDED else ", each run thin"
    counts = "/".join(map(str, sizes))
    return f"{caption(results)}{basis}; n = {counts}{'' if len(found) > MOST_WITH_INTERVALS else bands}"


def _kind(path: Path) -> str:
    kind = path.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise UsageError(f"{path}: pictures are drawn as {', '.join('.' + name for name in KINDS)}; give one of these")
    return kind


def image(figure: Figure, kind: str) -> bytes:
    """A figure as a file of a kind."""
    import matplotlib

    found = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "onepass", "pdf.fonttype": 42}):  # 42: fonts that journals accept
        figure.savefig(found, format=kind, metadata=KINDS[kind])
    return found.getvalue()


def save(figure: Figure, path: Path) -> None:
    """PNG, SVG or PDF by the path's suffix, in place at once."""
    write_bytes(path, image(figure, _kind(path)))
