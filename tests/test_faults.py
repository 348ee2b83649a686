"""Every so many of the calls that touch the disk or ask for memory fail; `make soak` does them all."""

from __future__ import annotations

import json
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
    words = [sys.executable, "tests/faults.py", str(tmp_path), "--every", "73", "--minutes", "60"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[1])
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["done"] == counts["planned"]
    assert counts["disk faults: refused with an error of ours"] > 3, "some faults must be noticed"
    assert counts["kills: killed"] > 1
    assert counts["memory faults: no memory"] > 3
    scenarios = ("save", "run", "command", "cache", "photos", "download", "served")
    assert min(counts[f"disk calls of {name}"] for name in scenarios) > 5
    assert min(counts[f"memory calls of {name}"] for name in scenarios) > 3
