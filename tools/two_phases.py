"""Learning rates chosen on one stream and reported on another: the trials, and runs with both rates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cells import BOLD, rows, signed
from onepass.bench.metrics import summarise
from onepass.bench.result import Result
from onepass.methods.registry import METHODS
from onepass.report import summary as report
from onepass.report.significance import Difference, against

OWN, CHOSEN = "its own", "chosen"


def two_phases(trials: Path, results: Sequence[Result]) -> str:
    found = {name: json.loads(path.read_text()) for name in METHODS if (path := trials / f"{name}.json").exists()}
    if not found:
        return "Not run yet."
    finals: dict[str, dict[str, dict[int, float]]] = {}
    for one in results:
        tuned = found.get(one.config.method)
        if tuned is None:
            continue
        rate = one.config.learner_config.to_json()["lr"]
        for which, lr in ((OWN, tuned["default"]), (CHOSEN, tuned["best"])):
            if rate == lr["settings"]["lr"]:
                finals.setdefault(one.config.method, {}).setdefault(which, {})[one.config.seed] = one.final_accuracy
    body = [
        [METHODS[name].title, *_first(tuned), *(_cell(finals.get(name, {}).get(which, {})) for which in (OWN, CHOSEN))]
        for name, tuned in found.items()
    ]
    gains = _gains(finals)
    body = [[*cells, gains[name]] for name, cells in zip(found, body, strict=True)]
    heads = ["method", "own rate", "chosen", "CIFAR-10 own %", "chosen %", "CIFAR-100 own % (seeds)"]
    return "\n".join([rows([*heads, "chosen % (seeds)", "gained"], body), "", BOLD])


def _first(tuned: dict[str, Any]) -> list[str]:
    default, best = tuned["default"], tuned["best"]
    rates = [f"{trial['settings']['lr']:g}" for trial in (default, best)]
    return [*rates, *(f"{100 * trial['accuracy']:.1f}" for trial in (default, best))]


def _cell(finals: dict[int, float]) -> str:
    if not finals:
        return "not run"
    return f"{report.cell(summarise(list(finals.values())))} ({len(finals)})"


def _gains(finals: dict[str, dict[str, dict[int, float]]]) -> dict[str, str]:
    """The paired differences of all methods, adjusted together; nothing where the method's own rate was chosen."""
    zero = {seed: 0.0 for group in finals.values() for values in group.values() for seed in values}
    differences = {
        name: {seed: group[CHOSEN][seed] - group[OWN][seed] for seed in group[OWN].keys() & group[CHOSEN].keys()}
        for name, group in finals.items()
        if OWN in group and CHOSEN in group and group[OWN] != group[CHOSEN]
    }
    told: dict[str, Difference] = against({"": zero, **differences}, "")
    return {name: signed(told[name]) if name in told else "-" for name in METHODS}
