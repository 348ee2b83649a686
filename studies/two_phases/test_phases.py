"""The commands of both phases."""

from __future__ import annotations

import shlex

import phases


def test_every_method_is_tuned_and_run_with_both_rates() -> None:
    one, two = list(phases.phase_one("out")), list(phases.phase_two("out"))
    names = [name for name, _ in phases.methods()]
    assert {"er", "finetune", "ocm", "er-fsl+"} <= set(names)
    assert not {"iid++", "slda", "patch-lda"} & set(names)
    assert (len(one), len(two)) == (len(names), 6 * len(names))
    assert "--search lr=0.01,0.03,0.1,0.3 " in next(line for line in one if line.startswith("tune er "))
    assert not any("--memory" in line for line in one if line.startswith("tune finetune "))
    assert shlex.split(two[1])[-2:] == ["--preset", f"out/trials/{names[0]}.json"]
