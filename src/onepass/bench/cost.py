"""What a step of a method costs: training FLOPs and the bytes it keeps, as ratios to ER's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from onepass.bench.presets import preset
from onepass.cli.progress import Bar
from onepass.config import ReplayConfig, unknown
from onepass.data.catalog import canonical as stream_name
from onepass.data.catalog import find_stream, load
from onepass.errors import UsageError
from onepass.learner.base import Learner, Problem
from onepass.learner.batch import Batch, Task
from onepass.learner.net import NETS
from onepass.methods.factory import build
from onepass.methods.registry import METHODS, canonical, method_class
from onepass.paper.printed import printed
from onepass.report import tables
from onepass.seeds import generator

STEPS = 5  # a multiple of every period of the methods here
BATCH = 10
NOTES = {
    "gss": "it stops looking at the memory as soon as one of its gradients agrees with the new batch's, so its FLOPs "
    "depend on the stream, from 1.5 to 4 times ER's; here, and in `onepass methods`, they are those on random pixels",
    "aser": "it scores some samples of each class, so its FLOPs grow with the classes: the 4.2 in `onepass methods` is "
    "for nine samples of each of ten classes, as on cifar10",
    "obc": "the paper counts the second memory batch as training; it is only passed forward, and one layer is trained. "
    "Its memory of > 1 is that layer's second copy, which is counted in model / ER and small beside the network",
    "ocm": "the paper's 16 leaves out the passes through the copy of the network (170 images) and the labelled views; "
    "its memory of 2 leaves out Adam's two numbers for each weight",
}
UNCOUNTED = (
    "Not counted: what is held only during a step, copies of weights (MIR, ER-DVC, GMED, OBC) or gradients (GSS)."
)


class Counter(TorchDispatchMode):
    """torch's FLOP formulas over all that runs inside. Its own counter follows modules too, which autograd.grad
    through pixels breaks."""

    flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        value = func(*args, **kwargs)
        if formula := flop_registry.get(func.overloadpacket):
            self.flops += formula(*args, **kwargs, out_val=value)
        return value


@dataclass(frozen=True)
class Cost:
    flops: float  # of a training step
    model: int  # bytes of weights, statistics, copies and optimiser state
    memory: int  # bytes of the memory when it is full


def measure(method: str, stream: str, problem: Problem, net: str, memory: int, **settings: Any) -> Cost:
    learner, batches = prepare(method, stream, problem, net, memory, **settings)
    with Counter() as counter:  # type: ignore[no-untyped-call]  # torch's
        for batch in batches:
            learner.observe(batch)
    return Cost(counter.flops / STEPS, *_bytes(learner))


def prepare(
    method: str, stream: str, problem: Problem, net: str, memory: int, **settings: Any
) -> tuple[Learner, list[Batch]]:
    """A learner in the last task of a stream, with a full memory, and the batches to come.

    Pixels are random: FLOPs do not depend on them, but for methods that stop looking early (GSS).
    """
    known = METHODS.get(method)
    scenario = known.scenario if known else "class-incremental"
    config = method_class(method).Config.from_json({**_settings(method, stream, memory), **settings})
    learner = build(method, problem, config, net=net)
    n_tasks = 1 if scenario.startswith("iid") else problem.n_tasks or 1
    groups = [tuple(part.tolist()) for part in torch.arange(problem.n_classes).tensor_split(n_tasks)]
    for index, group in enumerate(groups):
        if index:
            learner.end_task()
        learner.begin_task(Task(index, group))
    rng = generator(0, "cost")
    _fill(learner, rng)
    size = BATCH * (2 if scenario == "iid++" else 1)
    return learner, [_batch(problem.shape, groups[-1], size, rng) for _ in range(STEPS)]


def _settings(method: str, stream: str, memory: int) -> Mapping[str, Any]:
    given = {"memory": memory} if issubclass(method_class(method).Config, ReplayConfig) else {}
    return {**preset(stream, method), **given}


def _batch(shape: tuple[int, int, int], classes: tuple[int, ...], n: int, rng: torch.Generator) -> Batch:
    y = torch.tensor(classes)[torch.randint(len(classes), (n,), generator=rng)]
    return Batch(torch.randint(256, (n, *shape), dtype=torch.uint8, generator=rng), y)


def _fill(learner: Learner, rng: torch.Generator) -> None:
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


def _bytes(learner: Learner) -> tuple[int, int]:
    memory = [learner.memory.field(name) for name in learner.memory.fields]
    held = {id(value) for value in memory}
    state = [*learner.parameters(), *(value for value in learner.buffers() if id(value) not in held)]
    for _, optimizer in learner.optimizers():
        state += [value for row in optimizer.state.values() for value in row.values() if torch.is_tensor(value)]
    return _size(state), _size(memory)


def _size(values: list[torch.Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in values)


def compare(
    methods: list[str],
    stream: str,
    problem: Problem,
    net: str,
    memory: int,
    average: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[dict[str, Any]]:
    """A row for each method: its costs over ER's, beside what the paper prints. ER itself keeps no average."""
    paper = printed()["table5"]
    costs = {}
    for done, method in enumerate(methods):
        progress(done, len(methods))
        costs[method] = measure(method, stream, problem, net, memory, average=average)
    er = measure("er", stream, problem, net, memory)
    return [
        {
            "method": method,
            "computation": costs[method].flops / er.flops,
            "computation_printed": paper["computation"].get(method),
            "model": costs[method].model / er.model,
            "memory": costs[method].memory / er.memory,
            "memory_printed": paper["memory"].get(method),
            "flops": costs[method].flops,
            "model_bytes": costs[method].model,
            "memory_bytes": costs[method].memory,
            "note": NOTES.get(method, ""),
        }
        for method in methods
    ]


