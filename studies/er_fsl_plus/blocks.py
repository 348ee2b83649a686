"""The generated blocks of docs/beyond.md, from stored runs: tools/docs.py takes BLOCKS and PICTURES from here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import stdev, variance
from typing import Any

from matplotlib.figure import Figure
from scipy.stats import spearmanr, ttest_ind

import plus
from cells import BOLD, ROOT, printed_cell, rows, rows_of_the_paper, signed, stored
from headline import ANYTIME, BASELINES, FINAL, PLUS, WORST, by_average, by_last, contest, with_both
from onepass.bench import metrics
from onepass.bench.result import Result
from onepass.errors import UsageError
from onepass.methods.registry import METHODS
from onepass.report import grouping, plots, series_names
from onepass.report import summary as report
from onepass.report.significance import Difference, against, holm, paired, significant

TITLES = {"cifar10": "CIFAR-10", "cifar100": "100 classes of Tiny ImageNet"}  # the latter in CIFAR-100's layout
CHOSEN = "decay 0.98"
REFERENCES = ("iid", "iid++")
SIDES = {"": by_last, " by its average": by_average}
NOT_RUN = Difference(None, None, None, 0)
SWING = (
    "How much of this is the noise of a step? Deviation, in points, of one run's accuracy over ten evaluations, five "
    "steps apart, that end with its last step (their reach: highest minus lowest, mean over runs), and of different "
    "runs' last evaluations:"
)
Seeds = dict[int, float]


def averages(folder: Path) -> str:
    """Every average that was kept beside a run minus the chosen one, a column for each method and stream."""
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for values in runs:
        found.setdefault((values["config"]["stream"], values["config"]["method"]), []).append(values)
    if not found:
        return "Not run yet."
    titles = [f"{series_names.title(method)}, {TITLES.get(stream, stream)}" for stream, method in found]
    for title, group in zip(titles, found.values(), strict=True):
        _check_studies(title, group)
    columns = [_ends(group) for group in found.values()]
    chosen = [CHOSEN, *(report.cell(metrics.summarise(list(column[CHOSEN].values()))) for column in columns)]
    differences = [against(column, CHOSEN) for column in columns]
    names = list(dict.fromkeys(name for column in differences for name in column))
    last = {"last": "the last weights"}
    body = [
        [last.get(name, name), *(signed(column[name]) if name in column else "-" for column in differences)]
        for name in names
    ]
    note = f"Points above or below {CHOSEN} beside the same training. {BOLD}"
    swings = [swing(title, group) for title, group in zip(titles, found.values(), strict=True)]
    return "\n".join([rows(["kept", *titles], [chosen, *body]), "", note, "", SWING, "", *swings])


def _ends(group: Sequence[Mapping[str, Any]]) -> dict[str, Seeds]:
    ends: dict[str, Seeds] = {}
    for values in group:
        for name, accuracies in values["accuracy"].items():
            ends.setdefault(name, {})[values["config"]["seed"]] = metrics.mean(accuracies)
    return ends


def _check_studies(title: str, group: Sequence[Mapping[str, Any]]) -> None:
    """All runs of a column have the same settings, protocol and data but for what follows from the seed."""
    facts = [
        {
            "config": {k: v for k, v in values["config"].items() if k != "seed"},
            "data": values["data"]["sha256"],
            "protocol": {k: v for k, v in values["protocol"].items() if k not in grouping.BY_SEED},
        }
        for values in group
    ]
    if any(fact != facts[0] for fact in facts):
        raise UsageError(f"{title}: runs of several protocols cannot stand in one table")


def swing(title: str, group: Sequence[Mapping[str, Any]]) -> str:
    """How far the accuracy of one run moves over its last steps, beside how far runs lie apart at their ends."""
    parts = []
    for name, side in (("last", "last weights"), (CHOSEN, "average")):
        looks = [[metrics.mean(look) for look in values["looks"][name]] for values in group]
        within = math.sqrt(metrics.mean([variance(run) for run in looks]))
        reach = metrics.mean([max(run) - min(run) for run in looks])
        ends = [run[-1] for run in looks]
        between = f"{100 * stdev(ends):.1f}" if len(ends) > 1 else "n/a"
        parts.append(f"by the {side} {100 * within:.1f} (reach {100 * reach:.1f}), between runs {between}")
    return f"- {title}: {'; '.join(parts)} (n = {len(group)})"


def last_and_average(results: Sequence[Result]) -> str:
    """Each method by its last weights and by their average: at the end, on the way, and at its worst."""
    groups = with_both(results)
    if not groups:
        return "Not run yet."
    # For each method, each side (last weights, average) and each measure (final, anytime, worst case) a value a run.
    sides = {
        name: [list(zip(*map(side, group), strict=True)) for side in (by_last, by_average)]
        for name, group in groups.items()
    }
    body = [[series_names.title(name)] for name in groups]
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
    for side, measures in {"last weights": by_last, "average": by_average}.items():
        values = {name: [measures(one)[0] for one in group] for name, group in groups.items()}
        several = [runs for runs in values.values() if len(runs) > 1]
        parts = []
        if several:
            freedom = sum(len(runs) - 1 for runs in several)
            spread = math.sqrt(sum((len(runs) - 1) * variance(runs) for runs in several) / freedom)
            parts.append(f"{100 * spread:.1f} points ({len(several)} rows)")
            if len(several) > 1:
                parts.append(f"between the means of these rows {100 * stdev(map(metrics.mean, several)):.1f}")
        if len(theirs) > 2:
            agreement = spearmanr([metrics.mean(values[name]) for name in theirs], list(theirs.values())).statistic
            parts.append(f"rank correlation with the paper's column {agreement:.2f} ({len(theirs)} rows)")
        lines.append(f"- by {side}: " + ("; ".join(parts) or "too few runs"))
    return "\n".join(lines)


def claim(results: Sequence[Result]) -> str:
    """ER-FSL+ and its rivals, these by their last weights and by their averages.

    Paired over common seeds; IID and IID++ meet other streams, so they are compared by Welch's test, at the end alone:
    on the way they are asked for all classes from the first look on.
    """
    ours, groups = contest(results)
    if not ours:
        return "Not run yet."
    lines = [(name, side) for name in groups for side in SIDES]
    body = [[series_names.title(PLUS)], *([f"{series_names.title(name)}{side}"] for name, side in lines)]
    holds = []
    for measure, title in ((FINAL, "at the end"), (ANYTIME, "on the way")):
        own = {one.config.seed: by_average(one)[measure] for one in ours}
        body[0] += [report.cell(metrics.summarise(list(own.values()))), ""]
        rivals = [{one.config.seed: SIDES[side](one)[measure] for one in groups[name]} for name, side in lines]
        found = [behind(name, values, own, measure) for (name, _), values in zip(lines, rivals, strict=True)]
        adjusted = holm([one.p for one in found])
        found = [replace(one, p=p) for one, p in zip(found, adjusted, strict=True)]
        for row, values, one in zip(body[1:], rivals, found, strict=True):
            row += [report.cell(metrics.summarise(list(values.values())))]
            row += ["-" if one.mean is None else signed(one)]
        holds.append(f"- {title}, {standing({row[0]: one for row, one in zip(body[1:], found, strict=True)})}")
    body[0] += [f"{METHODS[PLUS].cost:g}", str(len(ours))]
    for row, (name, _) in zip(body[1:], lines, strict=True):
        row += [f"{METHODS[name].cost:g}", str(len(groups[name]))]
    heads = [
        "row",
        "final",
        f"minus {series_names.title(PLUS)}",
        "anytime",
        f"minus {series_names.title(PLUS)}",
        "FLOPs / ER",
        "n",
    ]
    absent = [series_names.title(name) for name in BASELINES if name not in groups]
    missing = f" Not run on these seeds: {', '.join(absent)}." if absent else ""
    note = (
        "In brackets the number of seeds. Bold: p < 0.05, Holm-adjusted in its column, by a paired t test over common "
        f"seeds, or Welch's for IID and IID++, which meet other streams.{missing}"
    )
    return "\n".join([rows(heads, body), "", note, "", f"What holds of {series_names.title(PLUS)}:", "", *holds])


def standing(found: Mapping[str, Difference]) -> str:
    """Whom ER-FSL+ is above and below, by test and in the mean."""
    groups: dict[str, list[str]] = {"above": [], "below": [], "in the mean above": [], "in the mean below": []}
    for name, one in found.items():
        if one.mean is not None:
            side = "above" if one.mean < 0 else "below"
            groups[side if significant(one) else f"in the mean {side}"].append(name)
    return "; ".join(f"{group}: {', '.join(names) or 'none'}" for group, names in groups.items())


def behind(name: str, values: Seeds, own: Seeds, measure: int) -> Difference:
    """A rival minus ER-FSL+."""
    if name in REFERENCES:
        return unpaired(values, own) if measure == FINAL else NOT_RUN
    return against({PLUS: own, name: values}, PLUS)[name]


def unpaired(values: Seeds, others: Seeds) -> Difference:
    """Welch's test: means of runs that have nothing in common."""
    gain = metrics.mean(list(values.values())) - metrics.mean(list(others.values()))
    n = min(len(values), len(others))
    if n < 2:
        return Difference(gain, None, None, n)
    found = ttest_ind(list(values.values()), list(others.values()), equal_var=False)
    low, high = found.confidence_interval()
    return Difference(gain, (high - low) / 2, float(found.pvalue), n)


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
        for side, colour, label in (("_last", "tab:orange", "last weights"), ("", "tab:blue", "average")):
            runs = [[100 * metrics.mean(one[step][f"accuracy{side}"]) for step in steps] for one in looks]
            for run in runs:
                panel.plot(steps, run, color=colour, linewidth=0.6, alpha=0.5)
            panel.plot(steps, [metrics.mean(at) for at in zip(*runs, strict=True)], color=colour, label=label)
        panel.set_title(f"{series_names.title(method)}, n = {len(group)}", fontsize="small", loc="left")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    for panel in panels[len(groups) :]:
        panel.set_visible(False)
    drawn.supxlabel("steps", fontsize="small")
    drawn.supylabel("accuracy on all tasks met so far, %", fontsize="small")
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    plots.save(drawn, path)


