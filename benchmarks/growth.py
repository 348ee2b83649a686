"""What a step takes and keeps, against the size of the memory, the number of classes and the size of images.

    python benchmarks/growth.py [--quick] [--save results/benchmarks/growth.json] [METHOD ...]

The network is as small as one can be, so that it hides nothing: an image's averages over 2x2 parts, and the head. One
thread, each point in a process of its own, the memory full, all classes seen. A memory of ten million holds grey images
of 4x4 pixels: of 32x32 in colour it would take 31 GB. Times are CPU time a step, the lower quartile; bytes are what
the process has taken at most, with all that a step holds for a moment, beyond what steps of a tiny learner took.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import re
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from onepass.learner.batch import Batch, Task
from onepass.learner.memory import Memory
from onepass.learner.net import make_net
from onepass.learner.problem import Problem
from onepass.methods.registry import method_class

METHODS = ("er", "er-fsl", "er-fsl+", "pcr", "aser", "gss")
STEPS, SECONDS = 40, 1.0  # a point ends with whichever comes first, but not before so many steps:
FEWEST = 6


@dataclass(frozen=True)
class Point:
    memory: int = 1000
    classes: int = 10
    side: int = 32


GREY = 4  # side of the images of the first axis
AXES = {
    "memory": [Point(memory=10**power, side=GREY) for power in range(3, 8)],
    "classes": [Point(memory=10_000, classes=10**power, side=8) for power in range(1, 5)],
    "side": [Point(side=side) for side in (32, 64, 96, 160, 224)],
}


class Averages(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.unflatten(3, (2, -1)).unflatten(2, (2, -1))
        found: torch.Tensor = parts.mean(dim=(3, 5)).flatten(1)
        return found


def fill(memory: Memory, n_classes: int) -> None:
    """As far as a long stream would have it: every slot, the classes alike."""
    for name in memory.fields:
        memory.field(name).zero_()
    memory.field("x").random_(256)
    torch.arange(memory.capacity, out=memory.field("y")).remainder_(n_classes)
    memory.filled, memory.seen = memory.capacity, 10 * memory.capacity


def measured(method: str, point: Point) -> dict[str, float]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    milliseconds(method, Point(memory=20, side=GREY))  # what torch sets up once is no growth
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # from here on the peak is that of what follows
    return {"ms": milliseconds(method, point), "peak": status("VmHWM") - before}


def milliseconds(method: str, point: Point) -> float:
    """Of a step."""
    shape = (1 if point.side == GREY else 3, point.side, point.side)
    cls = method_class(method)
    problem = Problem(point.classes, shape, "colour" if shape[0] == 3 else "none", 1)
    net = make_net(Averages(), shape, point.classes, seed=0)
    learner = cls(net, problem, cls.Config.from_json({"memory": point.memory}), seed=0)
    learner.begin_task(Task(0, tuple(range(point.classes))))
    fill(learner.memory, point.classes)
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < FEWEST or (len(times) < STEPS and time.perf_counter() - began < SECONDS):
        batch = Batch(torch.randint(256, (10, *shape), dtype=torch.uint8), torch.randint(point.classes, (10,)))
        begin = time.process_time()
        learner.observe(batch)
        times.append(time.process_time() - begin)
    return 1e3 * statistics.quantiles(times[2:], n=4)[0]  # the first steps find out what lies where


def status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--quick", action="store_true", help="the ends of the axes but for the largest, to see it work")
    parser.add_argument("--save", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args()
    context = multiprocessing.get_context("fork")  # whatever is imported is there already
    rows = []
    for axis, points in AXES.items():
        for method in options.methods:
            for point in points[:-1:2] if options.quick else points:
                with context.Pool(1) as pool:
                    found = pool.apply(measured, (method, point))
                size = getattr(point, axis)
                rows.append({"axis": axis, "size": size, "method": method, "point": asdict(point), **found})
                print(f"{method:8} {axis} {size:10,}  {found['ms']:9.2f} ms  {found['peak'] / 1e6:8.1f} MB", flush=True)
    if options.save:
        host = {"torch": torch.__version__, "cores": os.cpu_count(), "machine": platform.machine()}
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps({"rows": rows, "host": host}, indent=1) + "\n")


if __name__ == "__main__":
    main()
