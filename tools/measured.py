"""Methods on one stream: what `onepass compare` prints, the best first, with its conditions and command above it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from index import DATA
from onepass.bench.result import Result
from onepass.data.catalog import find_stream, is_path
from onepass.methods.registry import METHODS, trains
from onepass.report import grouping, tables
from onepass.report import summary as report

ACCURACY = ("final accuracy %", "by last weights %", "by average %")
COLUMNS = ("method", *ACCURACY, "forgetting %", "just after learning %", "lowest class %", "runs")


def measured(results: Sequence[Result]) -> str:
    if not results:
        return "Not run yet."
    found = report.overview(results)
    kept = [place for place, head in enumerate(found.heads) if head in COLUMNS]
    ends = [fmean(one.final_accuracy for one in group) for group in grouping.by_method(results).values()]
    ranked = [row for _, row in sorted(zip(ends, found.rows, strict=True), key=lambda pair: -pair[0])]
    rows = [[row[place] for place in kept] for row in ranked]
    title = f"{_conditions(results)}:\n`{_command(results)}`"
    heads = [found.heads[place] for place in kept]
    notes = [note for note in found.notes if note != report.HELD]  # a column that is not among them
    return tables.markdown(replace(found, title=title, heads=heads, rows=rows, notes=notes))


def _conditions(results: Sequence[Result]) -> str:
    one = _trained(results)
    data = DATA.get(one.data["sha256"], one.config.stream_label)
    test = "held-back training samples" if one.config.validate else "test samples"
    seeds = sorted({len(group) for group in grouping.by_method(results).values()})
    n = " to ".join(map(str, dict.fromkeys([seeds[0], seeds[-1]])))
    share = f", {one.config.fraction:.0%} of the stream" if one.config.fraction < 1 else ""
    memory = f", memory {_memory(results)}" if _memory(results) else ""
    learned = f"{data}{share}, {one.config.tasks} tasks, `{one.config.net}`{memory}"
    return f"{learned}, n = {n} seeds, mean ± 95 % interval, {test}"


def _command(results: Sequence[Result]) -> str:
    config, names = _trained(results).config, list(grouping.by_method(results))
    methods = "METHOD ..." if set(names) == set(METHODS) else " ".join(names)
    words = ["onepass compare", methods, "--stream", config.stream_label if is_path(config.stream) else config.stream]
    words += ["--net", config.net]
    words += ["--tasks", str(config.tasks)] if config.tasks != find_stream(config.stream).n_tasks else []
    words += ["--fraction", f"{config.fraction:g}"] if config.fraction < 1 else []
    words += ["--memory", str(_memory(results))] if _memory(results) else []
    return " ".join([*words, "--runs", str(max(map(len, grouping.by_method(results).values())))])


def _trained(results: Sequence[Result]) -> Result:
    """A run whose network is the one that was asked for: statistics have none."""
    return next((one for one in results if trains(one.config.method)), results[0])


def _memory(results: Sequence[Result]) -> int:
    return max(getattr(one.config.settings, "memory", 0) for one in results)
