"""Learners from names, and learners from files."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onepass.config import LearnerConfig, Settings
from onepass.errors import BadCheckpoint, UsageError, lacks_memory
from onepass.learner.checkpoint import load_state, load_tree, save_tree
from onepass.learner.contract import BaseLearner
from onepass.learner.net import Factory, network_and_encoder
from onepass.learner.problem import Problem
from onepass.learner.uncompiled import without_compiler
from onepass.methods.registry import method_class
from onepass.names import is_own, path_of


def build(
    method: str,
    problem: Problem,
    config: Settings | Mapping[str, Any] | None = None,
    *,
    net: str | Factory | nn.Module = "",
    seed: int = 0,
) -> BaseLearner:
    """A learner by its method's name (or MODULE:CLASS); `config` may be a mapping of settings.

    `net` is a network's name, or one of your own: the path MODULE:FACTORY of a function of a sample's shape that gives
    an nn.Module from samples to features, that function, or the module itself. Default: slim-resnet18 for images, mlp
    for vectors, and none for methods that train no network.
    """
    return _build(method, problem, config, net, seed)


def _build(
    method: str,
    problem: Problem,
    config: Settings | Mapping[str, Any] | None,
    net: str | Factory | nn.Module,
    seed: int,
    draw: bool = True,
) -> BaseLearner:
    cls = method_class(method)
    settings = cls.Config.from_json(config or {}) if config is None or isinstance(config, Mapping) else config
    if type(settings) is not cls.Config:
        raise UsageError(f"config of {type(settings).__name__}: {method} needs {cls.Config.__name__} or a mapping")
    net = net or ("linear" if cls.frozen_net else "slim-resnet18" if problem.images else "mlp")
    network, encoder = network_and_encoder(
        net, problem.shape, problem.n_classes, seed=seed, frozen=cls.frozen_net, draw=draw
    )
    more = {} if encoder is None else {"encoder": encoder}
    learner = cls(network, problem, settings, seed=seed, **more)
    name = net if isinstance(net, str) else "" if isinstance(net, nn.Module) else path_of(net)
    learner.recipe = {"method": method, "net": name, "seed": seed}
    if isinstance(settings, LearnerConfig) and settings.expert:
        learner.expert = _expert(learner, seed)
    return learner


def _expert(learner: BaseLearner, seed: int) -> BaseLearner:
    """Of what the learner's network takes: images, vectors, or the features of a frozen network."""
    images = learner.problem.images and learner.encoder is None
    shape = learner.sample_shape if images else (math.prod(learner.sample_shape),)
    augment = learner.problem.augment if images else "none"
    problem = dataclasses.replace(learner.problem, shape=shape, augment=augment)
    return _build("patch-lda" if images else "slda", problem, None, "linear", seed)


def save(learner: BaseLearner, path: Path | str) -> None:
    """Everything the learner needs to go on, in one file, written atomically."""
    with learner.exclusive("save"):
        save_tree(Path(path), learner_tree(learner))


def learner_tree(learner: BaseLearner) -> dict[str, Any]:
    """How a learner was built, and its state: shared with it, not copied."""
    if learner.recipe is None:
        raise ValueError("only a learner made by onepass.build can be saved whole: the file must say how to rebuild it")
    with without_compiler():
        recipe = {**learner.recipe, "problem": dataclasses.asdict(learner.problem), "config": learner.config.to_json()}
        return {**recipe, "learner": learner.state_dict()}


def load(path: Path | str, allow: Collection[str] = (), *, net: str | Factory | nn.Module | None = None) -> BaseLearner:
    """The learner that `save` wrote, in the state it was in: the next step is the one it would have made.

    A file may name a method, a network or an augmentation of one's own, and to import that runs its code: only those
    that are allowed are imported. `net` stands in for the network that the file names; one that was built from a
    module has no name.
    """
    return learner_from_tree(load_tree(Path(path)), Path(path), allow, net=net)


def learner_from_tree(
    tree: Any, path: Path, allow: Collection[str] = (), *, net: str | Factory | nn.Module | None = None
) -> BaseLearner:
    """The learner of a tree that was read from a path."""
    try:
        method, named, seed, state = tree["method"], tree["net"], tree["seed"], tree["learner"]
        if not isinstance(method, str) or not isinstance(named, str) or type(seed) is not int:
            raise ValueError("its method, network and seed are not two words and a number")
        # Version 0.1.0 called the augmentation "views".
        problem = Problem(**{"augment" if name == "views" else name: value for name, value in tree["problem"].items()})
        if net is None and not named:
            raise UsageError(f"{path} holds a learner on a network without a name: load({str(path)!r}, net=...)")
        _check_allowed(path, allow, method=method, network="" if net else named, augmentation=problem.augment)
        config = method_class(method).Config.from_json(tree["config"])
        with without_compiler():
            numbered = tree.get("numbered") is True
            _check_sizes(path, method, problem, config, net or named, state, numbered)
            # The state replaces all weights; but a method of one's own may keep something made of the first ones.
            learner = _build(method, problem, config, net or named, seed, draw=is_own(method))
            if numbered:
                learner.number_samples()
    except (UsageError, BadCheckpoint):  # such as a method of one's own that is not here: it says what to do
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadCheckpoint(f"{path} holds no learner ({error}): give a file that onepass.save wrote") from error
    with without_compiler():
        load_state(learner, state, path)
    return learner


def _check_allowed(path: Path, allow: Collection[str], **named: str) -> None:
    own = {kind: name for kind, name in named.items() if is_own(name)}
    for kind, name in own.items():
        if name not in allow:
            raise UsageError(
                f"{path} names {'an' if kind[0] in 'aeiou' else 'a'} {kind} of its own, and importing that runs its "
                f"code: if you trust it, load({str(path)!r}, allow={tuple(own.values())!r})"
            )


def _check_sizes(
    path: Path,
    method: str,
    problem: Problem,
    config: Settings,
    net: str | Factory | nn.Module,
    state: Any,
    numbered: bool,
) -> None:
    """Refuse a state of other sizes than the file claims before memory is taken for them."""
    if isinstance(net, nn.Module):
        return
    try:
        with torch.device("meta"):
            planned = build(method, problem, config, net=net)
            if numbered:
                planned.number_samples()
    except UsageError:
        raise
    except Exception as error:  # a method or network of one's own that needs real numbers; it was allowed
        if lacks_memory(error):
            raise
        return
    for name, value in planned.state_dict().items():
        given = state[name]
        if isinstance(value, Tensor) and (not isinstance(given, Tensor) or given.shape != value.shape):
            raise BadCheckpoint(f"{path} does not fit {method}: its {name} is not {tuple(value.shape)}")
    rows = state["memory._extra_state"]["rows"]
    if rows["x"].shape[1:] != torch.Size(planned.sample_shape):
        raise BadCheckpoint(f"{path} does not fit {method}: its memory holds no samples of {planned.sample_shape}")
