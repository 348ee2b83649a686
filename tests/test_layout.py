"""What belongs where in this repository."""

from __future__ import annotations

import re
from pathlib import Path

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
