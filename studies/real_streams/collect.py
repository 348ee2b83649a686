"""Bring the finished runs of the queue into the repository, in this version's format.

python studies/real_streams/collect.py OUT
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = {"gamma": 0.3, "subspace": None, "learn_in": "task", "replay_in": "used", "test_in": "used"}  # of ER-FSL


def folder(config: dict[str, Any]) -> str:
    """Where in results a run belongs: what stands in one table of a page stands in one folder."""
    method, stream, settings = config["method"], config["stream"], config["settings"]
    if config["validate"]:
        if config["fraction"] == 1:
            return "never-forget-sizes"
        beside = settings.get("expert") or settings.get("filters") in (400, 1000)
        return "never-forget-beside" if beside else "never-forget-changes"
    if stream == "mini-imagenet":
        return "large-images"
    if config["fraction"] < 1:
        return "few"
    if config["net"] == "resnet18":
        return f"{stream}-resnet18"
    if settings.get("precision") == "bf16":
        return "bf16"
    if method == "patch-lda" and (settings["filters"] != 400 or settings["reach"] == 0):
        return "never-forget-test"
    weights = (settings.get("new_weight"), settings.get("replay_weight"))
    if method == "er-fsl" and (weights != (None, None) or {name: settings[name] for name in DEFAULT} != DEFAULT):
        return f"{stream}-er-fsl"
    return stream


def main(out: Path) -> None:
    for file in sorted(out.glob("*/seed-*/result.json")):
        run = file.parent.relative_to(out)
        target = ROOT / "results" / folder(json.loads(file.read_text())["config"]) / run / "result.json"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    subprocess.run([sys.executable, ROOT / "tools/restamp.py", ROOT / "results"], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
