"""What keeping and serving a learner costs, and what a served one came through: from results/benchmarks and a soak."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from onepass.methods.registry import METHODS

KEPT = {
    "partial_fit_over_observe": "`partial_fit` over `observe`",
    "prediction_over_forward": "one prediction over the bare forward pass",
}


def live(path: Path) -> str:
    """The columns are learners; a line for each ratio and figure."""
    found = json.loads(path.read_text())
    learners = {name: row for name, row in found.items() if isinstance(row, dict) and "autosave_share" in row}
    names = [f"{METHODS[name.partition(',')[0]].title},{name.partition(',')[2]}" for name in learners]
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]

    def line(title: str, cells: list[str]) -> None:
        lines.append(f"| {title} | " + " | ".join(cells) + " |")

    for key, title in KEPT.items():
        line(title, [f"{row[key]:.2f}" for row in learners.values()])
    line("autosave, share of learning", [f"{100 * row['autosave_share']:.2f} %" for row in learners.values()])
    line(
        "a file for prediction opens",
        [f"{1000 * row['open_prediction_file_seconds']:.0f} ms" for row in learners.values()],
    )
    line("images learned a second", [f"{row['images_a_second_learned']:.0f}" for row in learners.values()])
    line("predicted one by one", [f"{row['images_a_second_predicted_singly']:.0f}" for row in learners.values()])
    vectors = found["vectors_a_second_learned"]
    beside = (
        f"Vectors learned a second: {vectors['onepass']:,.0f} (SLDA); by `SGDClassifier.partial_fit` "
        f"{vectors['sgd']:,.0f}; by river {vectors['river']:,.0f}."
    )
    how = "CPU time, medians of alternating turns, one thread, 32x32 images: `python benchmarks/live.py`."
    return "\n".join([*lines, "", beside, "", how])


def serving(path: Path) -> str:
    """Ratios over turns of one run: the median, the lowest and the highest."""
    found: dict[str, dict[str, list[float]]] = json.loads(path.read_text())
    lines = [
        "| model | p95 of a prediction while learning, over idle | learning alone, over asked |",
        "|---|---:|---:|",
    ]
    for method, row in found.items():
        cells = [_spread(row[name]) for name in ("p95_learning_over_idle", "learning_alone_over_asked")]
        lines.append(f"| {METHODS[method].title} | " + " | ".join(cells) + " |")
    turns = len(next(iter(found.values()))["p95_learning_over_idle"])
    how = (
        f"Median, lowest and highest of {turns} turns of 10 s, 32x32 images, ten requests a second, a queue that is "
        "never empty: `python benchmarks/serve.py`."
    )
    return "\n".join([*lines, "", how])


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def soak(path: Path) -> str:
    """What happened in it, and what became of the images."""
    found: dict[str, Any] = json.loads(path.read_text())
    rows = [
        ("requests", f"{found['requests begun']:,}"),
        ("SIGKILL, SIGTERM", f"{found['server: killed']}, {found['server: stopped']}"),
        ("times the disk was full", f"{found['server: disk full']}"),
        ("bad images, each refused", f"{found['bad images refused']:,}"),
        ("slow clients told so", f"{found['slow clients told so']:,}"),
        ("images sent, learned", f"{found['images sent']:,}, {found['images learned']:,}"),
        ("lost, learned twice", f"{found.get('lost', 0)}, {found.get('learned twice', 0)}"),
        ("answers that are not promised", f"{found.get('answers that nobody promised', 0)}"),
        (
            "MB of the process, first and last third",
            f"{found['KiB in memory, first third'] / 976.6:.0f}, {found['KiB in memory, last third'] / 976.6:.0f}",
        ),
    ]
    return "\n".join([f"| in {found['minutes']:.0f} minutes | |", "|---|---:|", *(f"| {a} | {b} |" for a, b in rows)])
