"""What became of photos that arrived class by class: one stored run of studies/photos."""

from __future__ import annotations

import json
from pathlib import Path


def arrived(path: Path) -> str:
    found = json.loads(path.read_text())
    n = len(found["accuracy"])
    head = (
        f"CIFAR-10, {found['each']} photos of each class, one class after the other; {found['kills']} SIGKILLs; "
        f"{found['tested']} test images a class; one run of {found['seconds'] / 60:.0f} minutes:"
    )
    rows = [
        "| classes so far | " + " | ".join(str(c) for c in range(1, n + 1)) + " |",
        "|---|" + "---:|" * n,
        "| accuracy among them % | " + " | ".join(f"{100 * share:.1f}" for share in found["accuracy"]) + " |",
    ]
    learned = f"{found['samples']:,} photos were written and {found['samples']:,} learned, each once."
    return "\n".join([head, "", *rows, "", learned])