def changes(results: Sequence[Result], costs: Mapping[str, Mapping[str, float]]) -> str:
    """Each change to ER-FSL minus the runs without it, by their averages, a column for each stream."""
    columns = _columns(results, plus.CHANGES, range(plus.RUNS), plus.BASE)
    if not columns:
        return "Not run yet."
    differences = [against(column, plus.BASE) for column in columns.values()]
    verdicts = _verdicts(columns)
    body = []
    for name in plus.CHANGES:
        if name == plus.BASE:
            cells = [report.cell(metrics.summarise(list(column[name].values()))) for column in columns.values()]
        else:
            cells = [signed(found.get(name, NOT_RUN)) for found in differences]
        cost = [f"{costs[name][which]:.2f}" if name in costs else "not measured" for which in ("flops", "time")]
        body.append([name, *cells, *cost, verdicts.get(name, "")])
    heads = ["change", *(TITLES[stream] for stream in columns), "FLOPs / ER", "time / ER", "kept"]
    return "\n".join([rows(heads, body), "", BOLD])


def rivals(results: Sequence[Result], folder: Path) -> str:
    """What more replay gives ER-FSL and others on the first stream, by their averages; without it: the studies."""
    stream = next(iter(TITLES))
    cases = {"er-fsl": plus.CHANGES[plus.MORE], **plus.RIVALS}
    column = _columns(results, cases, range(plus.RUNS), "er-fsl").get(stream)
    if not column:
        return "Not run yet."
    pairs = {}
    digests = {one.data["sha256"] for one in results if one.config.stream == stream and "sha256" in one.data}
    for name, given in column.items():
        studies = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{stream}-{name}-[0-9].json"))]
        pairs[name] = {"without": _ends(studies)[CHOSEN], "with": given}
        digests |= {values["data"]["sha256"] for values in studies}
    if len(digests) > 1:
        raise UsageError(f"runs and studies of {stream} are of different data and cannot stand in one table")
    gains = [against(pair, "without")["with"] for pair in pairs.values()]
    adjusted = holm([gain.p for gain in gains])
    body = [
        [
            series_names.title(name),
            *(report.cell(metrics.summarise(list(side.values()))) for side in pair.values()),
            signed(replace(gain, p=p)),
        ]
        for (name, pair), gain, p in zip(pairs.items(), gains, adjusted, strict=True)
    ]
    heads = [TITLES[stream], "ten, each also augmented", "thirty, only augmented", "gain"]
    return "\n".join([rows(heads, body), "", BOLD])


