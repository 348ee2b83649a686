"""Write stored figures into the marked blocks of the documents, or check that they stand there already.

    python tools/docs.py [--check]

A block begins with `<!-- generated: KIND ARGUMENT -->` and ends with `<!-- /generated -->`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from onepass import report
from onepass.methods import METHODS
from onepass.paper import printed
from onepass.results import Result
from onepass.store import key

ROOT = Path(__file__).resolve().parent.parent
STANDINS = {  # what was measured on stand-ins carries their name
    "cifar10": "CIFAR-10, binary version",
    "mini-imagenet": "Tiny ImageNet, 84x84, in MiniImageNet's pickles",
    "tiny-imagenet-100": "Tiny ImageNet, a folder of JPEG files",
}
BLOCK = re.compile(r"(<!-- generated: (\w+) (\S+) -->\n).*?(<!-- /generated -->)", re.DOTALL)


def stored(folder: str) -> list[Result]:
    results = [Result.from_json(json.loads(path.read_text())) for path in (ROOT / folder).rglob("result.json")]
    order = list(METHODS)
    return sorted(
        results, key=lambda result: (order.index(result.config.method), key(result.config), result.config.seed)
    )


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
    return "\n".join(
        [
            f"Step time over a bare PyTorch loop's (lower quartiles of {figures['rounds'] - 1} alternating turns, "
            f"{figures['host']['cores']} cores, torch {figures['host']['torch']}):",
            "",
            *rows,
            "",
            f"Peak resident memory over the bare loop's: {held}. Our own work (one linear layer, no views), CPU time a "
            f"step: ER {own['er']:.2f} ms, ER-FSL {own['er-fsl']:.2f}; measured once on peers: {others}.",
            "",
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
        "stream over bare",
    ]
    rows = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * 6]
    for name, row in json.loads((ROOT / path).read_text()).items():
        loads = f"{row['first_load_s']:.1f} s | {row['first_load_resident_mb']:.0f} MB | {row['second_load_ms']:.1f} ms"
        rest = f"{row['stream_resident_mb']:.0f} MB | {row['stream_over_bare']:.2f}"
        rows.append(f"| {STANDINS.get(name, name)} | {row['images']:,} | {loads} | {rest} |")
    note = "Memory beyond what the process had after importing torch; `python benchmarks/data.py NAME --data-dir DIR`."
    return "\n".join([*rows, "", note])


def command(result: Result) -> str:
    """The line that makes runs like this one."""
    config = result.config
    words = ["onepass run", config.method, "--stream", config.stream, "--net", config.net]
    memory = getattr(config.settings, "memory", None)
    words += ["--memory", str(memory)] if memory else []
    words += ["--fraction", f"{config.fraction:g}"] if config.fraction < 1 else []
    return " ".join([*words, "--validate"] if config.validate else words)


def reproduction(folder: str) -> str:
    """Printed and measured side by side, a row for each method that was run."""
    rows = ["| row | printed | ours | n | forgetting | command |", "|---|---:|---:|---:|---:|---|"]
    groups = report.by_method(stored(folder))
    for method, measures in report.summary(stored(folder)).items():
        config = groups[method][0].config
        cells = printed()["table1"]["rows"][method][config.stream]
        mean, interval = cells.get("any") or cells[str(getattr(config.settings, "memory", 0))]
        ours = (
            f"{report.cell(measures['final_accuracy'])} | {len(groups[method])} | {report.cell(measures['forgetting'])}"
        )
        rows.append(f"| {report.title(method)} | {mean} ± {interval} | {ours} | `{command(groups[method][0])}` |")
    return "\n".join(rows)


def protocol(folder: str) -> str:
    """One line for each reading of the protocol that was tried."""
    heads = ["method", "softmax over", "passes", "losses", "subspace", "accuracy %", "forgetting %", "seeds"]
    rows = ["| " + " | ".join(heads) + " |", "|---|" + "---|" * 7]
    found: dict[str, list[Result]] = {}
    for result in stored(folder):
        found.setdefault(key(result.config), []).append(result)
    for group in found.values():
        settings = group[0].config.learner_config.to_json()
        [measures] = report.summary(group).values()
        row = [report.title(group[0].config.method), settings["scope"], settings.get("forward", "-")]
        row += [
            settings.get("combine", "by gamma" if "gamma" in settings else "-"),
            str(settings.get("subspace", "-") or "d / T"),
        ]
        row += [report.cell(measures[name]) for name in ("final_accuracy", "forgetting")]
        row.append(", ".join(str(result.config.seed) for result in group))
        rows.append("| " + " | ".join(row) + " |")
    return "\n".join([*rows, "", f"`{command(next(iter(found.values()))[0])}`, with the settings of each line."])


KINDS: dict[str, Callable[[str], str]] = {
    "data": data,
    "table": table,
    "steps": steps,
    "reproduction": reproduction,
    "protocol": protocol,
}


def filled(text: str) -> str:
    return BLOCK.sub(lambda match: match[1] + KINDS[match[2]](match[3]).strip() + "\n" + match[4], text)


def main() -> int:
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        if (new := filled(text)) != text:
            stale.append(path.relative_to(ROOT))
            if "--check" not in sys.argv:
                path.write_text(new)
    if "--check" in sys.argv and stale:
        print(f"not what results/ says: {', '.join(map(str, stale))}; run make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
