"""What data costs: first and second load, memory, and the stream beside a bare index-and-convert loop.

    python benchmarks/data.py STREAM --data-dir DIR [--save results/benchmarks/data.json]

Each load is a process of its own. The stream is read in batches of 10, as a run does; the bare loop indexes the same
rows of the same array and makes floats of them. Both in one process, turn by turn.

A whole run (ER with a memory of 1000 and an evaluation after each task) is measured in another process, with a network
of one layer: what it needs beyond torch is then the data, the memory, the views and our own work.

The start of a command is the shortest of five from its call to its first step, its arrays made before. With `--beside`,
another version's python, only that is measured, in turns.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from onepass.bench.run import Run
from onepass.bench.run_config import RunConfig
from onepass.bench.stream import StreamConfig, TaskData, batches, make_tasks
from onepass.data import Dataset, cache, cifar, folder, mini_imagenet  # noqa: F401  # imports are not what is timed
from onepass.data.catalog import Datasets, cache_folder, canonical, load
from onepass.learner.augment import decode
from onepass.learner.batch import Batch
from onepass.learner.net import Net, Pool
from onepass.learner.problem import Problem
from onepass.methods.er import ER, ERConfig

TURNS = 5  # of timing the start of a command


def resident() -> float:
    """Peak resident MB of this process."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def one_load(stream: str, root: Path, epoch: bool) -> dict[str, float]:
    before = resident()
    begin = time.perf_counter()
    data = load(stream, root=root)
    seconds = time.perf_counter() - begin
    if epoch:
        passes(data, stream_tasks(data))
    return {"seconds": seconds, "resident_mb": resident() - before, "images": len(data.y) + len(data.y_test)}


def one_run(stream: str, root: Path) -> dict[str, float]:
    """Resident MB that a run adds to what the process has after importing torch and one step of the same network."""
    run = Run(RunConfig("er", stream, tasks=10), datasets=Datasets(root))
    shape, n_classes = run.learner.problem.shape, run.learner.problem.n_classes
    problem = Problem(n_classes, shape, "colour", 10)

    def tiny() -> ER:
        return ER(Net(Pool(), shape[0], n_classes), problem, ERConfig(memory=1000), seed=0)

    learner = tiny()
    learner.observe(Batch(torch.zeros(10, *shape, dtype=torch.uint8), torch.arange(10)))
    before, run.learner = resident(), tiny()
    run.advance()
    return {"resident_mb": resident() - before}


def startup(stream: str, root: Path, pythons: Sequence[str]) -> list[list[float]]:
    """Seconds from the start of `onepass run` to its first step, by each of these interpreters, in turns."""
    seconds: list[list[float]] = [[] for _ in pythons]
    for _ in range(TURNS):
        for python, times in zip(pythons, seconds, strict=True):
            with tempfile.TemporaryDirectory() as out:
                words = [python, "-m", "onepass", "run", "first_step:FirstStep", "--stream", stream, "--jobs", "1"]
                begin = time.perf_counter()
                subprocess.run([*words, "--data-dir", str(root), "--out", out], cwd=Path(__file__).parent, check=True)
                times.append(time.perf_counter() - begin)
    return seconds


def stream_tasks(data: Dataset) -> list[TaskData]:
    return make_tasks(data, StreamConfig(n_tasks=min(10, len(data.classes))), seed=0)[1]


def passes(data: Dataset, tasks: list[TaskData]) -> None:
    """A whole stream, task by task, with its pages given back after each, as a run does. Sums keep it honest."""
    for task in tasks:
        for batch in batches(data, task, 10):
            float(decode(batch.x).sum() + batch.y[0])
        data.release()


def bare(data: Dataset, tasks: list[TaskData]) -> None:
    for rows in torch.randperm(len(data.y)).split(10):
        float((data.x[rows].float() / 255).sum() + data.y[rows][0])


def measured(stream: str, root: Path, what: str) -> dict[str, float]:
    words = [sys.executable, __file__, stream, "--data-dir", str(root), "--one", what]
    figures: dict[str, float] = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    return figures


def keep(stream: str, figures: dict[str, float], file: Path | None) -> None:
    """Print figures and, where asked, put them beside what is known of the stream."""
    print(stream, json.dumps(figures, indent=1))
    if file:
        known = json.loads(file.read_text()) if file.exists() else {}
        name = Path(stream).name
        file.write_text(json.dumps({**known, name: {**known.get(name, {}), **figures}}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--save", type=Path, help="add the figures to this JSON file")
    parser.add_argument("--beside", help="another version's python: only the start of a run is measured, in turns")
    parser.add_argument("--one", choices=["load", "epoch", "run"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    stream = canonical(options.stream)
    if options.one:
        one = one_run(stream, options.data_dir) if options.one == "run" else None
        print(json.dumps(one or one_load(stream, options.data_dir, options.one == "epoch")))
        return
    if options.beside:
        load(stream, root=options.data_dir)
        theirs, ours = startup(stream, options.data_dir, [options.beside, sys.executable])
        keep(stream, {"startup_beside_s": min(theirs), "startup_s": min(ours)}, options.save)
        return
    shutil.rmtree(cache_folder(stream, options.data_dir, 0), ignore_errors=True)
    first, second, whole, run = (measured(stream, options.data_dir, what) for what in ("load", "load", "epoch", "run"))
    data, ratios = load(stream, root=options.data_dir), []
    tasks = stream_tasks(data)
    for _ in range(5):
        times = []
        for turn in (passes, bare):
            begin = time.perf_counter()
            turn(data, tasks)
            times.append(time.perf_counter() - begin)
        ratios.append(times[0] / times[1])
    [started] = startup(stream, options.data_dir, [sys.executable])
    figures = {
        "images": first["images"],
        "first_load_s": first["seconds"],
        "first_load_resident_mb": first["resident_mb"],
        "second_load_ms": 1e3 * second["seconds"],
        "stream_resident_mb": whole["resident_mb"],
        "run_resident_mb": run["resident_mb"],
        "stream_over_bare": statistics.median(ratios),
        "startup_s": min(started),
    }
    keep(stream, figures, options.save)


if __name__ == "__main__":
    main()
