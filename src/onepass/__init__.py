"""onepass: online continual learning. Names are imported when first used, so `import onepass` costs nothing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onepass.bench.metrics import summarise
    from onepass.bench.result import Result
    from onepass.bench.run_config import RunConfig
    from onepass.bench.runner import run
    from onepass.config import LearnerConfig, ReplayConfig, option
    from onepass.data.catalog import STREAMS
    from onepass.executors import run_many
    from onepass.learner.base import Learner
    from onepass.learner.batch import Batch, Task
    from onepass.learner.checks import check_learner
    from onepass.learner.memory import Memory
    from onepass.learner.net import Net
    from onepass.learner.problem import Problem
    from onepass.live.classifier import StreamClassifier
    from onepass.methods.factory import build, load, save
    from onepass.methods.registry import METHODS

__version__ = "0.2.0.dev0"

_HOME = {
    "Batch": "learner.batch",
    "Task": "learner.batch",
    "build": "methods.factory",
    "load": "methods.factory",
    "save": "methods.factory",
    "check_learner": "learner.checks",
    "LearnerConfig": "config",
    "ReplayConfig": "config",
    "option": "config",
    "run_many": "executors",
    "Learner": "learner.base",
    "Problem": "learner.problem",
    "Memory": "learner.memory",
    "METHODS": "methods.registry",
    "summarise": "bench.metrics",
    "Net": "learner.net",
    "Result": "bench.result",
    "RunConfig": "bench.run_config",
    "run": "bench.runner",
    "STREAMS": "data.catalog",
    "StreamClassifier": "live.classifier",
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
    "StreamClassifier",
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
