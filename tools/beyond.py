"""The tables of docs/beyond.md, from stored runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import variance

from matplotlib.figure import Figure
from scipy.stats import spearmanr

from onepass import metrics, pictures, report
from onepass.errors import UsageError
from onepass.methods import METHODS
from onepass.paper import table1
from onepass.results import Result, RunConfig
from onepass.statistics import Difference, against, holm, paired, real
from onepass.store import key
from onepass.tables import figure

TITLES = {"cifar10": "CIFAR-10", "cifar100": "100 classes of Tiny ImageNet"}  # the latter in CIFAR-100's layout
CHOSEN = "decay 0.98"
BOLD = (
    "In brackets the number of seeds. Bold: real by a paired t test over seeds, Holm-adjusted in its column (p < 0.05)."
)
PLUS, RIVALS = "er-fsl+", ("er-fsl", "ocm", "pcr", "scr", "er-ace", "iid", "iid++")
REFERENCES = ("iid", "iid++")
WORST = 2  # the measure that one task alone does not have
NOT_RUN = Difference(None, None, None, 0)
Seeds = dict[int, float]


def signed(difference: Difference) -> str:
    """In points, with its interval and n; bold where it is real."""
    if difference.mean is None:
        return "not run"
    text = f"{figure(difference.mean, difference.interval, '+')} ({difference.n})"
    return f"**{text}**" if real(difference) else text


def rows(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(cells) + " |" for cells in body)])


def averages(folder: Path) -> str:
    """Every average that was kept beside a run minus the chosen one, a column for each method and stream."""
    found: dict[tuple[str, str], dict[str, Seeds]] = {}
    for path in sorted(folder.glob("*.json")):
        values = json.loads(path.read_text())
        config = values["config"]
        column = found.setdefault((config["stream"], config["method"]), {})
        for name, accuracies in values["accuracy"].items():
            column.setdefault(name, {})[config["seed"]] = metrics.mean(accuracies)
    if not found:
        return "Not run yet."
    heads = ["kept", *(f"{report.title(method)}, {TITLES.get(stream, stream)}" for stream, method in found)]
    chosen = [CHOSEN, *(report.cell(metrics.summarise(list(column[CHOSEN].values()))) for column in found.values())]
    differences = [against(column, CHOSEN) for column in found.values()]
    names = list(dict.fromkeys(name for column in differences for name in column))
    titles = {"last": "the last weights"}
    body = [[titles.get(name, name), *(signed(column.get(name, NOT_RUN)) for column in differences)] for name in names]
    note = f"Points above or below {CHOSEN} beside the same training. {BOLD}"
    return "\n".join([rows(heads, [chosen, *body]), "", note])


def with_both(results: Sequence[Result]) -> dict[str, list[Result]]:
    """The runs of each method that kept an average and looked on their way."""
    found = [one for one in results if one.accuracy_matrix_average and one.anytime]
    if found:
        report.check_one_protocol(found)
    return report.by_method(found)


def last_and_average(results: Sequence[Result]) -> str:
    """Each method by its last weights and by their average: at the end, on the way, and at its worst."""
    groups = with_both(results)
    if not groups:
        return "Not run yet."
    # For each method, each side (last weights, average) and each measure (final, anytime, worst case) a value a run.
    sides = {
        name: [list(zip(*map(side, group), strict=True)) for side in (_last, _average)]
        for name, group in groups.items()
    }
    body = [[report.title(name)] for name in groups]
    for measure in range(3):
        pairs = [(last[measure], average[measure]) for last, average in sides.values()]
        single = [measure == WORST and len(group[0].accuracy_matrix) == 1 for group in groups.values()]
        found = [NOT_RUN if alone else paired(*reversed(pair)) for pair, alone in zip(pairs, single, strict=True)]
        adjusted = holm([difference.p for difference in found])
        for row, pair, alone, one, p in zip(body, pairs, single, found, adjusted, strict=True):
            row += ["-", "-"] if alone else [report.cell(metrics.summarise(pair[0])), signed(replace(one, p=p))]
    for row, group in zip(body, groups.values(), strict=True):
        row.append(", ".join(str(result.config.seed) for result in group))
    measures = ("final", "anytime", "worst case")
    heads = ["row", *(f"{name}, {side}" for name in measures for side in ("last weights", "average")), "seeds"]
    note = f"Average: points above the last weights of the same runs. {BOLD}"
    return "\n".join([rows(heads, body), "", note, "", noise(groups)])


def noise(groups: Mapping[str, Sequence[Result]]) -> str:
    """How much of what lies between rows is noise: spread between seeds, and how far ranks agree with the paper's."""
    cells = {name: printed_cell(group[0].config) for name, group in groups.items()}
    theirs = {name: cell[0] for name, cell in cells.items() if cell}
    lines = [
        "Deviation of the final accuracy between seeds of one row, pooled, and agreement with the paper:",
        "",
    ]
    for side, measures in {"last weights": _last, "average": _average}.items():
        values = {name: [measures(one)[0] for one in group] for name, group in groups.items()}
        several = [runs for runs in values.values() if len(runs) > 1]
        parts = []
        if several:
            freedom = sum(len(runs) - 1 for runs in several)
            spread = math.sqrt(sum((len(runs) - 1) * variance(runs) for runs in several) / freedom)
            parts.append(f"{100 * spread:.1f} points ({len(several)} rows)")
        if len(theirs) > 2:
            agreement = spearmanr([metrics.mean(values[name]) for name in theirs], list(theirs.values())).statistic
            parts.append(f"rank correlation with the paper's column {agreement:.2f} ({len(theirs)} rows)")
        lines.append(f"- by {side}: " + ("; ".join(parts) or "too few runs"))
    return "\n".join(lines)


