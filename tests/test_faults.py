"""Every so many of the calls that touch the disk fail; `make soak` does them all."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import linux_only


@linux_only
@pytest.mark.system
def test_after_a_fault_the_same_command_ends_in_the_same_bits_and_leaves_nothing(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build the faults with")
    words = [sys.executable, "tests/faults.py", str(tmp_path), "--every", "19", "--minutes", "10"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[1])
    assert done.returncode == 0, done.stderr
    counts = ast.literal_eval(done.stdout)
    assert counts["failed"] > 3, "some faults must be noticed"
    assert min(counts[f"calls of {name}"] for name in ("save", "run", "cache", "download")) > 5
