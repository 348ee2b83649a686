"""What belongs where in this repository."""

from __future__ import annotations

import json
import re
from pathlib import Path

from index import DATA, index

ROOT = Path(__file__).resolve().parent.parent


def test_nothing_but_a_study_imports_a_study_except_what_fills_the_blocks_of_its_page() -> None:
    studies = {path.stem for path in ROOT.glob("studies/*/*.py")}
    found = {
        (str(path.relative_to(ROOT)), name)
        for place in ("src", "tools", "benchmarks", "tests")
        for path in (ROOT / place).rglob("*.py")
        for name in re.findall(r"^ *(?:import|from) (\w+)", path.read_text(), re.MULTILINE)
        if name in studies
    }
    assert found == {("tools/docs.py", "blocks")}


def test_every_folder_of_results_is_in_its_index() -> None:
    text = (ROOT / "results/README.md").read_text()
    folders = {path.name for path in (ROOT / "results").iterdir() if path.is_dir()}
    assert folders <= set(re.findall(r"^\| \[`(\S+)`\]", text, re.MULTILINE))


def test_the_index_names_data_by_their_hash_and_lists_what_differs(tmp_path: Path) -> None:
    def store(path: str, data: str, seed: int, fraction: float, **settings: int) -> None:
        config = {"stream": "cifar100", "seed": seed, "fraction": fraction, "net": "net", "validate": True}
        run = {"config": {**config, "settings": settings}, "data": {"sha256": data}}
        host = {"device": "cpu", "threads": 1, "torch": "2", "python": "3"}
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(json.dumps({**run, "host": host}))

    standin = next(hash for hash, name in DATA.items() if "Tiny" in name)
    store("some/a/seed-0/result.json", standin, 0, 0.2, memory=1000)
    store("some/a/seed-1/result.json", standin, 1, 0.1)
    store("some/one-file.json", "unknown", 2, 1.0)
    (tmp_path / "times").mkdir()
    (tmp_path / "times/step.json").write_text('{"ms": 1}')
    assert index(tmp_path).splitlines()[2:] == [
        f"| `some` | {DATA[standin]} | 2 | 10%, 20% | held-back training samples | net | 1000 | 0, 1 |",
        "| `some` | cifar100 | 1 | 100% | held-back training samples | net | - | 2 |",
        "",
        "All of them: device cpu, threads 1, torch 2, python 3.",
    ]