def printed_cell(config: RunConfig) -> tuple[float, float] | None:
    """The paper's mean and interval for a run's row and column, if it has that row."""
    return table1(config.method, config.stream, getattr(config.settings, "memory", 0))


def claim(results: Sequence[Result]) -> str:
    """ER-FSL+ and its rivals, these by their last weights and by their averages, paired over common seeds.

    ER-FSL's average is ER-FSL+ where that is nothing but the average, and IID and IID++ meet other streams: no test.
    """
    ours = report.by_method([one for one in results if one.config.method == PLUS and one.anytime]).get(PLUS, [])
    if not ours:
        return "Not run yet."
    groups = with_both([one for one in results if one.config.method in RIVALS])
    report.check_one_protocol([*ours, *(one for group in groups.values() for one in group)])
    own = {one.config.seed: _last(one)[0] for one in ours}
    body = [[report.title(PLUS), report.cell(metrics.summarise(list(own.values()))), "", "", ""]]
    body[0] += [_anytime(ours, _last), "", f"{METHODS[PLUS].cost:g}", str(len(ours))]
    finals, behind = [], []
    for side, untested in ((_last, REFERENCES), (_average, ("er-fsl", *REFERENCES))):
        values = {name: {one.config.seed: side(one)[0] for one in group} for name, group in groups.items()}
        finals.append(values)
        rivals = {name: seeds for name, seeds in values.items() if name not in untested}
        behind.append(against({PLUS: own, **rivals}, PLUS))
    for name in RIVALS:
        group = groups.get(name, [])
        cells = [report.title(name)]
        for values, differences in zip(finals, behind, strict=True):
            cells += [report.cell(metrics.summarise(list(values[name].values()))) if group else "not run"]
            found = differences.get(name, NOT_RUN)
            cells += ["-" if found.mean is None else signed(found)]
        cells += [_anytime(group, _last), _anytime(group, _average), f"{METHODS[name].cost:g}", str(len(group))]
        body.append(cells)
    sides = ["final", "minus ER-FSL+", "its average", "minus ER-FSL+", "anytime", "its average"]
    heads = ["row", *sides, "FLOPs / ER", "n"]
    return "\n".join([rows(heads, body), "", f"Differences over common seeds. {BOLD}"])


def _anytime(group: Sequence[Result], side: Callable[[Result], tuple[float, float, float]]) -> str:
    return report.cell(metrics.summarise([side(one)[1] for one in group])) if group else "not run"


