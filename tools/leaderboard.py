"""All methods of a stream in one table: by last weights and by an average, with costs and the line that makes a row."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from cells import ROOT, height, sides, values
from lines import with_settings
from onepass.bench.result import Result
from onepass.methods.registry import METHODS, is_reference
from whole_streams import label

HEADS = ["", "method", "last weights %", "average %", "forgetting %", "FLOPs / ER", "model bytes / ER", "n", "command"]


def leaderboard(results: Sequence[Result]) -> str:
    """Runs on test samples; the highest first, by last weights where those were measured. IID and IID++ take no rank.
    Rows that are not a method's defaults have neither rank nor costs, which were measured for the defaults."""
    groups: dict[str, list[Result]] = {}
    for one in results:
        if not one.config.validate and one.config.method in METHODS:
            groups.setdefault(_line(one), []).append(one)
    measured = json.loads((ROOT / "results/benchmarks/cost.json").read_text())
    ranked = sorted(groups.items(), key=lambda pair: -height(pair[1]))
    lines = ["| " + " | ".join(HEADS) + " |", "|---:|---|" + "---:|" * 6 + "---|"]
    rank = 0
    for line, group in ranked:
        name = group[0].config.method
        title = label(group[0])
        default = title == METHODS[name].title
        ranks = default and not is_reference(name)
        rank += ranks
        last, average = sides(group)
        seeds = {one.config.seed for one in group}
        cost = measured.get(name, {}) if default else {}
        cells = [
            str(rank) if ranks else "-",
            title,
            values([one.final_accuracy for one in last]),
            values([one.final_accuracy for one in average]),
            values([one.forgetting for one in last or average if one.forgetting is not None]),
            *(f"{cost[kind]:.3g}" if kind in cost else "-" for kind in ("flops", "model")),
            str(len(seeds)),
            f"`{line}{f' --seed {min(seeds)}' if min(seeds) else ''}`",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _line(result: Result) -> str:
    """Runs with and without an average beside them are the same training, so they share a row."""
    return re.sub(r" --average \S+", "", with_settings(result))
