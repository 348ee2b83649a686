"""Write stored figures into the marked blocks of the documents, or check that they stand there already.

    python tools/docs.py [--check]

A block begins with `<!-- generated: KIND ARGUMENT -->` and ends with `<!-- /generated -->`.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onepass
from arrived import arrived
from cells import BOLD, ROOT, by_last_weights, printed_cell, rows_of_the_paper, signed, stored
from cells import rows as table_of
from commands import commands
from equivalence import equivalence
from growing import growth, picture
from headline import headline
from index import index
from leaderboard import leaderboard
from lines import command, with_settings
from lived import live, serving, soak
from measured import measured
from never_forget import as_it_is, changes, experts, few, sizes
from onepass.bench.result import Result
from onepass.config import LearnerConfig, ReplayConfig, options
from onepass.methods.registry import METHODS, is_reference
from onepass.paper import experiments
from onepass.paper import figures as figures_of_the_paper
from onepass.paper import tables as paper_tables
from onepass.paper.scales import Selection
from onepass.report import grouping, plots, series_names, tables
from onepass.report import summary as report
from onepass.report.significance import against
from ran import ran
from two_phases import two_phases
from verdicts import verdicts
from whole_streams import short, whole_streams

# The one place where a tool meets a study: it fills the blocks of its own page, and stored runs name its learners.
sys.path.append(str(ROOT / "studies/er_fsl_plus"))

import blocks

STANDINS = {  # what was measured on stand-ins carries their name
    "cifar10": "CIFAR-10, binary version",
    "mini-imagenet": "Tiny ImageNet, 84x84, in MiniImageNet's pickles",
    "tiny-imagenet-100": "Tiny ImageNet, a folder of JPEG files",
}
SIZES = ROOT / "results/benchmarks/sizes.json"
FRESH = 20  # the first of the seeds of which nothing was known when sizes with pairs were chosen
WHOLE = ("cifar10", "cifar100", "never-forget-test")  # folders of runs on whole streams and test images
BLOCK = re.compile(r"(<!-- generated: (\w+) (\S+) -->\n).*?(<!-- /generated -->)", re.DOTALL)


def on_whole_streams(folder: str) -> list[Result]:
    return [one for name in WHOLE for one in stored(f"{folder}/{name}")]


def on_the_leaderboard(argument: str) -> str:
    """STREAM:FOLDER,FOLDER"""
    stream, _, folders = argument.partition(":")
    found = [one for name in folders.split(",") for one in stored(name)]
    return leaderboard([one for one in found if one.config.stream == stream])


def table(folder: str) -> str:
    return report.markdown(stored(folder))


def steps(path: str) -> str:
    figures = json.loads((ROOT / path).read_text())
    rows = ["| network | memory | bare step, ms | ER | ER-FSL |", "|---|---:|---:|---:|---:|"]
    for row in figures["ratios"]:
        ratios = f"{row['er']:.3f} | {row['er-fsl']:.3f}"
        rows.append(f"| {row['net']} | {row['memory']:,} | {row['bare_ms']:.0f} | {ratios} |")
    own, peers, peak = figures["own_work_ms"], figures["peers_ms"], figures["peak_memory"]
    others = ", ".join(f"{name} {value:g}" for name, value in peers.items())
    held = "; ".join(f"{net}: ER {row['er']:.2f}, ER-FSL {row['er-fsl']:.2f}" for net, row in peak.items())
    kept = ", ".join(f"{100 * share:.1f} % of a `{net}` step" for net, share in figures["average"].items())
    low = "; ".join(
        f"`{row['net']}`, threads {row['threads']}: a step {row['step']:.2f}, an evaluation {row['evaluation']:.2f}"
        for row in figures.get("bf16", [])
    )
    return "\n".join(
        [
            f"Step time over a bare PyTorch loop's (lower quartiles of {figures['rounds'] - 1} alternating turns, "
            f"{figures['host']['cores']} cores, torch {figures['host']['torch']}):",
            "",
            *rows,
            "",
            f"Peak resident memory over the bare loop's: {held}. Our own work (one linear layer, no augmentation), CPU "
            f"time a step: ER {own['er']:.2f} ms, ER-FSL {own['er-fsl']:.2f}; on peers, once, on an earlier and "
            f"slower machine: {others}. "
            f"Keeping an average (`--average`): {kept}, CPU time.",
            "",
            *([f"`--precision bf16`, ER, times as fast as fp32: {low}.", ""] if low else []),
        ]
    )


def data(path: str) -> str:
    heads = [
        "data",
        "images",
        "first load",
        "peak memory then",
        "second load",
        "peak memory of a stream",
        "and of a run",
        "stream over bare",
        "start of a run",
    ]
    rows = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * 8]
    for name, row in json.loads((ROOT / path).read_text()).items():
        loads = f"{row['first_load_s']:.1f} s | {row['first_load_resident_mb']:.0f} MB | {row['second_load_ms']:.1f} ms"
        run = f"{row['run_resident_mb']:.0f} MB" if "run_resident_mb" in row else "not measured"
        start = f"{row['startup_s']:.1f} s" if "startup_s" in row else "not measured"
        before = f" (0.1.0: {row['startup_beside_s']:.1f} s)" if "startup_beside_s" in row else ""
        rest = f"{row['stream_resident_mb']:.0f} MB | {run} | {row['stream_over_bare']:.2f} | {start}{before}"
        rows.append(f"| {STANDINS.get(name, name)} | {row['images']:,} | {loads} | {rest} |")
    note = (
        "Memory beyond what the process had after importing torch (a run: ER with one linear layer, memory 1000, all "
        "tasks and evaluations, beyond torch and one step). Start of a run: from the call of `onepass run` to its "
        "first step, shortest of five, in turns with version 0.1.0. `python benchmarks/data.py NAME --data-dir DIR`."
    )
    return "\n".join([*rows, "", note])


def reproduction(folder: str) -> str:
    """Printed and measured side by side, with both ranks, a row for each method that was run."""
    runs = by_last_weights(rows_of_the_paper(folder))  # which the paper's rows predict by
    groups, measured = grouping.by_method(runs), report.summary(runs)
    printed = {method: printed_cell(group[0].config) for method, group in groups.items()}
    printed_means = {method: cell for method, cell in printed.items() if cell}
    finals_measured = {method: measures["final_accuracy"] for method, measures in measured.items()}
    ranks = [
        _ranks({method: mean for method, (mean, _) in printed_means.items()}),
        _ranks({method: final.mean for method, final in finals_measured.items() if final}),
    ]
    finals = {name: {one.config.seed: one.final_accuracy for one in group} for name, group in groups.items()}
    rivals = {name: seeds for name, seeds in finals.items() if not is_reference(name)}
    beside = against(rivals, "er") if "er" in rivals else {}
    heads = ["row", "printed", "rank", "ours", "rank", "minus ER", "n", "forgetting", "command"]
    rows = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * 7 + "---|"]
    for method, measures in measured.items():
        mean, interval = printed_means[method]
        cells = [series_names.title(method), f"{mean} ± {interval}", str(ranks[0][method])]
        gain = signed(beside[method]) if method in beside else "-"
        cells += [report.cell(measures["final_accuracy"]), str(ranks[1][method]), gain, str(len(groups[method]))]
        cells += [report.cell(measures["forgetting"]), f"`{command(groups[method][0])}`"]
        rows.append("| " + " | ".join(cells) + " |")
    note = "Minus ER: paired over common seeds; IID and IID++ meet other streams. " + BOLD
    return "\n\n".join(["\n".join(rows), note, *(f"{line[0].upper()}{line[1:]}." for line in grouping.hosts(runs))])


def _ranks(values: dict[str, float]) -> dict[str, int]:
    return {name: 1 + sum(other > value for other in values.values()) for name, value in values.items()}


def figures(method: str) -> str:
    """What was measured of one method, wherever it was; of a row of the paper beside what that printed."""
    found, paper = [], False
    for folder in [*sorted(path.name for path in (ROOT / "results").glob("cifar10*")), "digits-methods"]:
        runs = by_last_weights(one for one in stored(f"results/{folder}") if one.config.method == method)
        if runs:
            cell = printed_cell(runs[0].config)
            [measures] = report.summary(runs).values()
            n = len(grouping.by_method(runs)[method])
            printed = "-" if cell is None else f"{cell[0]} ± {cell[1]}"
            found.append([f"`{command(runs[0])}`", printed, report.cell(measures["final_accuracy"]), str(n)])
            paper = paper or cell is not None
    if not found:
        return "Not run yet."
    if not paper:
        about, heads = "Final accuracy in per cent.", ["runs", "final accuracy %", "n"]
        return "\n".join([about, "", table_of(heads, [[line, *rest] for line, _, *rest in found])])
    about = "Final accuracy in per cent; printed: the paper's table 1, full stream, `resnet18`."
    return "\n".join([about, "", table_of(["runs", "printed", "ours", "n"], found)])


def methods(_: str) -> str:
    """All methods, from the dict that the command shows too."""
    heads = ["method", "name", "published", "FLOPs / ER", "task boundaries", "keeps beyond network and memory", "idea"]
    rows = ["| " + " | ".join(heads) + " |", "|---|---|---|---:|---|---|---|"]
    for name, method in METHODS.items():
        page = f"[{method.title}]({name.replace('+', 'p')}.md)"
        cells = [
            page,
            f"`{name}`",
            method.venue,
            f"{method.cost:g}",
            method.boundaries or "-",
            method.keeps,
            method.about,
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def shared(_: str) -> str:
    """The settings that all methods have, and those of all that have a memory."""
    lines = ["| setting | default | what it is |", "|---|---|---|"]
    for name, entry in options(ReplayConfig).items():
        memory = "" if name in options(LearnerConfig) else " (methods with a memory)"
        default = "none" if entry.default is None else entry.default
        lines.append(f"| `--{name.replace('_', '-')}` | {default} | {entry.metadata['help']}{memory} |")
    return "\n".join(lines)


def cost(path: str) -> str:
    """FLOPs and time over ER's, in the order of the methods; a dash where no time was measured yet."""
    if not (ROOT / path).exists():
        return "Not measured yet."
    found = json.loads((ROOT / path).read_text())
    rows = ["| method | FLOPs / ER | time / ER | time over FLOPs |", "|---|---:|---:|---:|"]
    for method in (name for name in METHODS if name in found):
        flops, time = found[method]["flops"], found[method].get("time")
        counted = f"{flops:.2f}" if flops >= 0.1 else f"{flops:.2g}"
        taken = "-" if time is None else f"{time:.2f}"
        ratio = f"{time / flops:.2f}" if time is not None and flops else "-"
        rows.append(f"| {METHODS[method].title} | {counted} | {taken} | {ratio} |")
    note = "`python benchmarks/cost.py`: slim-resnet18, 32x32, memory 1000, one thread; ER over itself shows the noise."
    if any("time" not in row for row in found.values()):
        note += " A dash: not timed yet; FLOPs are counted and the same on every machine."
    return "\n".join([*rows, "", note])


