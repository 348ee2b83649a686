"""Table 5: what methods cost beside ER, and the paper's figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onepass.bench.cost import measure
from onepass.bench.stream import problem_of
from onepass.data.catalog import canonical as stream_name
from onepass.data.catalog import find_stream, load, suited
from onepass.errors import UsageError
from onepass.learner.net import check_net
from onepass.learner.problem import Problem
from onepass.methods.registry import METHODS, canonical, trains
from onepass.paper.printed import printed
from onepass.report import tables

NOTES = {
    "gss": "it stops looking at the memory as soon as one of its gradients agrees with the new batch's, so its FLOPs "
    "depend on the stream, from 1.5 to 4 times ER's; here, and in `onepass methods`, they are those on random pixels",
    "aser": "it scores some samples of each class, so its FLOPs grow with the classes: the 4.2 in `onepass methods` is "
    "for nine samples of each of ten classes, as on cifar10",
    "obc": "the paper counts the second memory batch as training; it is only passed forward, and one layer is trained. "
    "Its memory of > 1 is that layer's second copy, which is counted in model / ER and small beside the network",
    "gdumb": "a step only stores; it trains at a task's end. The 1.6 in `onepass methods` is 32 passes over a memory "
    "of 1,000, spread over the 1,000 steps of a task of cifar10",
    "mose": "its experts weigh more beside a small network than beside a large one: the 2.1 in `onepass methods` is "
    "for resnet18 on cifar10",
    "ocm": "the paper's 16 leaves out the passes through the copy of the network (170 images) and the labelled "
    "augmentations; its memory of 2 leaves out Adam's two numbers for each weight",
}
UNCOUNTED = (
    "Not counted: what is held only during a step, copies of weights (MIR, ER-DVC, GMED, OBC) or gradients (GSS)."
)


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
        kept = {} if average is None else {"average": average}
        costs[method] = measure(method, stream, problem, net if trains(method) else "", memory, **kept)
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
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[str, Any], tables.Table]:
    """What methods cost beside ER, as facts and as a table."""
    names = list(dict.fromkeys(map(canonical, methods))) or list(METHODS)
    if memory < 1:
        raise UsageError(f"--memory {memory}: must be at least 1")
    name = stream_name(stream)
    kind = find_stream(name)
    n_classes: int = kind.n_classes
    shape: tuple[int, ...] = kind.shape
    if not n_classes:
        data = load(name, root=data_dir)
        n_classes, shape = len(data.classes), tuple(data.x.shape[1:])
    net = net or suited(name).net
    check_net(net)
    problem = problem_of(name, n_classes, shape, min(kind.n_tasks, n_classes))
    rows = compare(names, name, problem, net, memory, average, progress)
    kept = "" if average is None else f"; an average (decay {average:g}) beside each, but not beside ER's"
    done = f"{name}, {net}, memory {memory}: one training step in the last task, the memory full{kept}."
    facts = {"stream": name, "net": net, "memory": memory, "rows": rows}
    return facts, table(rows, [done, *footer(rows)])
