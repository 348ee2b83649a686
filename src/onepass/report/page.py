"""Stored results as one page that needs no network: numbers are worked out here, templates/*.js draw them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from onepass import __version__
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.config import unknown
from onepass.errors import UsageError
from onepass.methods.registry import is_reference
from onepass.report import footing, grouping, series_names, significance
from onepass.report import summary as report
from onepass.report.page_rows import Printed, comparable, count, row
from onepass.report.series_names import Group
from onepass.report.tables import format_spread

SCRIPTS = ("nodes", "state", "charts", "table", "heat", "save", "main")


def render(
    results: Sequence[Result],
    baseline: str = "",
    printed: Printed = lambda *place: None,
    paper: Sequence[dict[str, Any]] = (),
) -> str:
    """The whole page, with differences to a baseline if one is given, and what of the paper stands below.

    Names of classes, methods and folders are data: as JSON without `<` they cannot become markup.
    """
    shown = {**document(results, baseline, printed), "paper": paper}
    data = json.dumps(shown, separators=(",", ":")).replace("<", "\\u003c")
    folder = files("onepass.report") / "templates"
    html, css, *scripts = (
        (folder / name).read_text(encoding="utf-8")
        for name in ("report.html", "report.css", *(f"{script}.js" for script in SCRIPTS))
    )
    page = html.replace("/* report.css */", css).replace("/* scripts */", "\n".join(scripts))
    return page.replace("/* report.json */", data)  # last: it may hold anything, markers too


def document(results: Sequence[Result], baseline: str = "", printed: Printed = lambda *place: None) -> dict[str, Any]:
    """All that the page shows. Accuracies are fractions; a summary carries its text as the tables write it."""
    if not results:
        raise UsageError("no stored runs to show; make some first: onepass compare er er-fsl --runs 3")
    named = series_names.named(_grouped(grouping.deduplicate(results)))
    series = list(dict.fromkeys(label for label, _, _ in named))
    runs = [run for _, _, group in named for run in group]
    even = footing.mixed(runs)  # then all is by last weights, and an average has a column of its own
    groups = [
        {"series": series.index(label), "stream": stream, **row(group, printed, even)} for label, stream, group in named
    ]
    panels = _panels(groups, [comparable(group, even) for _, _, group in named], baseline)
    if baseline and not any(panel["differences"] for panel in panels):  # each has at least the baseline itself
        known = dict.fromkeys(group[0].config.method for _, _, group in named)
        rivals = [method for method in known if not is_reference(method)]
        raise unknown("baseline", baseline, rivals, "methods that can be compared here")
    names = {name: head.removesuffix(" %") for name, (head, _) in report.COLUMNS.items()}
    if footing.AVERAGE in footing.kinds(runs):
        names["final_accuracy"] = "by last weights" if even else "by average"
    if even:
        names = {"final_accuracy": names.pop("final_accuracy"), "by_average": "by average", **names}
    measured = [name for name in names if any(group["summary"].get(name) for group in groups)]
    return {
        "about": _about(runs, len(results)),
        "series": series,
        "baseline": baseline and series_names.title(baseline),
        "streams": list(dict.fromkeys(panel["stream"] for panel in panels)),
        "memories": sorted({panel["memory"] for panel in panels}),
        "columns": [[name, names[name]] for name in measured],
        "groups": groups,
        "panels": panels,
    }


def _grouped(runs: list[Result]) -> list[Group]:
    """Runs that differ in their seed alone, whatever was measured on their way."""
    groups: dict[str, Group] = {}
    for run in runs:
        groups.setdefault(grouping.unmeasured(run.config).key, []).append(run)
    for group in groups.values():
        group.sort(key=lambda run: run.config.seed)
    return list(groups.values())


def _about(runs: list[Result], stored: int) -> list[str]:
    methods, streams = {run.config.method for run in runs}, sorted({run.config.stream_label for run in runs})
    lines = [f"{count(len(runs), 'run')} of {count(len(methods), 'method')} on {', '.join(streams)}."]
    if everywhere := series_names.common([run.config for run in runs]):
        lines.append(f"In all rows: {', '.join(series_names.spelt(*pair) for pair in everywhere.items())}.")
    if footing.mixed(runs):
        lines.append(
            "Some rows predict by an average of their weights and others by their last weights: all figures, bars and "
            "curves are by last weights unless they say by average."
        )
    elif basis := footing.basis(runs):
        lines.append(f"Figures are {basis} unless they say otherwise.")
    if stored > len(runs):
        lines.append(f"Stored more than once, counted once: {stored - len(runs)}.")
    versions = [
        f"{name} {' and '.join(found)}"
        for name in ("onepass", "torch")
        if (found := sorted({str(run.host[name]) for run in runs if name in run.host}))
    ]
    return [*lines, *([f"Trained by {', '.join(versions)}."] if versions else []), f"Page by onepass {__version__}."]


def _panels(entries: list[dict[str, Any]], groups: list[Group], baseline: str) -> list[dict[str, Any]]:
    """What is compared with each other: one stream, one memory; methods without a memory stand beside every memory."""
    panels = []
    for stream in sorted({entry["stream"] for entry in entries}, key=series_names.by_numbers):
        places = [place for place, entry in enumerate(entries) if entry["stream"] == stream]
        for memory in sorted({entries[place]["memory"] for place in places} - {0}) or [0]:
            chosen = [place for place in places if entries[place]["memory"] in (0, memory)]
            chosen.sort(key=lambda place: -_height(entries[place]))
            ranked = [place for place in chosen if not entries[place]["reference"] and _height(entries[place]) >= 0]
            rivals: dict[str, dict[int, float]] = {}
            for place in chosen:
                if groups[place] and not is_reference(groups[place][0].config.method):
                    rivals[str(place)] = {run.config.seed: run.final_accuracy for run in groups[place]}
            best = significance.best(rivals)
            bases = [place for place in rivals if groups[int(place)][0].config.method == baseline]
            bases.sort(key=lambda place: _changes(groups[int(place)][0].config))
            differences = _differences(rivals, bases[0]) if bases else {}
            panels.append(
                {
                    "stream": stream,
                    "memory": memory,
                    "groups": chosen,  # the best first
                    "ranks": [ranked.index(place) + 1 if place in ranked else None for place in chosen],
                    "best": best and int(best),
                    "differences": differences,
                }
            )
    return panels


def _height(entry: dict[str, Any]) -> float:
    """The mean final accuracy; below 0 where there is none."""
    found = entry["summary"]["final_accuracy"]
    return -1.0 if found is None else float(found["mean"])


def _changes(config: RunConfig) -> int:
    """In how many settings it differs from what it is when nothing is said; of a method not imported, all count."""
    if config.learner_config.foreign:
        return len(config.learner_config.to_json())
    plain = RunConfig(config.method, config.stream, net=config.net).learner_config.to_json()
    return sum(value != plain[name] for name, value in config.learner_config.to_json().items())


def _differences(rivals: dict[str, dict[int, float]], base: str) -> dict[str, Any]:
    """What each of the others has more than the baseline on the same seeds."""
    own = {base: {"mean": 0.0, "text": "baseline", "real": False}}
    return own | {
        place: {
            "mean": found.mean,
            "text": f"{format_spread(found, '+')} ({found.n})",
            "real": significance.significant(found),
        }
        for place, found in significance.against(rivals, base).items()
        if found.mean is not None
    }
