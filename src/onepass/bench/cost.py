"""What a step of a method costs: training FLOPs and the bytes it keeps, as ratios to ER's."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from onepass.bench.footprint import held
from onepass.bench.presets import configured
from onepass.bench.shapes import ShapesAlone
from onepass.config import ReplayConfig
from onepass.learner.batch import Batch, Task
from onepass.learner.contract import BaseLearner
from onepass.learner.problem import Problem
from onepass.methods.factory import build
from onepass.methods.registry import METHODS, method_class
from onepass.seeds import generator

STEPS = 5  # a multiple of every period of the methods here
BATCH = 10
BY_PIXELS = ("gss",)  # methods whose numbers decide what they do next


class Counter(TorchDispatchMode):
    """torch's FLOP formulas over all that runs inside. Its own counter follows modules too, which autograd.grad
    through pixels breaks."""

    flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        value = func(*args, **kwargs)
        if func is torch.ops.aten.convolution_backward.default:
            self.flops += _convolution_backward(*args)
        elif formula := flop_registry.get(_functional(func.overloadpacket)):
            self.flops += formula(*args, **kwargs, out_val=value)
        return value


def _functional(packet: Any) -> Any:
    """The operation itself for its form in place (addmm_), which torch's formulas leave out."""
    return getattr(torch.ops.aten, packet.__name__.removesuffix("_"), packet)


def _convolution_backward(slope: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *others: Any) -> int:
    """As many as forwards, for the inputs and for the weights. torch's formula takes no account of groups."""
    wanted: list[bool] = others[-1]  # of inputs, weights and bias
    return sum(wanted[:2]) * 2 * len(slope) * math.prod(slope.shape[2:]) * weight.numel()


@dataclass(frozen=True)
class Cost:
    flops: float  # of a training step
    model: int  # bytes of weights, statistics, copies and optimizer state
    memory: int  # bytes of the memory when it is full


def measure(method: str, stream: str, problem: Problem, net: str, memory: int, **settings: Any) -> Cost:
    """Counted, and not computed: a step's FLOPs are those of its shapes. Methods that decide by pixels, as one of your
    own may, are computed."""
    computed = method in BY_PIXELS or method not in METHODS
    shapes: AbstractContextManager[object] = nullcontext() if computed else ShapesAlone()
    with shapes:
        learner, batches = prepare(method, stream, problem, net, memory, **settings)
        with Counter() as counter:  # type: ignore[no-untyped-call]  # torch's
            for batch in batches:
                learner.observe(batch)
    return Cost(counter.flops / STEPS, **held(learner))


def prepare(
    method: str, stream: str, problem: Problem, net: str, memory: int, **settings: Any
) -> tuple[BaseLearner, list[Batch]]:
    """A learner in the last task of a stream, with a full memory, and the batches to come.

    Pixels are random: FLOPs do not depend on them, but for methods that stop looking early (GSS).
    """
    known = METHODS.get(method)
    scenario = known.scenario if known else "class-incremental"
    replay = {"memory": memory} if issubclass(method_class(method).Config, ReplayConfig) else {}
    config = configured(method, stream, {**replay, **settings})
    learner = build(method, problem, config, net=net)
    n_tasks = 1 if scenario.startswith("iid") else problem.n_tasks or 1
    groups = [tuple(part.tolist()) for part in torch.arange(problem.n_classes).tensor_split(n_tasks)]
    for index, group in enumerate(groups):
        if index:
            learner.end_task()
        learner.begin_task(Task(index, group))
    rng = generator(0, "cost")
    if learner.warm_up:
        learner.observe(_batch(problem.shape, groups[-1], learner.warm_up, rng))
    _fill(learner, rng)
    size = BATCH * (2 if scenario == "iid++" else 1)
    return learner, [_batch(problem.shape, groups[-1], size, rng) for _ in range(STEPS)]


def _batch(shape: tuple[int, ...], classes: tuple[int, ...], n: int, rng: torch.Generator) -> Batch:
    y = torch.tensor(classes)[torch.randint(len(classes), (n,), generator=rng)]
    if len(shape) != 3:
        return Batch(torch.randn(n, *shape, generator=rng), y)
    return Batch(torch.randint(256, (n, *shape), dtype=torch.uint8, generator=rng), y)


def _fill(learner: BaseLearner, rng: torch.Generator) -> None:
    """Every slot, all classes alike, as if ten times as much had gone by."""
    memory = learner.memory
    if not memory.capacity:
        return
    for name in memory.fields:
        memory.field(name).zero_()
    images = torch.randint(256, memory.field("x").shape, dtype=torch.uint8, generator=rng)
    memory.field("x").copy_(images if memory.field("x").dtype == torch.uint8 else images / 255)
    memory.field("y").copy_(torch.arange(memory.capacity) % learner.problem.n_classes)
    memory.filled, memory.seen = memory.capacity, 10 * memory.capacity
