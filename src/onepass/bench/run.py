"""A run in progress: a learner meets a stream once. The loop knows no method's name."""

from __future__ import annotations

import functools
import itertools
import json
import os
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from onepass.bench.evaluate import (
    accuracies,
    accuracies_by_last,
    accuracy_by_task,
    confusion,
    predictions,
    quickly,
)
from onepass.bench.footprint import held
from onepass.bench.pace import cost_over_er, learned
from onepass.bench.resident import resident
from onepass.bench.result import WINDOW, Record
from onepass.bench.run_config import RunConfig
from onepass.bench.scenarios import tells_boundaries
from onepass.bench.schema import check_fields, conforms
from onepass.bench.stream import TaskData, batches, make_tasks, n_batches, problem_of, share_classes
from onepass.config import LearnerConfig
from onepass.data import Dataset
from onepass.data.catalog import Datasets
from onepass.errors import BadCheckpoint, UsageError
from onepass.learner.batch import Batch
from onepass.learner.checkpoint import load_state, load_tree, save_tree
from onepass.learner.precision import check_precision
from onepass.methods.factory import build, learner_tree
from onepass.methods.identity import code_digest

VERSION = 2  # of checkpoints
LOSS_EVERY = 10  # steps between two losses that are written down


class Run:
    """A run in progress: what it is made of, where it stands, and how it is saved and continued."""

    def __init__(self, config: RunConfig, device: str = "cpu", datasets: Datasets | None = None) -> None:
        self.config = config = config.on(device)
        prepare(config, device)
        self.code = code_digest(*config.code)
        self.device = device
        data = (datasets or Datasets()).load(config.stream, config.image_size)
        self.data: Dataset
        self.tasks: list[TaskData]
        self.data, self.tasks = make_tasks(data, config.stream_config, seed=config.seed)
        self.data = resident(self.data, device)
        problem = problem_of(config.stream, len(data.classes), data.x.shape[1:], len(self.tasks), config.augment)
        self.learner = build(config.method, problem, config.learner_config, net=config.net, seed=config.seed)
        self.learner.to(device)
        self.record = Record()
        self.batch = -1  # the batch of the current task that comes next; -1: the task has not begun
        self.cost = cost_over_er(config, problem) if config.stream_speed else 0.0

    @functools.cached_property
    def learned(self) -> list[list[bool]]:
        """By task: which batches are learned."""
        came = [n_batches(task, self.config.batch) for task in self.tasks]
        kept = iter(learned(sum(came), self.cost * self.config.stream_speed))
        return [list(itertools.islice(kept, number)) for number in came]

    @property
    def total(self) -> int:
        return sum(map(sum, self.learned))

    def data_facts(self) -> dict[str, Any]:
        return {
            "learned": sum(len(task.train) for task in self.tasks),
            "measured": sum(len(task.test) for task in self.tasks),
            "shape": list(self.data.x.shape[1:]),
            "sha256": self.data.digest,
        }

    def protocol(self) -> dict[str, Any]:
        """Everything that decided the figures, as it was: no default has to be looked up to read a result."""
        learner, names, settings = self.learner, self.data.classes, self.config.learner_config
        optimizers = {name: _optimizer(optimizer) for name, optimizer in learner.optimizers()}
        return {
            "scenario": self.config.scenario,
            "tasks": [[names[c] for c in task.info.classes] for task in self.tasks],
            "class_order": list(dict.fromkeys(c for task in self.tasks for c in task.info.classes)),
            **self._domains(),
            **({"cost_over_er": self.cost, "batches_learned": self.total} if self.config.stream_speed else {}),
            **({"predicted_among": "the classes of the image's task"} if self.tasks[0].among else {}),
            "batch": self.config.batch,
            "replay": learner.replay,
            "memory": learner.memory.capacity,
            "optimizers": optimizers,
            "net": self.config.net,
            "features": learner.net.head.in_features,
            "parameters": sum(value.numel() for value in learner.parameters() if value.requires_grad),
            "augment": learner.problem.augment,
            **(
                {"scope": settings.scope, "precision": settings.precision}
                if isinstance(settings, LearnerConfig)
                else {}
            ),
            "seed": self.config.seed,
            "measured_on": "a tenth of the training images" if self.config.validate else "the test images",
            **({"test_fraction": self.config.test_fraction} if self.config.test_fraction < 1 else {}),
            "bytes": held(learner),
            **({"code": self.code} if self.code else {}),
        }

    def _domains(self) -> dict[str, Any]:
        """Those of each task, where tasks are made of them."""
        found = [[self.data.domains[d] for d in task.domains] for task in self.tasks]
        return {"domains": found} if any(found) else {}

    def evaluations(self) -> list[dict[str, Any]]:
        """All evaluations in the order they were made."""
        ends = itertools.accumulate(map(sum, self.learned))
        after: list[dict[str, Any]] = [
            {"step": end, "accuracy": row, "after_task": index}
            for index, (end, row) in enumerate(zip(ends, self.record.accuracy_matrix, strict=False))
        ]
        for line, row in zip(after, self.record.accuracy_matrix_last, strict=False):
            line["accuracy_last"] = row
        return sorted([*self.record.anytime, *after], key=lambda line: (line["step"], "after_task" in line))

    def save(self, path: Path) -> None:
        tree = {
            "version": VERSION,
            "config": self.config.to_json(),
            "threads": torch.get_num_threads(),
            "record": vars(self.record),
            "batch": self.batch,
            "data": self.data.digest,
            "code": self.code,
            "learner": self.learner.state_dict(),
        }
        save_tree(path, tree)

    def keep(self, path: Path) -> None:
        """The learner, and how many samples of which classes it has learned."""
        size = self.config.batch
        pairs = [
            pair
            for task, came in zip(self.tasks, self.learned, strict=True)
            for pair in zip(task.train.split(size), came, strict=True)
        ]
        rows = torch.cat([part for part, taken in pairs if taken])
        counts = torch.bincount(self.data.y[rows], minlength=len(self.data.classes)).tolist()
        names = [str(name) for name in self.data.classes]
        save_tree(path, {**learner_tree(self.learner), "names": names, "counts": counts, "batch": size})

    def restore(self, path: Path) -> None:
        tree = load_tree(path)
        if not isinstance(tree, dict) or tree.get("version") != VERSION:
            raise BadCheckpoint(f"{path} was written by another version of onepass")
        try:
            check_fields(Record, tree["record"], [entry.name for entry in fields(Record)])
            if not conforms([tree["batch"], tree["threads"]], list[int]) or tree["threads"] < 1:
                raise ValueError("its numbers of batches and threads are none")
            state = tree["learner"], tree["config"], tree["data"], tree["code"]
        except (KeyError, TypeError, ValueError) as error:
            raise BadCheckpoint(f"{path} is damaged: {error!r}") from error
        learner, config, data, code = state
        if config != self.config.to_json():
            raise BadCheckpoint(f"{path} belongs to another run")
        if data != self.data.digest:
            raise BadCheckpoint(f"{path} is of other data than are there now")
        if code != self.code:
            raise BadCheckpoint(f"{path} is of another {self.config.method.partition(':')[0]} than is there now")
        torch.set_num_threads(tree["threads"])  # sums over another number of threads would end in other bits
        load_state(self.learner, learner, path)
        self.record, self.batch = Record(**tree["record"]), tree["batch"]

    def advance(
        self,
        after_step: Callable[[], None] = lambda: None,
        after_evaluation: Callable[[], None] = lambda: None,
    ) -> None:
        """Learn to the end of the stream from wherever the run stands."""
        record, boundaries = self.record, tells_boundaries(self.config.scenario)
        for task in self.tasks[len(record.accuracy_matrix) :]:
            if self.batch < 0:
                if boundaries:
                    self.learner.begin_task(task.info)
                    self._measure_untrained(task)
                self.batch = 0
            for batch in batches(self.data, task, self.config.batch, start=self.batch):
                if self.config.prequential:
                    self._predict_first(batch, task)
                if not self.learned[task.info.index][self.batch]:  # it came while the learner was busy
                    self.batch += 1
                    continue
                begin = time.perf_counter()
                loss = self.learner.observe(batch)
                record.seconds += time.perf_counter() - begin
                record.steps = self.learner.steps
                self.batch += 1
                if record.steps % LOSS_EVERY == 0:
                    record.losses.append(loss.item())
                if self.config.anytime and record.steps % self.config.anytime == 0:
                    record.anytime.append(self._evaluate_quickly(task))
                    after_evaluation()
                after_step()
            if boundaries:
                self.learner.end_task()
            self._evaluate(task)
            record.facts.append(_plain(self.learner.facts()))
            self.data.release()
            self.batch = -1
            after_evaluation()

    def _measure_untrained(self, task: TaskData) -> None:
        """What is known of the later tasks before anything is learned, if they have no classes of their own."""
        if not task.info.index and share_classes(self.data, self.tasks):
            self.record.accuracy_untrained = accuracy_by_task(self.learner, self.data, self.tasks[1:])

    def _evaluate(self, task: TaskData) -> None:
        """After a task: all measures from one pass over the test images of the tasks so far, and of the next one if
        forward transfer is measured. If an average predicts, the last weights are measured too."""
        record, done = self.record, task.info.index + 1
        ahead = self.tasks[done : done + 1] if record.accuracy_untrained else []
        found = predictions(self.learner, self.data, [*self.tasks[:done], *ahead], done)
        record.accuracy_matrix.append(accuracies(found[:done]))
        record.accuracy_before += accuracies(found[done:])
        if done == len(self.tasks):
            record.confusion = confusion(found, len(self.data.classes))
        if self.learner.average is not None:
            record.accuracy_matrix_last.append(accuracies_by_last(found[:done]))

    def _evaluate_quickly(self, task: TaskData) -> dict[str, Any]:
        """In mid-stream: the tasks so far, by what predicts and, if that is an average, by the last weights too."""
        tasks = [quickly(self.data, one) for one in self.tasks[: task.info.index + 1]]
        found = predictions(self.learner, self.data, tasks, len(tasks))
        line: dict[str, Any] = {"step": self.learner.steps, "accuracy": accuracies(found)}
        return line if self.learner.average is None else {**line, "accuracy_last": accuracies_by_last(found)}

    def _predict_first(self, batch: Batch, task: TaskData) -> None:
        """Count what is predicted right before it is learned."""
        windows = self.record.prequential
        came = sum(map(len, self.learned[: task.info.index])) + self.batch
        if came % WINDOW == 0:
            windows.append([0, 0])
        if self.learner.seen:
            with self.learner.predicting() as predict:
                windows[-1][0] += int((predict(batch.x, task.among).cpu() == batch.y).sum())
        windows[-1][1] += len(batch)


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(facts, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(f"facts(): expected JSON without NaN, got {facts} ({error})") from error
    return facts


def _optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    group = optimizer.param_groups[0]
    facts: dict[str, Any] = {"kind": type(optimizer).__name__}
    for name in ("lr", "momentum", "weight_decay", "betas"):
        if name in group:
            facts[name] = list(group[name]) if isinstance(group[name], tuple) else group[name]
    return facts


def prepare(config: RunConfig, device: str) -> None:
    """Refuse a device that is not here, or that cannot do what is asked."""
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise UsageError(f"unknown device {device!r}: give cpu, cuda or cuda:N") from error
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(f"device {device!r}: torch finds no CUDA here; use --device cpu")
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    check_precision(getattr(config.settings, "precision", "fp32"), device)
