"""How often a step of each method makes the host wait for its device, counted without a GPU.

    python benchmarks/synchronisations.py [--save results/benchmarks/synchronisations.json]

Tensors that would lie on the device are followed from call to call: weights, buffers, the memory, what is moved there,
and whatever is computed from them. Counted is what brings a number of one of them to the host: `item`, `tolist`,
truth values, boolean masks and other results whose size depends on values, copies to the CPU.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from onepass.bench.cost import prepare
from onepass.learner.problem import Problem
from onepass.methods.registry import METHODS

MARK = "_on_device"
SMALL: dict[str, dict[str, Any]] = {"randumb": {"features": 50}}
READS = {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__contains__", "cpu", "equal"}
SIZED = {"nonzero", "argwhere", "masked_select", "unique", "bincount", "unique_consecutive", "allclose", "is_nonzero"}
INDEXED = {"__getitem__", "__setitem__", "index_put", "index_put_"}


class Synchronisations(TorchFunctionMode):
    """Counts, by the name of what is called, what would make the host wait."""

    def __init__(self, *held: Tensor) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        for value in held:
            setattr(value, MARK, True)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = _name(func)
        there = any(getattr(value, MARK, False) for value in tensors((args, kwargs)))
        to_host = name == "to" and "cpu" in (*args[1:], kwargs.get("device"))
        if there and (name in READS | SIZED or to_host or (name in INDEXED and _masked(args[1]))):
            self.found["to" if to_host else name] += 1
        result = func(*args, **kwargs)
        if name in READS or to_host:
            return result.clone() if isinstance(result, Tensor) else result
        moved = name == "to" and any(isinstance(value, torch.device | Tensor) for value in args[1:])
        if there or moved or isinstance(kwargs.get("device"), torch.device):
            return _marked(result, fresh=moved and not there)
        return result


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", "") or (resolve_name(func) or "").rpartition(".")[2])


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)


def _masked(index: Any) -> bool:
    return any(value.dtype == torch.bool and getattr(value, MARK, False) for value in tensors(index))


def _marked(result: Any, fresh: bool) -> Any:
    if fresh and isinstance(result, Tensor):  # on a CPU it is the tensor itself, which stays on the host
        result = result.view_as(result)
    for value in tensors(result):
        setattr(value, MARK, True)
    return result


def count(method: str) -> dict[str, float]:
    """What makes the host wait in a step, on average: a full memory, the last task."""
    learner, batches = prepare(
        method, "cifar10", Problem(4, (3, 8, 8), "colour", 2), "small-cnn", 100, **SMALL.get(method, {})
    )
    with Synchronisations(*learner.parameters(), *learner.buffers()) as counter:
        for batch in batches:
            learner.observe(batch)
    return {name: number / len(batches) for name, number in sorted(counter.found.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path, help="where to write the counts as JSON")
    parser.add_argument("methods", nargs="*", default=list(METHODS), help="by default all")
    options = parser.parse_args()
    found = {}
    for method in options.methods:
        found[method] = count(method)
        print(f"{method:10} {sum(found[method].values()):5.1f}  {found[method]}", flush=True)
    if options.save:
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
