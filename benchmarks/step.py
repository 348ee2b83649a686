"""What a step of ours costs beside bare PyTorch, in one run, alternating every few steps.

    python benchmarks/step.py [--quick] [--save results/benchmarks/step.json]

The bare loop has the same network, the same forward passes of 20 + 20 images and plain SGD, and gets its inputs ready
made as floats. Ours does all of that and draws views, replays, stores, checks. Three measurements: ratio
of step times (lower quartiles of alternating turns); CPU time of a step with one linear layer as the network and no
views (our own work, mostly); peak resident memory of a process that does one or the other.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from onepass.host import cores
from onepass.learner.base import Learner
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net, make_net
from onepass.learner.precision import computes_bf16
from onepass.learner.problem import Problem
from onepass.methods.registry import method_class

SHAPE = (3, 32, 32)
PEERS = {"RaptorMai": 1.3, "CapyMOA": 2.0, "mammoth": 8.5, "avalanche": 17.0}  # CPU ms, measured once on this machine


def learner_of(method: str, net: Net, views: str, **settings: object) -> Learner:
    cls = method_class(method)
    learner = cls(net, Problem(10, SHAPE, views, 5), cls.Config.from_json(settings), seed=0)
    assert isinstance(learner, Learner)
    learner.begin_task(Task(0, tuple(range(10))))
    return learner


def fill(learner: Learner) -> None:
    """As far as a long stream would have it, without drawing a million images."""
    block = torch.randint(256, (1000, *SHAPE), dtype=torch.uint8)
    for start in range(0, learner.memory.capacity, 1000):
        size = min(1000, learner.memory.capacity - start)
        slots = learner.memory.reservoir(size)
        learner.memory.write(slots, Batch(block[:size], torch.randint(10, (size,))))


def ours(method: str, net: Net, memory: int, views: str = "colour", **settings: object) -> Callable[[], None]:
    learner = learner_of(method, net, views, memory=memory, **settings)
    fill(learner)
    stream = [Batch(torch.randint(256, (10, *SHAPE), dtype=torch.uint8), torch.randint(10, (10,))) for _ in range(20)]
    count = iter(range(10**9))

    def step() -> None:
        learner.observe(stream[next(count) % len(stream)])

    return step


def bare(net: Net, images: int = 20) -> Callable[[], None]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    batches = [torch.rand(images, *SHAPE).contiguous(memory_format=torch.channels_last) for _ in range(4)]
    labels = torch.randint(10, (images,))
    count = iter(range(10**9))

    def step() -> None:
        i = next(count)
        loss = (F.cross_entropy(net(batches[i % 2]), labels) + F.cross_entropy(net(batches[2 + i % 2]), labels)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def alternate(steps: dict[str, Callable[[], None]], rounds: int, turn: int) -> dict[str, list[float]]:
    """Seconds a step for each, turn by turn, so that noise of the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for number in range(rounds):
        shift = number % len(names)  # nobody is always first
        for name in names[shift:] + names[:shift]:
            begin = time.perf_counter()
            for _ in range(turn):
                steps[name]()
            times[name].append((time.perf_counter() - begin) / turn)
    return {name: values[1:] for name, values in times.items()}  # the first turn warms up


def undisturbed(times: list[float]) -> float:
    """The lower quartile: whatever else the machine does only ever adds."""
    return statistics.quantiles(times, n=4)[0]


def step_ratios(net: str, memory: int, rounds: int, turn: int) -> dict[str, object]:
    steps = {"bare": bare(make_net(net, SHAPE, 10, seed=0))}
    for method in ("er", "er-fsl"):
        steps[method] = ours(method, make_net(net, SHAPE, 10, seed=0), memory)
    found = {name: undisturbed(values) for name, values in alternate(steps, rounds, turn).items()}
    row: dict[str, object] = {"net": net, "memory": memory, "bare_ms": 1e3 * found["bare"]}
    return row | {method: found[method] / found["bare"] for method in ("er", "er-fsl")}


def precision_ratios(net: str, rounds: int, threads: int) -> dict[str, float]:
    """How many times as fast ER's steps and evaluations in bf16 are as those in fp32."""
    torch.set_num_threads(threads)
    steps: dict[str, Callable[[], None]] = {}
    for precision in ("fp32", "bf16"):
        network = make_net(net, SHAPE, 10, seed=0)
        steps[f"step {precision}"] = ours("er", network, 1000, precision=precision)
        learner = learner_of("er", make_net(net, SHAPE, 10, seed=0), "colour", memory=1000, precision=precision)
        images = torch.randint(256, (128, *SHAPE), dtype=torch.uint8)
        steps[f"evaluation {precision}"] = lambda learner=learner, images=images: learner.predict(images)  # type: ignore[misc]
    found = {name: undisturbed(values) for name, values in alternate(steps, rounds, 1).items()}
    return {what: found[f"{what} fp32"] / found[f"{what} bf16"] for what in ("step", "evaluation")}


