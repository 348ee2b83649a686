"""Learners from names, and learners from files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def load(path: Path | str) -> Learner:
    """The learner that `save` wrote, in the state it was in: the next step is the one it would have made."""
    tree: Any = load_tree(Path(path))
    try:
        # Version 0.1.0 called the augmentation "views".
        problem = Problem(**{"augment" if name == "views" else name: value for name, value in tree["problem"].items()})
        config = method_class(tree["method"]).Config.from_json(tree["config"])
        learner = build(tree["method"], problem, config, net=tree["net"], seed=tree["seed"])
        state = tree["learner"]
    except UsageError:  # such as a method of one's own that is not here: it says what to do
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise BadCheckpoint(f"{path} holds no learner ({error}): give a file that onepass.save wrote") from error
    load_state(learner, state, Path(path))
    return learner