def synchronisations(path: str) -> str:
    """How often a step makes the host wait for its device, and for what."""
    found = json.loads((ROOT / path).read_text())
    rows = ["| method | waits a step | for |", "|---|---:|---|"]
    for method in (name for name in METHODS if name in found):
        what = ", ".join(f"`{name}` {number:g}" for name, number in found[method].items())
        rows.append(f"| {METHODS[method].title} | {sum(found[method].values()):g} | {what} |")
    return "\n".join(rows)


def orchestration(path: str) -> str:
    """What orchestration costs, a line for each measurement that was made."""
    if not (ROOT / path).exists():
        return "Not measured yet."
    found = json.loads((ROOT / path).read_text())
    lines = []
    if row := found.get("side"):
        took = f"{row['side by side']:.0f} s over {row['one after the other']:.0f} s"
        ratio = f"**{row['ratio']:.2f}** of the time of one after the other with {row['cores']} cores each"
        lines.append(f"- Two `slim-resnet18` runs side by side, a core each: {ratio} ({took}).")
    if row := found.get("overhead"):
        lines.append(
            f"- Of a stored `slim-resnet18` run of {row['steps']} steps ({row['seconds']:.0f} s, memory 1000), "
            f"**{100 * row['share']:.1f} %** is neither a step nor an evaluation: data, building, checkpoints, lines."
        )
    if row := found.get("reading"):
        lines.append(
            f"- Table 1 from {row['runs']:,} stored runs: **{row['seconds']:.1f} s** (plan {row['planning']:.1f}, "
            f"reading {row['loading']:.1f}, table {row['table']:.1f})."
        )
    return "\n".join([*lines, "", "`python benchmarks/orchestration.py side|overhead|reading`."])


