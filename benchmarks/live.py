"""What keeping a learner costs beside the learner alone, in one process, turn by turn, in CPU time.

    python benchmarks/live.py [--quick] [--save results/benchmarks/live.json]

Ratios of CPU time: `partial_fit` over `observe`; a single prediction over the bare forward pass; a save over a minute
of learning; the opening of a prediction file. Images a second learned and predicted, beside SGDClassifier and river on
vectors.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import river.linear_model
import river.multiclass
import torch
from sklearn.linear_model import SGDClassifier

from onepass import Batch, Problem, StreamClassifier, build
from onepass.live.program import load_program, save_program
from onepass.live.state import save_model

SIDE, CLASSES = 32, 10


def cpu(function: Callable[[], Any]) -> float:
    begin = time.process_time()
    function()
    return time.process_time() - begin


def interleaved(rounds: int, **functions: Callable[[], Any]) -> dict[str, float]:
    """CPU seconds of each: the medians of turns that alternate."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            times[name].append(cpu(function))
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def images(n: int, seed: int) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], np.ndarray[Any, np.dtype[np.int64]]]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 3, SIDE, SIDE), dtype=np.uint8), rng.integers(0, CLASSES, n)


def learning(method: str, net: str, batch: int, begin: int, rounds: int) -> dict[str, float]:
    """The same images by both, after so many that both have learned before: young models are tested more often."""
    kept = StreamClassifier(method, net=net, random_state=0, batch=batch).fit(*images(begin, 0))
    bare = build(method, Problem(CLASSES, (3, SIDE, SIDE), "colour"), net=net)
    x, y = images(begin, 0)
    for start in range(0, begin, batch):
        bare.observe(Batch(torch.from_numpy(x[start : start + batch]), torch.from_numpy(y[start : start + batch])))
    each = max(batch, 64)
    turns = iter(range(1, 10**6))

    def both() -> tuple[Callable[[], Any], Callable[[], Any]]:
        pixels, labels = images(each, next(turns))
        tensors = torch.from_numpy(pixels), torch.from_numpy(labels)

        def observe() -> None:
            for rows in torch.arange(each).split(batch):
                bare.observe(Batch(tensors[0][rows], tensors[1][rows]))

        return lambda: kept.partial_fit(pixels, labels), observe

    ours, theirs = [], []
    for _ in range(rounds):
        fit, observe = both()
        ours.append(cpu(fit))
        theirs.append(cpu(observe))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onepass"
        saving = statistics.median(cpu(lambda: save_model(kept.model_, path)) for _ in range(3))
        save_program(kept.model_.snapshot(), Path(folder) / "p.onepass")
        opening = statistics.median(cpu(lambda: load_program(Path(folder) / "p.onepass")) for _ in range(5))
        size = (Path(folder) / "p.onepass").stat().st_size
    one = images(1, 0)[0]
    snapshot = kept.model_.snapshot()
    pixels = torch.from_numpy(one)
    with torch.inference_mode():
        asked = interleaved(
            30,
            ours=lambda: kept.predict_one(one[0]),
            bare=lambda: snapshot.scorer.raw_scores(pixels),  # type: ignore[attr-defined]
        )
    total, least = sum(ours), sum(theirs)
    return {
        "partial_fit_over_observe": total / least,  # sums: tests and snapshots come in some turns only
        "prediction_over_forward": asked["ours"] / asked["bare"],
        "autosave_share": saving / 60,
        "open_prediction_file_seconds": opening,
        "prediction_file_bytes": size,
        "images_a_second_learned": each * rounds / total,
        "images_a_second_predicted_singly": 1 / asked["ours"],
    }


def vectors(rounds: int) -> dict[str, float]:
    """Rows of 64 numbers, 100 at a time, a CPU second: learned."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(100, 64)), np.arange(100) % CLASSES
    ours, sgd = StreamClassifier(), SGDClassifier()
    theirs: Any = river.multiclass.OneVsRestClassifier(river.linear_model.LogisticRegression())
    dicts = [{f"f{i}": float(v) for i, v in enumerate(row)} for row in x]

    def one_by_one() -> None:
        for row, label in zip(dicts, y.tolist(), strict=True):
            theirs.learn_one(row, label)

    classes = np.arange(CLASSES)
    found = interleaved(
        rounds,
        onepass=lambda: ours.partial_fit(x, y, classes),
        sgd=lambda: sgd.partial_fit(x, y, classes),
        river=one_by_one,
    )
    return {name: 100 / seconds for name, seconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few turns, to see that it works")
    parser.add_argument("--save", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    plan = {
        "patch-lda, from 2,000 images on": ("patch-lda", "linear", 64, 2000, 32),
        "patch-lda, from 8,000 images on": ("patch-lda", "linear", 64, 8000, 128),
        "er-ace, from 200 images on": ("er-ace", "slim-resnet18", 10, 200, 8),
    }
    figures: dict[str, Any] = {}
    for what, (method, net, batch, begin, rounds) in plan.items():
        begin, rounds = (200, 3) if options.quick else (begin, rounds)
        figures[what] = learning(method, net, batch, begin, rounds)
        print(what, json.dumps(figures[what], indent=1), flush=True)
    figures["vectors_a_second_learned"] = vectors(3 if options.quick else 20)
    print(json.dumps(figures["vectors_a_second_learned"], indent=1))
    if options.save:
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps({**figures, "torch": torch.__version__}, indent=1) + "\n")


if __name__ == "__main__":
    main()
