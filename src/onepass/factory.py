"""Learners from names, and learners from files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from onepass.checkpoint import load_state, load_tree, save_tree
from onepass.config import LearnerConfig, unknown
from onepass.errors import BadCheckpoint
from onepass.learner import Learner, Problem
from onepass.methods import method_class
from onepass.net import NETS, make_net


def build(
    method: str, problem: Problem, config: LearnerConfig | None = None, *, net: str = "slim-resnet18", seed: int = 0
) -> Learner:
    """A learner by its method's name (or MODULE:CLASS) and its network's."""
    cls = method_class(method)
    if net not in NETS:
        raise unknown("net", net, NETS, "allowed")
    network = make_net(net, problem.shape, problem.n_classes, seed=seed)
    learner = cls(network, problem, cls.Config() if config is None else config, seed=seed)
    learner.recipe = {"method": method, "net": net, "seed": seed}
    return learner


def save(learner: Learner, path: Path | str) -> None:
    """Everything the learner needs to go on, in one file, written atomically."""
    if learner.recipe is None:
        raise ValueError("only a learner made by onepass.build can be saved whole: the file must say how to rebuild it")
    problem = dataclasses.asdict(learner.problem)
    tree = {**learner.recipe, "problem": problem, "config": learner.config.to_json(), "learner": learner.state_dict()}
    save_tree(Path(path), tree)


def load(path: Path | str) -> Learner:
    """The learner that `save` wrote, in the state it was in: the next step is the one it would have made."""
    tree: Any = load_tree(Path(path))
    try:
        problem = Problem(**{**tree["problem"], "shape": tuple(tree["problem"]["shape"])})
        config = method_class(tree["method"]).Config.from_json(tree["config"])
        learner = build(tree["method"], problem, config, net=tree["net"], seed=tree["seed"])
        state = tree["learner"]
    except (KeyError, TypeError, ValueError) as error:
        raise BadCheckpoint(f"{path} does not describe a learner: {error!r}") from error
    load_state(learner, state, Path(path))
    return learner