def settings_of(folder: str) -> list[tuple[str, list[Result]]]:
    """Groups of runs that differ in their seed alone, each with the line that makes it."""
    found: dict[str, list[Result]] = {}
    for result in stored(folder):
        found.setdefault(result.config.key, []).append(result)
    return [(with_settings(group[0]), group) for group in found.values()]


def tries(folder: str) -> str:
    """Each group of runs by the line that makes it: for looking into something."""
    rows = ["| runs | accuracy % | n |", "|---|---:|---:|"]
    for line, group in settings_of(folder):
        [measures] = report.summary(group).values()
        rows.append(f"| `{line}` | {report.cell(measures['final_accuracy'])} | {len(group)} |")
    return "\n".join(rows)


def beside(folder: str) -> str:
    """The same, the shortest line first, and what each of the others has more than it on the same seeds."""
    groups = sorted(settings_of(folder), key=lambda pair: len(pair[0]))
    finals = {group[0].config.key: {one.config.seed: one.final_accuracy for one in group} for _, group in groups}
    gains = against(finals, next(iter(finals)))
    rows = ["| runs | final accuracy % | minus the first line | n |", "|---|---:|---:|---:|"]
    for line, group in groups:
        [measures] = report.summary(group).values()
        gain = signed(gains[group[0].config.key]) if group[0].config.key in gains else "-"
        rows.append(f"| `{line}` | {report.cell(measures['final_accuracy'])} | {gain} | {len(group)} |")
    return "\n".join([*rows, "", BOLD])