def table(rows: list[dict[str, Any]], notes: list[str]) -> tables.Table:
    heads = ["method", "FLOPs / ER", "FLOPs, paper", "model / ER", "memory, paper", "memory / ER"]
    names = ("computation", "computation_printed", "model", "memory_printed", "memory")
    lines = []
    for row in rows:
        values = [row[name] for name in names]
        texts = [f"{value:.2f}" if isinstance(value, float) else str(value or "") for value in values]
        lines.append([tables.Cell(text) for text in (row["method"], *texts)])
    return tables.Table("Computation and memory beside ER's", heads, lines, notes)


def footer(rows: list[dict[str, Any]]) -> list[str]:
    """What the figures leave out, and why some differ from the paper's."""
    notes = [f"{METHODS[row['method']].title}: {row['note']}" for row in rows if row["note"]]
    return [UNCOUNTED, *notes]


def counted(
    methods: Sequence[str],
    stream: str,
    net: str = "",
    memory: int = 1000,
    average: float | None = None,
    data_dir: Path | None = None,
) -> tuple[dict[str, Any], tables.Table]:
    """What methods cost beside ER, as facts and as a table."""
    names = list(dict.fromkeys(map(canonical, methods))) or list(METHODS)
    if memory < 1:
        raise UsageError(f"--memory {memory}: must be at least 1")
    name = stream_name(stream)
    kind = find_stream(name)
    n_classes, shape = kind.n_classes, kind.shape
    if not n_classes:
        data = load(name, root=data_dir)
        channels, height, width = data.x.shape[1:]
        n_classes, shape = len(data.classes), (channels, height, width)
    net = net or kind.net
    if net not in NETS:
        raise unknown("net", net, NETS, "allowed")
    problem = Problem(n_classes, shape, kind.augment, min(kind.n_tasks, n_classes))
    with Bar("counting") as bar:
        rows = compare(names, name, problem, net, memory, average, bar.report)
    kept = "" if average is None else f"; an average (decay {average:g}) beside each, but not beside ER's"
    done = f"{name}, {net}, memory {memory}: one training step in the last task, the memory full{kept}."
    facts = {"stream": name, "net": net, "memory": memory, "rows": rows}
    return facts, table(rows, [done, *footer(rows)])