def curves(results: Sequence[Result], path: Path) -> None:
    """A panel for each method: accuracy on the way, each run thin and their mean, by last weights and by average."""
    groups, across = with_both(results), 5
    if not groups:
        return
    down = -(-len(groups) // across)
    drawn = Figure(figsize=(2.2 * across, 1.9 * down + 0.5), dpi=120, layout="constrained")
    panels = drawn.subplots(down, across, sharex=True, sharey=True, squeeze=False).flatten()
    for panel, (method, group) in zip(panels, groups.items(), strict=False):
        looks = [{look["step"]: look for look in one.anytime} for one in group]
        steps = sorted(set.intersection(*map(set, looks)))
        for side, colour, label in (("", "tab:orange", "last weights"), ("_average", "tab:blue", "average")):
            runs = [[100 * metrics.mean(one[step][f"accuracy{side}"]) for step in steps] for one in looks]
            for run in runs:
                panel.plot(steps, run, color=colour, linewidth=0.6, alpha=0.5)
            panel.plot(steps, [metrics.mean(at) for at in zip(*runs, strict=True)], color=colour, label=label)
        panel.set_title(f"{report.title(method)}, n = {len(group)}", fontsize="small", loc="left")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    for panel in panels[len(groups) :]:
        panel.set_visible(False)
    drawn.supxlabel("steps", fontsize="small")
    drawn.supylabel("accuracy on all tasks met so far, %", fontsize="small")
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    pictures.save(drawn, path)


def _last(result: Result) -> tuple[float, float, float]:
    return _measures(result.accuracy_matrix, [point["accuracy"] for point in result.anytime])


def _average(result: Result) -> tuple[float, float, float]:
    return _measures(result.accuracy_matrix_average, [point["accuracy_average"] for point in result.anytime])


def _measures(matrix: metrics.Matrix, looks: metrics.Matrix) -> tuple[float, float, float]:
    return metrics.final_accuracy(matrix), metrics.average_anytime(looks), metrics.worst_case(looks, matrix)


def changes(results: Sequence[Result]) -> str:
    """Each change to ER-FSL minus the runs without it, by their averages, a column for each stream."""
    import plus

    stored = {(key(result.config), result.config.seed): result for result in results}
    base, *others = plus.CHANGES
    columns: dict[str, dict[str, Seeds]] = {}
    used: dict[str, list[Result]] = {}
    for stream in TITLES:
        for name, change in plus.CHANGES.items():
            for seed in range(plus.RUNS):
                config = plus.config(change, stream, seed)
                if result := stored.get((key(config), seed)):
                    final = metrics.final_accuracy(result.accuracy_matrix_average)
                    columns.setdefault(stream, {}).setdefault(name, {})[seed] = final
                    used.setdefault(f"{name} on {stream}", []).append(result)
    columns = {stream: column for stream, column in columns.items() if base in column}
    if not columns:
        return "Not run yet."
    report.check_alike(used)
    if len({result.protocol.get("code") for group in used.values() for result in group}) > 1:
        raise UsageError("runs of several versions of candidates.py cannot stand in one table")
    first = [base, *(report.cell(metrics.summarise(list(column[base].values()))) for column in columns.values()), ""]
    differences = {stream: against(column, base) for stream, column in columns.items()}
    body = []
    for name in others:
        gains = [_gains(columns.get(stream, {}), name, base) for stream in TITLES]
        cells = [signed(found.get(name, NOT_RUN)) for found in differences.values()]
        body.append([name, *cells, verdict(gains, plus.RUNS)])
    heads = ["change", *(TITLES[stream] for stream in columns), "kept"]
    return "\n".join([rows(heads, [first, *body]), "", BOLD])


def _gains(column: Mapping[str, Seeds], name: str, base: str) -> list[float]:
    seeds = column.get(name, {}).keys() & column.get(base, {}).keys()
    return [column[name][seed] - column[base][seed] for seed in sorted(seeds)]


def verdict(gains: Sequence[Sequence[float]], runs: int) -> str:
    """The rule: better in the mean on every stream, and in all pairs but one at most.

    A change that fails on what is there cannot be kept: what is left need not be run.
    """
    done = [stream for stream in gains if len(stream) >= runs]
    lost = sum(gain <= 0 for stream in gains for gain in stream)
    if lost > 1 or any(metrics.mean(stream) <= 0 for stream in done):
        return "no"
    return "yes" if len(done) == len(gains) else "open"
