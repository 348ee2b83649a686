"""Scenarios by name: what comes when, and what the learner is told. Importing it does not import torch."""

from __future__ import annotations

import re

from onepass.config import unknown
from onepass.errors import UsageError

SCENARIOS = {
    "class-incremental": "tasks of classes that share none",
    "domain-incremental": "the same classes in every task, each time of other domains; the data must have domains",
    "task-incremental": "the same stream as class-incremental; an image is predicted among the classes of its task",
    "task-free": "the same stream as class-incremental, but the learner is told no boundaries",
    "iid": "all classes shuffled into one task",
    "iid++": "the same, with a second, independent batch in every step",
    "gradual-N": "task-free, and N % of a task's samples, half at each end, come mixed with the neighbour's in a ramp",
    "i-blurry-N-M": "N % of the classes belong to one task alone; of the others M % of the samples come in other tasks",
}
GRADUAL = re.compile(r"gradual-(\d{1,9})")
BLURRY = re.compile(r"i-blurry-(\d{1,9})-(\d{1,9})")


def check_scenario(name: str) -> None:
    for pattern, letters in ((GRADUAL, "N is"), (BLURRY, "N and M are")):
        if numbers := pattern.fullmatch(name):
            if max(int(part) for part in numbers.groups()) > 100:
                raise UsageError(f"{name}: {letters} per cent, from 0 to 100")
            return
    if name not in SCENARIOS or "N" in name:
        raise unknown("scenario", name, SCENARIOS, "allowed")


def tells_boundaries(name: str) -> bool:
    """Whether the learner is told where a task begins and ends."""
    return name != "task-free" and not GRADUAL.fullmatch(name)
