"""Learners from names, and learners from files."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onepass.config import LearnerConfig, unknown
from onepass.errors import BadCheckpoint, UsageError
from onepass.learner.base import Learner, Problem
from onepass.learner.checkpoint import load_state, load_tree, save_tree
from onepass.learner.net import NETS, make_net
from onepass.methods.registry import method_class


def build(
    method: str,
    problem: Problem,
    config: LearnerConfig | Mapping[str, Any] | None = None,
    *,
    net: str = "slim-resnet18",
    seed: int = 0,
) -> Learner:
    """A learner by its method's name (or MODULE:CLASS) and its network's; `config` may be a mapping of settings."""
    cls = method_class(method)
    if net not in NETS:
        raise unknown("net", net, NETS, "allowed")
    settings = cls.Config.from_json(config or {}) if config is None or isinstance(config, Mapping) else config
    if type(settings) is not cls.Config:
        raise UsageError(f"config of {type(settings).__name__}: {method} needs {cls.Config.__name__} or a mapping")
    network = make_net(net, problem.shape, problem.n_classes, seed=seed)
    learner = cls(network, problem, settings, seed=seed)
    learner.recipe = {"method": method, "net": net, "seed": seed}
    return learner


def save(learner: Learner, path: Path | str) -> None:
    """Everything the learner needs to go on, in one file, written atomically."""
    if learner.recipe is None:
        raise ValueError("only a learner made by onepass.build can be saved whole: the file must say how to rebuild it")
    problem = dataclasses.asdict(learner.problem)
    with learner.exclusive("save"):
        recipe = {**learner.recipe, "problem": problem, "config": learner.config.to_json()}
        save_tree(Path(path), {**recipe, "learner": learner.state_dict()})


def load(path: Path | str, allow: Collection[str] = ()) -> Learner:
    """The learner that `save` wrote, in the state it was in: the next step is the one it would have made.

    A file may name a method of one's own, as MODULE:CLASS, and to import that runs its code: only those that are
    allowed are imported.
    """
    path = Path(path)
    tree: Any = load_tree(path)
    try:
        method, net, seed, state = tree["method"], tree["net"], tree["seed"], tree["learner"]
        if not isinstance(method, str) or not isinstance(net, str) or type(seed) is not int:
            raise ValueError("its method, network and seed are not two words and a number")
        # Version 0.1.0 called the augmentation "views".
        problem = Problem(**{"augment" if name == "views" else name: value for name, value in tree["problem"].items()})
        if ":" in method and method not in allow and not method.startswith("onepass."):
            raise UsageError(
                f"{path} names a method of its own, and importing that runs its code: if you trust it, "
                f"load({str(path)!r}, allow=({method!r},))"
            )
        config = method_class(method).Config.from_json(tree["config"])
        _check_sizes(path, method, problem, config, net, state)
        learner = build(method, problem, config, net=net, seed=seed)
    except (UsageError, BadCheckpoint):  # such as a method of one's own that is not here: it says what to do
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadCheckpoint(f"{path} holds no learner ({error}): give a file that onepass.save wrote") from error
    load_state(learner, state, path)
    return learner


def _check_sizes(path: Path, method: str, problem: Problem, config: LearnerConfig, net: str, state: Any) -> None:
    """Refuse a state of other sizes than the file claims before memory is taken for them."""
    try:
        with torch.device("meta"):
            planned = build(method, problem, config, net=net).state_dict()
    except UsageError:
        raise
    except Exception:  # a method of one's own that needs real numbers; it was allowed
        return
    for name, value in planned.items():
        given = state[name]
        if isinstance(value, Tensor) and (not isinstance(given, Tensor) or given.shape != value.shape):
            raise BadCheckpoint(f"{path} does not fit {method}: its {name} is not {tuple(value.shape)}")
    rows = state["memory._extra_state"]["rows"]
    if rows["x"].shape[1:] != torch.Size(problem.shape):
        raise BadCheckpoint(f"{path} does not fit {method}: its memory does not hold images of {problem.shape}")
