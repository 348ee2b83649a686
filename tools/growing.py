"""What a step takes as memory, classes and images grow: a table and a picture of results/benchmarks/growth.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from cells import ROOT
from onepass.methods.registry import METHODS
from onepass.report import plots

AXES = {"memory": "samples in the memory", "classes": "classes", "side": "side of the images"}


def rows(path: str) -> list[dict[str, Any]]:
    return list(json.loads((ROOT / path).read_text())["rows"]) if (ROOT / path).exists() else []


def growth(path: str) -> str:
    """From one end of each axis to the other."""
    found = rows(path)
    if not found:
        return "Not measured yet."
    lines = [
        "![CPU time of a step and peak memory against memory, classes and image size](growth.png)",
        "",
        "| method | grows | from | to | ms a step | | MB | |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for axis, name in AXES.items():
        for method in dict.fromkeys(row["method"] for row in found):
            points = [row for row in found if (row["axis"], row["method"]) == (axis, method)]
            first, last = points[0], points[-1]
            times = " | ".join(_short(point["ms"]) for point in (first, last))
            sizes = f"{first['peak'] / 1e6:.0f} | {last['peak'] / 1e6:.0f}"
            ends = f"{first['size']:,} | {last['size']:,}"
            lines.append(f"| {METHODS[method].title} | {name} | {ends} | {times} | {sizes} |")
    return "\n".join(lines)


def _short(ms: float) -> str:
    return f"{ms:.2f}" if ms < 10 else f"{ms:.0f}"


def _tick(size: int) -> str:
    return str(size) if size < 10**4 else f"{size:.0e}".replace("e+0", "e")


def picture(path: str, target: Path) -> None:
    found = rows(path)
    if not found:
        return
    figure = Figure(figsize=(10, 5.5), layout="constrained")
    panels = figure.subplots(2, len(AXES), sharey="row")
    for column, (axis, name) in enumerate(AXES.items()):
        for method in dict.fromkeys(row["method"] for row in found):
            points = [row for row in found if (row["axis"], row["method"]) == (axis, method)]
            sizes = [row["size"] for row in points]
            panels[0, column].loglog(sizes, [row["ms"] for row in points], marker="o", label=METHODS[method].title)
            panels[1, column].loglog(sizes, [row["peak"] / 1e6 for row in points], marker="o")
        panels[1, column].set_xlabel(name)
        for panel in panels[:, column]:
            panel.set_xticks(sizes, [_tick(size) for size in sizes], minor=False)
            panel.minorticks_off()
            panel.grid(alpha=0.3)
    panels[0, 0].set_ylabel("CPU ms a step")
    panels[1, 0].set_ylabel("peak MB")
    panels[0, 0].legend(fontsize=8)
    plots.save(figure, target)
