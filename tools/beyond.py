"""The tables of docs/beyond.md, from stored runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from onepass import metrics, pictures, report
from onepass.results import Result
from onepass.statistics import Difference, against, holm, paired, real
from onepass.store import key
from onepass.tables import figure

TITLES = {"cifar10": "CIFAR-10", "cifar100": "100 classes of Tiny ImageNet"}  # the latter in CIFAR-100's layout
BOLD = (
    "In brackets the number of seeds. Bold: real by a paired t test over seeds, Holm-adjusted in its column (p < 0.05)."
)
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
    """Every average that was kept beside a run minus the last weights, a column for each method and stream."""
    found: dict[tuple[str, str], dict[str, Seeds]] = {}
    for path in sorted(folder.glob("*.json")):
        values = json.loads(path.read_text())
        config = values["config"]
        column = found.setdefault((config["stream"], config["method"]), {})
        for name, accuracies in values["accuracy"].items():
            column.setdefault(name, {})[config["seed"]] = metrics.mean(accuracies)
    if not found:
        return "Not run yet."
    heads = ["kept", *(f"{report.title(method)}, {TITLES[stream]}" for stream, method in found)]
    last = [
        "the last weights",
        *(report.cell(metrics.summarise(list(column["last"].values()))) for column in found.values()),
    ]
    differences = [against(column, "last") for column in found.values()]
    names = list(dict.fromkeys(name for column in differences for name in column))
    body = [[name, *(signed(column.get(name, NOT_RUN)) for column in differences)] for name in names]
    return "\n".join([rows(heads, [last, *body]), "", f"Points above the last weights of the same runs. {BOLD}"])


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
    finals = [paired(average[0], last[0]) for last, average in sides.values()]
    adjusted = holm([difference.p for difference in finals])
    body = []
    for (name, (last, average)), final, p in zip(sides.items(), finals, adjusted, strict=True):
        cells = [report.cell(metrics.summarise(values[0])) for values in (last, average)]
        cells.append(signed(Difference(final.mean, final.interval, p, final.n)))
        for place in (1, 2):
            cells += [f"{100 * metrics.mean(values[place]):.1f}" for values in (last, average)]
        body.append([report.title(name), *cells])
    heads = ["row", "last weights", "average", "difference", "anytime, last", "average", "worst case, last", "average"]
    return "\n".join([rows(heads, body), "", BOLD])


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
    for stream in TITLES:
        for name, change in plus.CHANGES.items():
            for seed in range(plus.RUNS):
                config = plus.config(change, stream, seed)
                if result := stored.get((key(config), seed)):
                    final = metrics.final_accuracy(result.accuracy_matrix_average)
                    columns.setdefault(stream, {}).setdefault(name, {})[seed] = final
    columns = {stream: column for stream, column in columns.items() if base in column}
    if not columns:
        return "Not run yet."
    first = [base, *(report.cell(metrics.summarise(list(column[base].values()))) for column in columns.values())]
    differences = [against(column, base) for column in columns.values()]
    body = [[name, *(signed(column.get(name, NOT_RUN)) for column in differences)] for name in others]
    return "\n".join([rows(["change", *(TITLES[stream] for stream in columns)], [first, *body]), "", BOLD])