def again(results: Sequence[Result]) -> str:
    """What was kept, on seeds that chose nothing: with one left out, and with none, minus all of it."""
    first = _columns(results, plus.CHANGES, range(plus.RUNS), plus.BASE)
    verdicts = _verdicts(first)
    if not first:
        return "Not run yet."
    kept, undecided = ([name for name, said in verdicts.items() if said == wanted] for wanted in ("yes", "open"))
    if not kept:
        return "Not run yet." if undecided else "No change was kept."
    cases = plus.together(kept)
    columns = _columns(results, cases, range(plus.RUNS, 2 * plus.RUNS), plus.ALL)
    if not columns:
        return "Not run yet."
    differences = [against(column, plus.ALL) for column in columns.values()]
    heads = [f"kept: {', '.join(kept)}", *(TITLES[stream] for stream in columns)]
    whole = [report.cell(metrics.summarise(list(column[plus.ALL].values()))) for column in columns.values()]
    body = [[name, *(signed(found.get(name, NOT_RUN)) for found in differences)] for name in cases if name != plus.ALL]
    note = f"Points above or below {plus.ALL}. {BOLD}"
    gains = [_gains(columns.get(stream, {}), plus.ALL, plus.BASE) for stream in TITLES]
    if all(len(stream) >= plus.RUNS for stream in gains):
        better = all(metrics.mean(stream) > 0 for stream in gains)
        note += f" By the rule ER-FSL+ is {'all that was kept' if better else 'the average alone'}."
    if undecided:
        note += f" Not yet decided, so not in it: {', '.join(undecided)}."
    return "\n".join([rows(heads, [[plus.ALL, *whole], *body]), "", note])


