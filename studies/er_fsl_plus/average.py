"""Which average? Several kept beside one training run, so that all are compared on the same weights.

    python studies/er_fsl_plus/average.py METHOD STREAM --seed N --data-dir DIR --out results/average

Measured on a tenth of the training images, held back. Kept: decays, warm-ups, the head alone, batch-norm statistics
averaged or estimated anew from the memory, scores by the head or by class means of the memory. Over the last steps the
last weights and one average are measured again and again: how much of the end is the noise of a step? One JSON for each
run; one that is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.bench.evaluate import accuracy_by_task
from onepass.bench.metrics import mean
from onepass.bench.run import Run
from onepass.bench.run_config import RunConfig
from onepass.bench.stream import batches
from onepass.data.catalog import Datasets
from onepass.files import write_text
from onepass.host import host_facts
from onepass.learner.augment import decode
from onepass.learner.average import Average
from onepass.learner.base import Learner
from onepass.learner.functional import batchnorm_layers, class_means
from onepass.learner.memory import Memory
from onepass.methods.er_fsl import ERFSL

DECAYS = (0.9, 0.95, 0.98, 0.99, 0.999)
CHOSEN = "decay 0.98"
LOOKS, APART = 10, 5  # this often, so many steps apart, the last of them at the end


@torch.no_grad()
def estimate(net: nn.Module, memory: Memory, chunk: int) -> None:
    """Give batch-norm the statistics of the memory's images under the weights as they are; leave it evaluating."""
    for layer in batchnorm_layers(net):
        layer.reset_running_stats()
        layer.momentum = None  # the plain mean over all passes
    net.train()
    for slots in torch.arange(len(memory)).split(chunk):
        net.features(decode(memory.read(slots).x))
    net.eval()


class Candidate:
    """An average of some of what predicts, with a warm-up of its own."""

    def __init__(
        self,
        learner: Learner,
        decay: float,
        *,
        warmup: float = 10,
        head: bool = False,
        anew: bool = False,
        means: bool = False,
    ):
        modules: list[nn.Module] = [learner.net.head] if head else learner.predictors()
        self.average, self.learner, self.anew, self.means = Average(modules, decay, warmup), learner, anew, means

    def accuracy(self, run: Run) -> list[float]:
        scores = mock.patch.object(self.learner, "scorer", partial(nearest, self.learner))
        with scores if self.means else nullcontext():
            return self.measured(run)

    def measured(self, run: Run) -> list[float]:
        with self.average.in_place():
            if not self.anew:
                return accuracy_by_task(self.learner, run.data, run.tasks)
            kept = [value.clone() for value in self.learner.net.buffers()]
            momenta = [layer.momentum for layer in batchnorm_layers(self.learner.net)]
            estimate(self.learner.net, self.learner.memory, self.learner.chunk)
            try:
                return accuracy_by_task(self.learner, run.data, run.tasks)
            finally:
                for value, before in zip(self.learner.net.buffers(), kept, strict=True):
                    value.copy_(before)
                for layer, momentum in zip(batchnorm_layers(self.learner.net), momenta, strict=True):
                    layer.momentum = momentum


def nearest(learner: Learner) -> Callable[[Tensor], Tensor]:
    """Scores by class means of the memory, in the dimensions in use."""
    used = learner.space("used") if isinstance(learner, ERFSL) else 1

    def features(x: Tensor) -> Tensor:
        return F.normalize(learner.net.features(x) * used)

    means, absent = class_means(learner, features)
    return lambda x: F.linear(features(x), means, absent)


def candidates(learner: Learner) -> dict[str, Candidate]:
    found = {f"decay {decay:g}": Candidate(learner, decay) for decay in DECAYS}
    found["decay 0.99, no warm-up"] = Candidate(learner, 0.99, warmup=1e-9)
    found["decay 0.99, warm-up 100"] = Candidate(learner, 0.99, warmup=100)
    by_head = any(weight is learner.net.head.weight for weight in learner.trainable())  # SCR: by class means anyway
    if by_head:
        found["decay 0.99, head alone"] = Candidate(learner, 0.99, head=True)
    for decay in (0, 0.95, 0.98, 0.99):  # 0: the last weights
        found[f"decay {decay:g}, statistics anew"] = Candidate(learner, decay, anew=True)
        if by_head:
            found[f"decay {decay:g}, class means"] = Candidate(learner, decay, means=True)
    if by_head:
        found["decay 0.98, statistics anew, class means"] = Candidate(learner, 0.98, anew=True, means=True)
    return found


def measure(config: RunConfig, data_dir: Path) -> dict[str, object]:
    run = Run(config, datasets=Datasets(data_dir))
    learner, kept = run.learner, candidates(run.learner)
    looks: dict[str, list[list[float]]] = {"last": [], CHOSEN: []}
    for task in run.tasks:
        learner.begin_task(task.info)
        for batch in batches(run.data, task, config.batch):
            learner.observe(batch)
            for candidate in kept.values():
                candidate.average.follow(learner.steps)
            left = run.total - learner.steps
            if left % APART == 0 and left < LOOKS * APART:
                looks["last"].append(accuracy_by_task(learner, run.data, run.tasks))
                looks[CHOSEN].append(kept[CHOSEN].accuracy(run))
        learner.end_task()
    ends = {"last": accuracy_by_task(learner, run.data, run.tasks)}
    for name, candidate in kept.items():
        ends[name] = candidate.accuracy(run)
    return {
        "config": config.to_json(),
        "accuracy": ends,
        "looks": looks,
        "steps": learner.steps,
        "data": run.data_facts(),
        "protocol": run.protocol(),
        "host": host_facts("cpu"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method")
    parser.add_argument("stream")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fraction", type=float, default=0.2)
    parser.add_argument("--net", default="slim-resnet18")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    values = parser.parse_args()
    torch.set_num_threads(1)
    settings = {} if values.method in ("finetune", "iid", "iid++") else {"memory": 1000}
    config = RunConfig(
        values.method,
        values.stream,
        net=values.net,
        seed=values.seed,
        fraction=values.fraction,
        validate=True,
        settings=settings,
    )
    path = values.out / f"{config.stream_label}-{config.method}-{config.seed}.json"
    if not path.exists():
        write_text(path, json.dumps(measure(config, values.data_dir), indent=1) + "\n")
    stored = json.loads(path.read_text())
    if stored["config"] != config.to_json():
        parser.error(f"{path} holds a run with other settings; give another --out")
    for name, row in stored["accuracy"].items():
        print(f"{100 * mean(row):5.1f}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
