"""Stored results as one page that needs no network: all numbers are worked out here, templates/report.js draws them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from onepass import __version__
from onepass.bench import metrics
from onepass.bench.metrics import Summary, summarise
from onepass.bench.result import WINDOW, Result
from onepass.bench.run_config import RunConfig
from onepass.bench.schema import conforms
from onepass.config import unknown
from onepass.errors import UsageError
from onepass.methods.registry import METHODS, is_reference, trains
from onepass.report import footing, grouping, series_names, significance
from onepass.report import summary as report
from onepass.report.plots import BANDED
from onepass.report.series_names import Group
from onepass.report.tables import format_spread

# Mean and interval, in per cent, that the paper prints for a method, a stream and a memory, if it does.
Printed = Callable[[str, str, int], tuple[float, float] | None]
PAPER_NET, PAPER_RUNS = "resnet18", 10
DIGITS = 6
LONGEST_TEXT = 160  # letters of a fact that differs between runs


def render(results: Sequence[Result], baseline: str = "", printed: Printed = lambda *place: None) -> str:
    """The whole page, with differences to a baseline if one is given.

    Names of classes, methods and folders are data: as JSON without `<` they cannot become markup.
    """
    data = json.dumps(document(results, baseline, printed), separators=(",", ":")).replace("<", "\\u003c")
    folder = files("onepass.report") / "templates"
    html, css, js = ((folder / f"report.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    page = html.replace("/* report.css */", css).replace("/* report.js */", js)
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
        {"series": series.index(label), "stream": stream, **_entry(group, printed, even)}
        for label, stream, group in named
    ]
    panels = _panels(groups, [_shown(group, even) for _, _, group in named], baseline)
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
    lines = [f"{_count(len(runs), 'run')} of {_count(len(methods), 'method')} on {', '.join(streams)}."]
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


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _shown(group: Group, even: bool) -> Group:
    """The runs as they stand beside the others: none of a method whose last weights were not measured."""
    return [run.by_last_weights() for run in group if run.final_accuracy_last is not None] if even else group


def _entry(runs: Group, printed: Printed, even: bool) -> dict[str, Any]:
    """One group's numbers. Without a final accuracy it is in the table by its average alone, and in no chart."""
    group = _shown(runs, even) or runs
    config, matrices = runs[0].config, [run.accuracy_matrix for run in group]
    summary = {name: _summary([measure(run) for run in group]) for name, (_, measure) in report.COLUMNS.items()}
    if even:
        averaged = [run.final_accuracy for run in runs if run.config.average is not None]
        summary["by_average"] = _summary(averaged) if averaged else None
    averages = [metrics.average_accuracies(matrix) for matrix in matrices]
    rows = zip(*matrices, strict=True)
    drops = zip(*([_drop(matrix, task) for task in range(len(matrix) - 1)] for matrix in matrices), strict=True)
    entry = {
        "memory": getattr(config.settings, "memory", 0),
        "n": len(group),
        "megabytes": report.megabytes(runs).text,
        "summary": summary,
        "printed": _printed(runs, printed),
        "curve": _curve(list(range(1, len(matrices[0]) + 1)), averages),
        "anytime": _anytime_curve(group),
        "prequential": _prequential_curve(group),
        "matrix": [[round(metrics.mean(cells), DIGITS) for cells in zip(*row, strict=True)] for row in rows],
        "drops": [_summary(values) for values in drops],
        "classes": _classes(group),
        "cost": (METHODS[config.method].cost or None) if config.method in METHODS else None,  # the scale has no 0
        "trains": trains(config.method) or is_reference(config.method),
        "protocol": _protocol(runs),
    }
    if _shown(runs, even):
        return entry
    unseen: dict[str, Any] = {**dict.fromkeys(("curve", "anytime", "prequential", "cost")), "drops": []}
    return {**entry, **unseen, "summary": {**summary, **dict.fromkeys(report.COLUMNS)}}


def _summary(values: Sequence[float | None]) -> dict[str, Any] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    found = _numbers(summarise(known))
    return found if len(known) == len(values) else {**found, "text": f"{found['text']} (n = {len(known)})"}


def _numbers(found: Summary) -> dict[str, Any]:
    interval = None if found.interval is None else round(found.interval, DIGITS)
    return {"mean": round(found.mean, DIGITS), "interval": interval, "text": report.cell(found)}


def _drop(matrix: metrics.Matrix, task: int) -> float | None:
    """One task's share of the forgetting: that of a stream in which this task is the only old one."""
    return metrics.forgetting([[row[task], 0.0] for row in matrix[task:]])


def _classes(group: Group) -> dict[str, Any] | None:
    """How much of each class is right at the end, and what its images are taken for, over all runs that recorded it.

    Classes stand in the order in which they came if that is the same in all runs, else in that of the data.
    """
    n = max(len(run.confusion) for run in group)
    runs = [run for run in group if n and len(run.confusion) == n]
    if not runs:
        return None
    names = [_class_names(run) for run in runs]
    came = all(list(other) == list(names[0]) for other in names)
    order = list(names[0]) if came else range(n)
    place = {c: number for number, c in enumerate(order)}
    pooled: list[Counter[int]] = [Counter() for _ in order]
    for run in runs:
        for c, row in enumerate(run.confusion):
            pooled[place[c]].update({place[answer]: count for answer, count in metrics.predicted_as(row)})
    by_class = list(zip(*(run.class_accuracies for run in runs), strict=True))
    return {
        "names": [names[0][c] for c in order],
        "begins": _task_begins(runs[0]) if came else [],
        "accuracy": [_summary(by_class[c]) for c in order],
        "confusion": [[number for pair in sorted(row.items()) for number in pair] for row in pooled],
    }


