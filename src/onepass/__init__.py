"""onepass: online continual learning. Names are imported when first used, so `import onepass` costs nothing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onepass.batch import Batch, Task
    from onepass.checks import check_learner
    from onepass.config import LearnerConfig, ReplayConfig, option
    from onepass.data.catalog import STREAMS
    from onepass.executors import run_many
    from onepass.factory import build, load, save
    from onepass.learner import Learner, Problem
    from onepass.memory import Memory
    from onepass.methods import METHODS
    from onepass.metrics import summarise
    from onepass.net import Net
    from onepass.results import Result, RunConfig
    from onepass.runner import run

__version__ = "0.1.0"

_HOME = {
    "Batch": "batch",
    "Task": "batch",
    "build": "factory",
    "load": "factory",
    "save": "factory",
    "check_learner": "checks",
    "LearnerConfig": "config",
    "ReplayConfig": "config",
    "option": "config",
    "run_many": "executors",
    "Learner": "learner",
    "Problem": "learner",
    "Memory": "memory",
    "METHODS": "methods",
    "summarise": "metrics",
    "Net": "net",
    "Result": "results",
    "RunConfig": "results",
    "run": "runner",
    "STREAMS": "data.catalog",
}

__all__ = [
    "METHODS",
    "STREAMS",
    "Batch",
    "Learner",
    "LearnerConfig",
    "Memory",
    "Net",
    "Problem",
    "ReplayConfig",
    "Result",
    "RunConfig",
    "Task",
    "build",
    "check_learner",
    "load",
    "option",
    "run",
    "run_many",
    "save",
    "summarise",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'onepass' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"onepass.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
