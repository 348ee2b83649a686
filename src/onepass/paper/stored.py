"""Which of the paper's tables and figures stored runs make up: each as a picture, a table and the paper's claims."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.data.catalog import is_path
from onepass.errors import UsageError
from onepass.paper import figures
from onepass.paper.experiments import ANALYSIS, EXPERIMENTS, Experiment, experiment
from onepass.paper.scales import Selection
from onepass.paper.tables import StoredResults, table, verdicts
from onepass.report import grouping, plots
from onepass.report.tables import Table

LEAST = 0.25  # share of an experiment's cells that must have a run: fewer are a comparison of another kind


def parts(results: Sequence[Result]) -> list[dict[str, Any]]:
    """What `report.page` shows of the paper."""
    return [_part(wanted, found) for wanted, found in _made_up(results)]


def others(results: Sequence[Result]) -> list[Result]:
    """The runs without those of figure 2's analysis, which are points of a figure and no methods to compare."""
    return [one for one in results if one.config.method != ANALYSIS]


def _made_up(results: Sequence[Result]) -> Iterator[tuple[Experiment, StoredResults]]:
    """Each run stands in one table or figure of a name: in that of which most is there."""
    stored = {grouping.unmeasured(one.config): one for one in results}
    streams = dict.fromkeys(config.stream for config in stored if not is_path(config.stream))
    for name in EXPERIMENTS:
        candidates = []
        for scale in ("paper", "slim", "small"):
            for stream in ("", *streams):
                try:
                    wanted = experiment(name, Selection(scale, stream))
                except UsageError:  # a stream that cannot stand for the paper's
                    continue
                found = {run: stored[run] for run in wanted.runs if run in stored and _tells(name, stored[run])}
                if name == "budget" and all(_updates(run) == 1 for run in found):  # table 1 says what these do
                    continue
                share = sum(any(run in found for run in cell.runs) for cell in wanted.cells) / len(wanted.cells)
                if share >= LEAST:
                    candidates.append((share, wanted, found))
        shown: set[RunConfig] = set()
        for _, wanted, found in sorted(candidates, key=lambda one: -one[0]):
            if not found.keys() <= shown:
                shown |= found.keys()
                yield wanted, found


def _updates(run: RunConfig) -> int:
    found: int = run.learner_config.to_json().get("updates", 1)
    return found


def _tells(name: str, result: Result) -> bool:
    """Whether a run recorded what the figure shows; figure 4 needs facts that 0.1.0 did not store."""
    return name != "figure4" or "features" in result.protocol


def _part(wanted: Experiment, found: StoredResults) -> dict[str, Any]:
    tables, image = [verdicts(wanted, found)], ""
    if wanted.name in figures.FIGURES:
        image = base64.b64encode(plots.image(figures.draw(wanted, found), "svg")).decode()
    else:
        tables.insert(0, table(wanted, found))
    return {
        "title": f"{wanted.title}; {wanted.note}",
        "image": image,
        "tables": [_plain(one) for one in tables if one is not None],
    }


def _plain(table: Table) -> dict[str, Any]:
    rows = [[[cell.text, cell.bold] for cell in row] for row in table.rows]
    return {"title": table.title, "heads": table.heads, "rows": rows, "notes": table.notes}
