"""What version 0.1.0 stored stays readable, by every version 0.x."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import onepass
from onepass.learner.checkpoint import fingerprint
from onepass.store import load_all

SAMPLES = Path(__file__).parent / "samples" / "0.1.0"
STATE = "5d8951b3d8fab637350d7e4afb2f6870f35e507c2374af2238a99b35b1d7270d"  # as 0.1.0 itself hashes what it loads


def test_results_mean_what_they_meant() -> None:
    er, pcr, plus = load_all(SAMPLES / "runs")
    assert er.config.method == "er"
    assert er.final_accuracy == pytest.approx(0.7193238579115484)
    assert er.final_accuracy_last == er.final_accuracy
    assert pcr.config.average == 0.98
    assert pcr.final_accuracy != pcr.final_accuracy_last, "by the average, which predicts, and by the last weights"
    assert pcr.protocol["augment"] == "colour"
    assert all({"step", "accuracy", "accuracy_last"} <= line.keys() for line in pcr.anytime)
    assert plus.config.method == "er-fsl+"
    assert plus.config.average == 0.98, "its own average was called decay"
    assert plus.final_accuracy_last is None, "which it did not measure"


def test_a_model_goes_on_where_it_was() -> None:
    learner = onepass.load(SAMPLES / "model.safetensors")
    assert (learner.problem.augment, learner.steps, len(learner.memory)) == ("digits", 3, 5)
    assert fingerprint(learner.state_dict()) == STATE
    learner.observe(onepass.Batch(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 2, 3])))
    assert learner.steps == 4