def _columns(
    results: Sequence[Result], cases: Mapping[str, Mapping[str, Any]], seeds: Iterable[int], needed: str
) -> dict[str, dict[str, Seeds]]:
    """By stream, by case: what the average of each seed's run reached. Streams without the case needed are left out."""
    stored = {(result.config.key, result.config.seed): result for result in results}
    columns: dict[str, dict[str, Seeds]] = {}
    used: dict[str, list[Result]] = {}
    for stream, (name, change), seed in product(TITLES, cases.items(), seeds):
        if result := stored.get((plus.config(change, stream, seed).key, seed)):
            columns.setdefault(stream, {}).setdefault(name, {})[seed] = result.final_accuracy
            used.setdefault(f"{name} on {stream}", []).append(result)
    grouping.check_alike(used)
    made = {(result.config.method, result.protocol.get("code")) for group in used.values() for result in group}
    if len(made) > len({method for method, _ in made}):
        raise UsageError("runs of several versions of one learner's file cannot stand in one table")
    return {stream: column for stream, column in columns.items() if needed in column}


def _verdicts(columns: Mapping[str, Mapping[str, Seeds]]) -> dict[str, str]:
    return {
        name: verdict([_gains(columns.get(stream, {}), name, plus.BASE) for stream in TITLES], plus.RUNS)
        for name in plus.CHANGES
        if name not in (plus.BASE, plus.PART)
    }


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


def _costs() -> dict[str, dict[str, float]]:
    path = ROOT / "results/benchmarks/changes.json"
    found: dict[str, dict[str, float]] = json.loads(path.read_text()) if path.exists() else {}
    return found


BLOCKS: dict[str, Callable[[str], str]] = {
    "averages": lambda folder: averages(ROOT / folder),
    "average": lambda folder: last_and_average(rows_of_the_paper(folder)),
    "claim": lambda folder: claim(stored(folder)),
    "changes": lambda folder: changes(stored(folder), _costs()),
    "again": lambda folder: again(stored(folder)),
    "rivals": lambda folder: rivals(stored(folder), ROOT / "results/average"),
}
PICTURES: dict[str, Callable[[Path], None]] = {
    "docs/average.png": lambda path: curves(rows_of_the_paper("results/cifar10-fifth"), path),
}
