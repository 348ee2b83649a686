"""What fixed features save, in one run, alternating: latent replay beside replay of images, SLDA beside plain NumPy.

    python benchmarks/features.py [--quick] [--save results/benchmarks/features.json]

Latent replay: a step of ER on a frozen network that each sample passes once, over one in which new and replayed images
pass it each time. SLDA: vectors a second of `observe`, over those of a loop that adds a batch's products to a sum, and
nothing else. CPU time, one thread, lower quartiles of alternating turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import onepass
from onepass.host import host_facts
from onepass.learner.net import Net, network_and_encoder
from onepass.methods.er import ER, ERConfig

SHAPE, WIDTH, BATCH = (3, 32, 32), 512, 10


def alternating(tasks: dict[str, Callable[[], object]], rounds: int, turn: int) -> dict[str, float]:
    """CPU milliseconds of a call of each, in turns."""
    found: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            begin = time.process_time()
            for _ in range(turn):
                task()
            found[name].append(1000 * (time.process_time() - begin) / turn)
    return {name: statistics.quantiles(values, n=4)[0] for name, values in found.items()}


def some_images() -> onepass.Batch:
    rng = torch.Generator().manual_seed(0)
    return onepass.Batch(torch.randint(256, (BATCH, *SHAPE), dtype=torch.uint8, generator=rng), torch.arange(BATCH))


def latent_replay(net: str, rounds: int) -> dict[str, float]:
    def frozen(shape: tuple[int, ...]) -> torch.nn.Module:
        return network_and_encoder(net, shape, 1, seed=0)[0].body.requires_grad_(False)

    problem, config, batch = onepass.Problem(10, SHAPE), ERConfig(memory=1000), some_images()
    latent = onepass.build("er", problem, config, net=frozen)
    body = frozen(SHAPE)
    images = ER(Net(body, latent.net.head.in_features, 10), problem, config, seed=0)
    for _ in range(20):
        latent.observe(batch), images.observe(batch)
    times = alternating(
        {"latent_ms": lambda: latent.observe(batch), "images_ms": lambda: images.observe(batch)}, rounds, 3
    )
    return {**times, "ratio": times["images_ms"] / times["latent_ms"]}


def slda(rounds: int) -> dict[str, float]:
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(BATCH, WIDTH, generator=rng), torch.arange(BATCH)
    learner, batch = onepass.build("slda", onepass.Problem(BATCH, (WIDTH,))), onepass.Batch(x, y)
    rows, labels = x.numpy(), y.numpy()
    sums, moment = np.zeros((BATCH, WIDTH), dtype=np.float32), np.zeros((WIDTH, WIDTH), dtype=np.float32)

    def plain() -> None:
        np.add.at(sums, labels, rows)
        np.add(moment, rows.T @ rows, out=moment)

    times = alternating({"ours_ms": lambda: learner.observe(batch), "numpy_ms": plain}, rounds, 50)
    return {**times, "ratio": times["numpy_ms"] / times["ours_ms"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it works")
    parser.add_argument("--save", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 3 if options.quick else 25
    replay = {net: latent_replay(net, rounds) for net in ("slim-resnet18", "resnet18")[: 1 if options.quick else 2]}
    figures = {"latent_replay": replay, "slda": slda(rounds), "rounds": rounds}
    for net, row in replay.items():
        print(f"{net}: replay of images over latent replay {row['ratio']:.2f} ({row['latent_ms']:.1f} ms a step)")
    print(f"SLDA, {WIDTH} numbers: our throughput over plain NumPy's {figures['slda']['ratio']:.2f}")  # type: ignore[index]
    if options.save:
        options.save.write_text(json.dumps({**figures, "host": host_facts("cpu")}, indent=1) + "\n")


if __name__ == "__main__":
    main()
