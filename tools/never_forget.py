"""The tables of studies/never_forget: what each change does, how far each size gets, who learns from few samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from cells import BOLD, rows, signed
from onepass.bench import metrics
from onepass.bench.result import Result
from onepass.config import options
from onepass.methods.registry import METHODS
from onepass.report import summary as report
from onepass.report.significance import Difference, against

STREAMS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
SIZE = {"filters", "pairs", "threshold"}  # what a size of Patch-LDA may have of its own
APART = "--reach 0.0"  # parts that do not overlap: the default when the other changes were tried
ALONE = "Patch-LDA, 400 filters"
NOT_RUN = Difference(None, None, None, 0)
Finals = dict[int, float]  # by seed
Row = dict[str, Finals]  # by column
Name = Callable[[Result], str]


def changes(results: Iterable[Result]) -> str:
    """Patch-LDA as it is and without overlap, and what each change of either has more or less on the same seeds."""
    found = _by(results, lambda one: _changed(one, but={"filters"}))
    if not found:
        return "Not run yet."
    body = []
    for base, title in {"": "as it is", APART: f"`{APART}`"}.items():
        family = {name: row for name, row in found.items() if (APART in name) == (base == APART)}
        if base in family:
            body += [[title, *(_cell(family[base].get(name, {})) for name in STREAMS)], *_gains(family, base)]
    return "\n".join([rows(["Patch-LDA", *STREAMS.values()], body), "", BOLD])


def _gains(found: Mapping[str, Row], base: str) -> list[list[str]]:
    by_stream = {name: against({k: group.get(name, {}) for k, group in found.items()}, base) for name in STREAMS}
    added = {setting: setting.replace(base, "").replace("  ", " ").strip() for setting in sorted(found)}
    beside = " with it" if base else ""
    return [
        [f"`{added[one]}`{beside}", *(signed(gains.get(one, NOT_RUN)) for gains in by_stream.values())]
        for one in added
        if one != base
    ]


def as_it_is(results: Iterable[Result]) -> list[Result]:
    """Patch-LDA, of any size, with nothing else changed."""
    return [one for one in results if one.config.method == "patch-lda" and not _changed(one, but=SIZE)]


def sizes(results: Iterable[Result], costs: Path) -> str:
    """Final accuracy of each size, beside what a step costs and what is kept."""
    found = _by(results, lambda one: " ".join([_filters(one), _changed(one, but={"filters"})]).strip())
    if not found:
        return "Not run yet."
    known = json.loads(costs.read_text())
    body = []
    for size, group in sorted(found.items(), key=lambda pair: known[f"patch-lda {pair[0]}"]["bytes"]):
        cost = known[f"patch-lda {size}"]
        time = f"{cost['time']:.2f}" if "time" in cost else "not measured"
        cells = [f"{cost['flops']:.2f}", time, f"{cost['bytes'] / 1e6:,.0f}"]
        filters, _, more = size.partition(" ")
        body.append(
            [f"{filters}, `{more}`" if more else filters, *cells, *(_cell(group.get(name, {})) for name in STREAMS)]
        )
    heads = ["filters", "FLOPs / ER", "time / ER", "MB", *(f"{title} % (seeds)" for title in STREAMS.values())]
    return rows(heads, body)


def _filters(result: Result) -> str:
    return str(result.config.learner_config.to_json()["filters"])


def experts(results: Iterable[Result], costs: Path) -> str:
    """Patch-LDA alone, and beside networks that are trained by replay: what they gain on the same seeds."""
    found = _by(results, _beside)
    if ALONE not in found:
        return "Not run yet."
    known = json.loads(costs.read_text())
    gains = {name: against({k: group.get(name, {}) for k, group in found.items()}, ALONE) for name in STREAMS}
    body = []
    for name, group in sorted(found.items()):
        cells = [f"{_work(name, known):.2f}", *(_cell(group.get(stream, {})) for stream in STREAMS)]
        body.append([name, *cells, *(signed(g.get(name, NOT_RUN)) if name != ALONE else "-" for g in gains.values())])
    heads = [*STREAMS.values(), *(f"{title}, gained" for title in STREAMS.values())]
    return "\n".join([rows(["what predicts", "FLOPs / ER", *heads], body), "", BOLD])


def _beside(result: Result) -> str:
    settings = result.config.learner_config.to_json()
    if result.config.method == "patch-lda":
        return f"Patch-LDA, {settings['filters']:,} filters"
    return f"{ALONE}, and {METHODS[result.config.method].title}"


def _work(name: str, known: Mapping[str, Mapping[str, float]]) -> float:
    first, _, network = name.partition(", and ")
    expert = known["patch-lda " + first.split()[1].replace(",", "")]["flops"]
    return expert + sum(method.cost for method in METHODS.values() if method.title == network)


def few(results: Sequence[Result], more: Iterable[Result] = ()) -> str:
    """Final accuracy of each method after so many samples a class; of others' runs those with the same settings."""
    same = {(one.config.method, one.config.learner_config) for one in results}
    results = [*results, *(one for one in more if (one.config.method, one.config.learner_config) in same)]
    found = _by(results, lambda one: one.config.method, lambda one: str(_each(one)))
    if not found:
        return "Not run yet."
    amounts = sorted({amount for group in found.values() for amount in group}, key=int)
    ranked = sorted(found.items(), key=lambda pair: [-_mean(pair[1].get(amount, {})) for amount in amounts])
    body = [[METHODS[name].title, *(_cell(group.get(amount, {})) for amount in amounts)] for name, group in ranked]
    return rows(["method", *(f"{amount} a class % (seeds)" for amount in amounts)], body)


def _each(result: Result) -> int:
    classes = sum(len(task) for task in result.protocol["tasks"])
    return round(int(result.data["learned"]) / classes)


def _by(results: Iterable[Result], row: Name, column: Name = lambda one: one.config.stream) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for one in results:
        found.setdefault(row(one), {}).setdefault(column(one), {})[one.config.seed] = one.final_accuracy
    return found


def _changed(result: Result, but: Collection[str]) -> str:
    settings = result.config.learner_config
    return " ".join(
        f"--{name} {str(getattr(settings, name)).lower()}"
        for name, entry in options(settings).items()
        if name not in but and getattr(settings, name) != entry.default
    )


def _cell(finals: Mapping[int, float]) -> str:
    if not finals:
        return "not run"
    values = list(finals.values())
    if len(values) > 2:
        return f"{report.cell(metrics.summarise(values))} ({len(values)})"
    return f"{', '.join(f'{100 * value:.1f}' for value in values)} ({len(values)})"


def _mean(finals: Mapping[int, float]) -> float:
    return sum(finals.values()) / len(finals) if finals else 0.0