def _task_classes(run: Result) -> list[list[str]]:
    """The names of each task's classes, if the run wrote them down."""
    tasks: Any = run.protocol.get("tasks")
    return tasks if conforms(tasks, list[list[str]]) else []


def _class_names(run: Result) -> dict[int, str]:
    """The name of each class, in the order in which they came; numbers, if the run did not write that down."""
    order: Any = run.protocol.get("class_order")
    names, n = dict.fromkeys(name for task in _task_classes(run) for name in task), len(run.confusion)
    if len(names) == n and conforms(order, list[int]) and sorted(order) == list(range(n)):
        return dict(zip(order, names, strict=True))
    return {c: str(c) for c in range(n)}


def _task_begins(run: Result) -> list[int]:
    """How many classes had come before each task that brought new ones."""
    tasks = _task_classes(run)
    came = [len({name for task in tasks[:done] for name in task}) for done in range(len(tasks) + 1)]
    return sorted({*came} - {0, came[-1]})


def _curve(x: list[int], runs: list[list[float]]) -> dict[str, Any]:
    """Means, with their intervals from BANDED runs on, and with the runs themselves below."""
    points = [summarise(values) for values in zip(*runs, strict=True)]
    banded = len(runs) >= BANDED
    return {
        "x": x,
        "mean": [round(point.mean, DIGITS) for point in points],
        "interval": [round(point.interval or 0, DIGITS) for point in points] if banded else [],
        "runs": [] if banded or len(runs) == 1 else [[round(value, DIGITS) for value in run] for run in runs],
    }


def _anytime_curve(group: Group) -> dict[str, Any] | None:
    looks = [{look["step"]: look["accuracy"] for look in run.anytime} for run in group if run.anytime]
    steps = sorted(set.intersection(*(set(run) for run in looks))) if looks else []
    if not steps:
        return None
    tasks = [len(looks[0][step]) for step in steps]
    begins = [step for step, before, now in zip(steps[1:], tasks, tasks[1:], strict=False) if now > before]
    return {**_curve(steps, [[metrics.mean(run[step]) for step in steps] for run in looks]), "begins": begins}


def _prequential_curve(group: Group) -> dict[str, Any] | None:
    runs = [metrics.prequential_curve(run.prequential) for run in group if run.prequential]
    length, last = min(map(len, runs), default=0), min(run.steps for run in group)
    steps = [min(WINDOW * (place + 1), last) for place in range(length)]
    return _curve(steps, [run[:length] for run in runs]) if length else None


def _printed(group: Group, printed: Printed) -> dict[str, Any] | None:
    """The paper's figure for this method, stream and memory, and what was done otherwise here."""
    config, memory = group[0].config, getattr(group[0].config.settings, "memory", 0)
    cell = printed(config.method, config.stream, memory)
    if cell is None:
        return None
    settings = {"memory": memory} if memory else {}
    paper = RunConfig(config.method, stream=config.stream, net=PAPER_NET, settings=settings)
    theirs = {**series_names.own(paper), **series_names.shared(paper)}
    differs = series_names.differing({**series_names.shared(config), **series_names.own(config)}, [theirs])
    if len(group) != PAPER_RUNS:
        differs.append(_count(len(group), "run"))
    return {**_numbers(Summary(cell[0] / 100, cell[1] / 100, PAPER_RUNS)), "differs": differs}


def _protocol(group: Group) -> list[list[str]]:
    """What was done, as names and texts; what differs between the runs of a group says so."""
    every = [_facts(run) for run in group]
    rows = []
    for name in every[0]:
        texts = list(dict.fromkeys(series_names.text(facts.get(name)) for facts in every))
        text = ", ".join(texts)
        short = len(texts) == 1 or len(text) < LONGEST_TEXT
        rows.append([name.replace("_", " "), text if short else "differs between runs"])
    return rows


def _facts(run: Result) -> dict[str, Any]:
    """What was asked for and, where it says more, what was done: 5 tasks, and the classes of each."""
    asked = {**run.config.to_json(), **run.config.learner_config.to_json()}
    asked["average"] = asked.get("average") or "none"
    done = {
        name if asked.get(name, value) == value else f"{name} as run": value for name, value in run.protocol.items()
    }
    data = {f"images {name}": value for name, value in run.data.items()}
    facts = {**asked, **done, **data, **run.host, "steps": run.steps, "seconds": round(run.seconds)}
    return {name: value for name, value in facts.items() if name not in ("method", "stream", "settings")}


def _panels(entries: list[dict[str, Any]], groups: list[Group], baseline: str) -> list[dict[str, Any]]:
    """What is compared with each other: one stream, one memory; methods without a memory stand beside every memory."""
    panels = []
    for stream in sorted({entry["stream"] for entry in entries}, key=series_names.by_numbers):
        places = [place for place, entry in enumerate(entries) if entry["stream"] == stream]
        for memory in sorted({entries[place]["memory"] for place in places} - {0}) or [0]:
            chosen = [place for place in places if entries[place]["memory"] in (0, memory)]
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
                    "groups": chosen,
                    "best": best and int(best),
                    "differences": differences,
                }
            )
    return panels


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