def average_share(net: str, rounds: int) -> float:
    """CPU time of the average's update over that of the ER step it follows; medians, one thread."""
    torch.set_num_threads(1)
    learner = learner_of("er", make_net(net, SHAPE, 10, seed=0), "colour", memory=1000, average=0.98)
    fill(learner)
    assert learner.average is not None
    average, learner.average = learner.average, None
    updates, steps = [], []
    for _ in range(rounds):
        batch = Batch(torch.randint(256, (10, *SHAPE), dtype=torch.uint8), torch.randint(10, (10,)))
        begin = time.process_time()
        learner.observe(batch)
        middle = time.process_time()
        average.follow(learner.steps)
        updates.append(time.process_time() - middle)
        steps.append(middle - begin)
    return statistics.median(updates) / statistics.median(steps)


def own_work(method: str, steps: int) -> float:
    """CPU milliseconds of a step with one linear layer and no views; the least disturbed of five turns."""
    torch.set_num_threads(1)
    step = ours(method, Net(nn.Flatten(), 3 * 32 * 32, 10), 1000, "none")
    best = float("inf")
    for _ in range(5):
        begin = time.process_time()
        for _ in range(steps):
            step()
        best = min(best, (time.process_time() - begin) / steps)
    return 1e3 * best


def peak(what: str, net: str) -> float:
    """Peak resident MB of a fresh process after ten steps."""
    done = subprocess.run([sys.executable, __file__, "--peak", what, net], capture_output=True, text=True, check=True)
    return float(done.stdout)


def peak_here(what: str, net: str) -> None:
    network = make_net(net, SHAPE, 10, seed=0)
    step = bare(network) if what == "bare" else ours(what, network, 1000)
    for _ in range(10):
        step()
    status = Path("/proc/self/status").read_text()  # getrusage would also count the parent's, before exec
    print(int(status.split("VmHWM:")[1].split()[0]) / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps, to see that it works")
    parser.add_argument("--save", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        peak_here(*options.peak)
        return
    torch.set_num_threads(cores())
    rounds = 3 if options.quick else 25
    plan = [
        ("slim-resnet18", 1000, 4),
        ("slim-resnet18", 1_000_000, 4),
        ("resnet18", 1000, 1),
        ("resnet18", 1_000_000, 1),
    ]
    ratios = []
    print("step time over bare PyTorch's      bare ms      er  er-fsl")
    for net, memory, turn in plan[: 1 if options.quick else 4]:
        row = step_ratios(net, memory, rounds, turn)
        ratios.append(row)
        print(
            f"{net:14} memory {memory:9,}  {row['bare_ms']:10.0f}  {row['er']:6.3f}  {row['er-fsl']:6.3f}", flush=True
        )
    peaks = {}
    for net in ("slim-resnet18", "resnet18"):
        base = peak("bare", net)
        peaks[net] = {"bare_mb": base, **{method: peak(method, net) / base for method in ("er", "er-fsl")}}
        print(f"peak memory, {net}: bare {base:.0f} MB, er {peaks[net]['er']:.2f}, er-fsl {peaks[net]['er-fsl']:.2f}")
    share = {net: average_share(net, 5 if options.quick else 25) for net in ("slim-resnet18", "resnet18")}
    print(f"an average's update over its step: {', '.join(f'{net} {value:.4f}' for net, value in share.items())}")
    low = []
    for net in ("slim-resnet18", "resnet18") if computes_bf16("cpu") else ():
        for threads in dict.fromkeys((1, cores())):  # one is what a run has beside others
            found = precision_ratios(net, rounds, threads)
            low.append({"net": net, "threads": threads, **found})
            times = f"a step {found['step']:.2f}, an evaluation {found['evaluation']:.2f} times as fast"
            print(f"bf16 over fp32, {net}, threads {threads}: {times}", flush=True)
    own = {method: own_work(method, 100 if options.quick else 500) for method in ("er", "er-fsl")}
    print(f"own work, CPU ms a step: {', '.join(f'{name} {value:.2f}' for name, value in own.items())}; peers: {PEERS}")
    if options.save:
        facts = {"torch": torch.__version__, "cores": cores(), "machine": platform.machine()}
        figures = {
            "ratios": ratios,
            "peak_memory": peaks,
            "own_work_ms": own,
            "average": share,
            "bf16": low,
            "peers_ms": PEERS,
            "rounds": rounds,
        }
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps({**figures, "host": facts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
