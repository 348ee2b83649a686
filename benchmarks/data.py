"""What data costs: first and second load, memory, and the stream beside a bare index-and-convert loop.

    python benchmarks/data.py STREAM --data-dir DIR [--save results/benchmarks/data.json]

Each load is a process of its own. The stream is read in batches of 10, as a run does; the bare loop indexes the same
rows of the same array and makes floats of them. Both in one process, turn by turn.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from onepass.data import Dataset, cache, cifar, folder, mini_imagenet  # noqa: F401  # imports are not what is timed
from onepass.data.catalog import cache_folder, canonical, load
from onepass.stream import StreamConfig, TaskData, batches, make_tasks
from onepass.views import decode


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


def measured(stream: str, root: Path, epoch: bool) -> dict[str, float]:
    words = [sys.executable, __file__, stream, "--data-dir", str(root), "--one", "epoch" if epoch else "load"]
    figures: dict[str, float] = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--save", type=Path, help="add the figures to this JSON file")
    parser.add_argument("--one", choices=["load", "epoch"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    stream = canonical(options.stream)
    if options.one:
        print(json.dumps(one_load(stream, options.data_dir, options.one == "epoch")))
        return
    shutil.rmtree(cache_folder(stream, options.data_dir, 0), ignore_errors=True)
    first, second, whole = (measured(stream, options.data_dir, epoch) for epoch in (False, False, True))
    data, ratios = load(stream, root=options.data_dir), []
    tasks = stream_tasks(data)
    for _ in range(5):
        times = []
        for turn in (passes, bare):
            begin = time.perf_counter()
            turn(data, tasks)
            times.append(time.perf_counter() - begin)
        ratios.append(times[0] / times[1])
    figures = {
        "images": first["images"],
        "first_load_s": first["seconds"],
        "first_load_resident_mb": first["resident_mb"],
        "second_load_ms": 1e3 * second["seconds"],
        "stream_resident_mb": whole["resident_mb"],
        "stream_over_bare": statistics.median(ratios),
    }
    print(stream, json.dumps(figures, indent=1))
    if options.save:
        known = json.loads(options.save.read_text()) if options.save.exists() else {}
        options.save.write_text(json.dumps({**known, Path(stream).name: figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