def found_of(
    name: str, scale: str, stream: str, folders: str
) -> tuple[experiments.Experiment, paper_tables.StoredResults]:
    """An experiment with as many runs for each cell as any has, and what is stored of them."""
    whole = experiments.experiment(name, Selection(scale, stream=stream))
    known = {one.config: one for one in by_last_weights(one for name in folders.split(",") for one in stored(name))}
    found = {run: known[run] for run in whole.runs if run in known}
    most = max(sum(run in found for run in cell.runs) for cell in whole.cells)
    return experiments.experiment(name, Selection(scale, stream=stream, runs=most)), found


def drawn(path: Path, argument: str) -> None:
    """A figure of the paper with what is stored."""
    whole, found = found_of(*argument.split(":"))
    if found:
        plots.save(figures_of_the_paper.draw(whole, found), path)


def experiment(argument: str) -> str:
    """NAME:SCALE:STREAM:FOLDER,FOLDER: a table of the paper with what is stored, and the verdicts on its claims."""
    name, scale, stream, _ = argument.split(":")
    whole, found = found_of(*argument.split(":"))
    if not found:
        return f"{whole.title}: not run yet."
    run = replace(whole, cells=[cell for cell in whole.cells if any(config in found for config in cell.runs)])
    shown = [paper_tables.table(run, found), paper_tables.verdicts(whole, found)]
    made = f"`onepass reproduce {name} --scale {scale} --stream {stream} --runs {len(whole.cells[0].runs)}`"
    return "\n".join([*(tables.markdown(part) for part in shown if part is not None), made])


def protocol(folder: str) -> str:
    """One line for each interpretation of the protocol that was tried."""
    heads = ["method", "softmax over", "passes", "losses", "subspace", "accuracy %", "forgetting %", "seeds"]
    rows = ["| " + " | ".join(heads) + " |", "|---|" + "---|" * 7]
    found: dict[str, list[Result]] = {}
    for result in stored(folder):
        found.setdefault(result.config.key, []).append(result)
    for group in found.values():
        settings = group[0].config.learner_config.to_json()
        [measures] = report.summary(group).values()
        row = [series_names.title(group[0].config.method), settings["scope"], settings.get("forward", "-")]
        row += [
            settings.get("combine", "by gamma" if "gamma" in settings else "-"),
            str(settings.get("subspace", "-") or "d / T"),
        ]
        row += [report.cell(measures[name]) for name in ("final_accuracy", "forgetting")]
        row.append(", ".join(str(result.config.seed) for result in group))
        rows.append("| " + " | ".join(row) + " |")
    return "\n".join([*rows, "", f"`{command(next(iter(found.values()))[0])}`, with the settings of each line."])


def names(_: str) -> str:
    """The public names, each with the beginning of its own text."""
    rows = ["| name | what it is |", "|---|---|"]
    for name in onepass.__all__:
        found = getattr(onepass, name)
        if isinstance(found, dict):
            about = f"all {name.lower()} by name: a dict of {type(next(iter(found.values()))).__name__}"
        else:
            about = " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())
        call = f"({', '.join(inspect.signature(found).parameters)})" if inspect.isfunction(found) else ""
        rows.append(f"| `onepass.{name}{call}` | {about} |")
    return "\n".join(rows)


