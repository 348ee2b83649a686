"""The bytes that a learner holds between two steps: its memory, and its weights with every copy and statistic."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from onepass.bench.schema import conforms
from onepass.methods.registry import METHODS

if TYPE_CHECKING:
    import torch

    from onepass.bench.result import Result
    from onepass.learner.contract import BaseLearner

MOMENTS = {"Adam": 2, "AdamW": 2}  # numbers beside each weight


def held(learner: BaseLearner) -> dict[str, int]:
    """Of a full memory; `model` is weights, statistics, copies and the optimizers' state as far as it is there."""
    memory = [learner.memory.field(name) for name in learner.memory.fields]
    inside = {id(value) for value in memory}
    state = [*learner.parameters(), *(value for value in learner.buffers() if id(value) not in inside)]
    for _, optimizer in learner.optimizers():
        state += [value for row in optimizer.state.values() for value in row.values() if hasattr(value, "numel")]
    return {"memory": _size(memory), "model": _size(state)}


def _size(values: list[torch.Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in values)


def of_result(result: Result) -> dict[str, int] | None:
    """What the run held: as it wrote down, or else by building its learner without weights; None for a method or a
    network of one's own that wrote nothing down."""
    told: Any = result.protocol.get("bytes")
    if conforms(told, dict[str, int]) and set(told) == {"memory", "model"}:
        return dict(told)
    config = result.config
    tasks: Any = result.protocol.get("tasks")
    shape: Any = result.data.get("shape")
    if config.method not in METHODS or ":" in config.net + config.augment:
        return None
    if not conforms(tasks, list[list[str]]) or not conforms(shape, list[int]):
        return None
    names = {name for task in tasks for name in task}
    settings = json.dumps(config.learner_config.to_json(), sort_keys=True)
    try:
        return _built(
            config.method, config.stream, config.net, config.augment, len(names), tuple(shape), len(tasks), settings
        )
    except Exception:  # a damaged or foreign result has no figure; its other figures stand
        return None


@lru_cache(maxsize=1024)
def _built(
    method: str,
    stream: str,
    net: str,
    augment: str,
    n_classes: int,
    shape: tuple[int, ...],
    n_tasks: int,
    settings: str,
) -> dict[str, int]:
    import torch

    from onepass.bench.stream import problem_of
    from onepass.methods.factory import build
    from onepass.methods.registry import method_class

    config = method_class(method).Config.from_json(json.loads(settings))
    with torch.device("meta"):
        learner = build(method, problem_of(stream, n_classes, shape, n_tasks, augment), config, net=net)
    found = held(learner)
    for _, optimizer in learner.optimizers():
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        copies = MOMENTS.get(type(optimizer).__name__, int(bool(optimizer.param_groups[0].get("momentum"))))
        found["model"] += copies * _size(weights)
    return found
