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
from onepass.runner import Result

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- generated: (\w+) (\S+) -->\n).*?(<!-- /generated -->)", re.DOTALL)


def stored(folder: str) -> list[Result]:
    results = [Result.from_json(json.loads(path.read_text())) for path in (ROOT / folder).rglob("result.json")]
    order = {"finetune": 0, "er": 1, "er-fsl": 2}
    return sorted(results, key=lambda result: (order.get(result.config.method, 9), result.config.seed))


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


KINDS: dict[str, Callable[[str], str]] = {"table": table, "steps": steps}


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
