"""Rates chosen on one stream and reported on another: the table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from helpers import result_of
from onepass.bench.run_config import RunConfig
from two_phases import two_phases


def test_what_was_chosen_stands_beside_the_methods_own(tmp_path: Path) -> None:
    def trial(lr: float, accuracy: float) -> dict[str, object]:
        return {"settings": {"lr": lr}, "accuracy": accuracy}

    for name, best in (("er", trial(0.03, 0.5)), ("pcr", trial(0.1, 0.4))):
        (tmp_path / f"{name}.json").write_text(json.dumps({"default": trial(0.1, 0.4), "best": best}))
    config = RunConfig("er", "cifar100", settings={"memory": 10})
    own = [result_of(replace(config, seed=seed), final, final) for seed, final in enumerate((0.10, 0.12, 0.14))]
    other = RunConfig("er", "cifar100", settings={"memory": 10, "lr": 0.03})
    chosen = [result_of(replace(other, seed=seed), final, final) for seed, final in enumerate((0.20, 0.22, 0.25))]
    pcr = [result_of(RunConfig("pcr", "cifar100", settings={"memory": 10}), 0.3, 0.3)]
    lines = two_phases(tmp_path, [*own, *chosen, *pcr]).splitlines()
    assert lines[2] == "| ER | 0.1 | 0.03 | 40.0 | 50.0 | 12.0 ± 5.0 (3) | 22.3 ± 6.3 (3) | **+10.3 ± 1.4 (3)** |"
    assert lines[3].startswith("| PCR | 0.1 | 0.1 | 40.0 | 40.0 | 30.0")
    assert lines[3].endswith("| - |")
    assert two_phases(tmp_path / "nothing", []) == "Not run yet."