def features(path: str) -> str:
    """What fixed features save: time of replay, and SLDA's throughput."""
    found = json.loads((ROOT / path).read_text())
    rows = ["| frozen network | images replayed, CPU ms a step | features replayed | ratio |", "|---|---:|---:|---:|"]
    for net, row in found["latent_replay"].items():
        rows.append(f"| `{net}` | {row['images_ms']:.0f} | {row['latent_ms']:.0f} | {row['ratio']:.2f} |")
    slda = (
        f"SLDA counts **{found['slda']['ratio']:.1f}** times as many vectors of 512 numbers a second as a plain "
        "NumPy loop that adds a batch's products to a sum."
    )
    how = f"ER, batches of 10 and 10 replayed, no augmentation, one thread, {found['rounds']} alternating turns"
    return "\n".join([*rows, "", slda, "", f"{how}: `python benchmarks/features.py`."])


KINDS: dict[str, Callable[[str], str]] = {
    "features": features,
    "data": data,
    "table": table,
    "steps": steps,
    "reproduction": reproduction,
    "verdicts": lambda folder: verdicts(stored(folder)),
    "figures": figures,
    "methods": methods,
    "shared": shared,
    "cost": cost,
    "synchronisations": synchronisations,
    "growth": growth,
    "protocol": protocol,
    "experiment": experiment,
    "tries": tries,
    "beside": beside,
    "orchestration": orchestration,
    "names": names,
    "commands": commands,
    "leaderboard": on_the_leaderboard,
    "headline": lambda folder: headline(stored(folder)),
    "whole": lambda folder: whole_streams(on_whole_streams(folder)),
    "short": lambda folder: short(on_whole_streams(folder)),
    "tried": lambda folder: changes(stored(folder)),
    "experts": lambda folder: experts(stored(folder), SIZES),
    "few": lambda folders: few(*map(stored, folders.split(","))),
    "sizes": lambda folder: sizes(stored(folder), SIZES),
    "goal": lambda folder: sizes(as_it_is(on_whole_streams(folder)), SIZES),
    "fresh": lambda folder: sizes(
        [one for one in as_it_is(on_whole_streams(folder)) if one.config.seed >= FRESH], SIZES
    ),
    "measured": lambda folder: measured(stored(folder)),
    "equivalence": lambda folder: equivalence(
        stored(f"{folder}/bf16"), [one for name in ("cifar10", "cifar100") for one in stored(f"{folder}/{name}")]
    ),
    "index": lambda folder: index(ROOT / folder),
    "ran": lambda folder: ran([one for name in ("cifar10", "cifar100") for one in stored(f"{folder}/{name}")]),
    "arrived": lambda path: arrived(ROOT / path),
    "phases": lambda folder: two_phases(ROOT / folder / "trials", stored(folder)),
    "live": lambda path: live(ROOT / path),
    "serving": lambda path: serving(ROOT / path),
    "soak": lambda path: soak(ROOT / path),
    **blocks.BLOCKS,
}


PICTURES: dict[str, Callable[[Path], None]] = {
    "docs/figure2.png": lambda path: drawn(path, "figure2:small:cifar10:results/small"),
    "docs/figure6.png": lambda path: drawn(path, "figure6:small:cifar10:results/small"),
    "docs/growth.png": lambda path: picture("results/benchmarks/growth.json", path),
    **blocks.PICTURES,
}


def wrapped(line: str) -> str:
    if line.startswith("|"):
        return line
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def filled(text: str) -> str:
    def block(match: re.Match[str]) -> str:
        return match[1] + "\n".join(map(wrapped, KINDS[match[2]](match[3]).strip().splitlines())) + "\n" + match[4]

    return BLOCK.sub(block, text)


def main() -> int:
    stale = []
    check = "--check" in sys.argv
    if not check:
        for name, draw in PICTURES.items():
            draw(ROOT / name)
    folders = [ROOT / "docs", ROOT / "studies"]
    pages = [path for folder in folders for path in sorted(folder.rglob("*.md"))]
    for path in [ROOT / "README.md", ROOT / "results/README.md", *pages]:
        text = path.read_text()
        if (new := filled(text)) != text:
            stale.append(path.relative_to(ROOT))
            if not check:
                path.write_text(new)
    if check and stale:
        print(f"not what results/ says: {', '.join(map(str, stale))}; run make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
