"""A GPU never waits for the host more often than is written down, counted without one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import synchronisations
from synchronisations import Synchronisations

ROOT = Path(__file__).parent.parent
ONCE = ("er", "er-fsl", "pcr", "er-ace", "derpp")  # the check of the step, and nothing else


def test_a_step_waits_as_often_as_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["synchronisations.py", "--save", str(tmp_path / "found.json")])
    synchronisations.main()
    found = json.loads((tmp_path / "found.json").read_text())
    written = json.loads((ROOT / "results/benchmarks/synchronisations.json").read_text())
    assert found.pop("gss").keys() == written.pop("gss").keys()  # it stops early, by the sign of a sum
    assert found == written
    assert all(found[method] == {"item": 1.0} for method in ONCE)


def test_what_reads_a_number_of_the_device_is_counted_and_what_is_on_the_host_is_not() -> None:
    weights, rows = torch.ones(3), torch.arange(3)
    with Synchronisations(weights) as counter:
        far = (2 * weights + 1).sum()
        _ = far.item(), bool(far > 0), weights.tolist(), weights[weights > 0], weights.nonzero(), weights.cpu().tolist()
        _ = rows.tolist(), rows[rows > 0], float(rows.sum())
        rows.to(weights.device).sum().item()
        rows.sum().item()
    assert counter.found == {"__bool__": 1, "__getitem__": 1, "cpu": 1, "item": 2, "nonzero": 1, "tolist": 1}
