"""A learner and all that keeping it needs: names of classes, which samples were learned, what was predicted first."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from onepass.config import LearnerConfig, ReplayConfig, options
from onepass.errors import UsageError
from onepass.learner.batch import Batch
from onepass.learner.contract import BaseLearner
from onepass.learner.net import Factory
from onepass.learner.problem import Problem
from onepass.live.journal import Journal, content_digests, digest_of
from onepass.live.labels import Label, Labels, plain_label
from onepass.live.prequential import Prequential
from onepass.live.snapshot import Snapshot
from onepass.methods.factory import build
from onepass.methods.registry import method_class

# The method that is used where nobody names one; nothing else in this package names it.
DEFAULTS = {"images": "patch-lda", "vectors": "slda"}
STEP = 10  # samples of a gradient step
AT_ONCE = 64  # samples that learners of statistics take at once
MOST_AT_ONCE = 65536
UNNUMBERED = -1  # a sample without an id


@dataclass(frozen=True)
class Learned:
    """What became of samples: learned now, known before, or known by another label and corrected."""

    learned: int = 0
    known: int = 0
    relabelled: int = 0


def check_ids(ids: Sequence[str] | None, n: int) -> None:
    if isinstance(ids, str):
        raise UsageError("Expected a list of ids, got one word. Put it in a list.")
    if ids is not None and len(ids) != n:
        raise UsageError(f"Expected an id for each of {n} samples, got {len(ids)}.")


@dataclass
class Cursor:
    """Where the stream of a model stands: whatever its reader keeps. It is saved with the model, in one file."""

    tree: dict[str, Any] = field(default_factory=dict)


class Model:
    """One call at a time changes it; others wait. `snapshot()` is what predicts, `latest` without waiting."""

    def __init__(self, learner: BaseLearner, *, batch: int = 0, by_content: bool | None = None) -> None:
        """`batch` samples make a step. Samples without an id are known by their content: all images, unless told."""
        if type(batch) is not int or not 0 <= batch <= MOST_AT_ONCE:
            raise UsageError(f"Expected batch from 1 to {MOST_AT_ONCE:,}, got {batch!r}.")
        self.learner = learner
        self.batch = batch or (AT_ONCE if learner.takes_back else STEP)
        self.by_content = learner.problem.images if by_content is None else by_content
        self.labels = Labels()
        self.counts: list[int] = []  # samples of each class
        self.journal = Journal()
        self.prequential = Prequential()
        self.cursor = Cursor()
        self.version = 0  # changes with whatever changes
        self.latest: Snapshot | None = None
        self.stopping: Callable[[], None] | None = None  # called when the call under way is over
        self.on_learned: Callable[[Tensor, list[int], Sequence[bytes | None]], None] | None = None  # after each step
        self._lock, self._owner = threading.RLock(), 0

    @classmethod
    def create(
        cls,
        shape: tuple[int, ...],
        *,
        method: str = "",
        net: str | Factory | nn.Module = "",
        settings: Mapping[str, Any] | None = None,
        memory: int | None = None,
        lr: float | None = None,
        augment: str = "",
        seed: int = 0,
        batch: int = 0,
        by_content: bool | None = None,
    ) -> Model:
        """A model that knows nothing yet, for samples of a shape. `memory` and `lr` count where a method has them."""
        images = len(shape) == 3
        method = method or DEFAULTS["images" if images else "vectors"]
        config = method_class(method).Config
        shared = {"memory": memory, "lr": lr}
        known = {name: value for name, value in shared.items() if value is not None and name in options(config)}
        problem = Problem(1, shape, augment or ("colour" if images and shape[0] in (1, 3) else "none"))
        learner = build(method, problem, {**known, **(settings or {})}, net=net, seed=seed)
        learner.number_samples()
        return cls(learner, batch=batch, by_content=by_content)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.learner.problem.shape

    @property
    def learned(self) -> int:
        """Samples that count: learned, and not forgotten."""
        return sum(self.counts)

    @property
    def busy_here(self) -> bool:
        """Whether the calling thread is inside a call that changes the model: as seen by a handler of signals."""
        return self._owner == threading.get_ident()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One call at a time."""
        with self._lock:
            outer, self._owner = self._owner, threading.get_ident()
            try:
                yield
            finally:
                self._owner = outer
                if not outer and self.stopping is not None:
                    self.stopping()

    def __getstate__(self) -> dict[str, Any]:
        dropped = {
            "_lock": None,
            "_owner": 0,
            "latest": None,
            "stopping": None,
            "on_learned": None,
        }  # none of it can be copied
        return {**self.__dict__, **dropped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())

    def changed(self) -> None:
        self.version += 1

    # Learning.

    def declare(self, names: Sequence[Any]) -> list[int]:
        """The numbers of names of classes; new ones get room."""
        plain = [plain_label(name) for name in names]
        with self.turn():
            self.labels.check(plain)
            self.labels.add(plain)
            missing = len(self.labels) - len(self.counts)
            if missing:
                self.counts += [0] * missing
                if len(self.labels) > self.learner.problem.n_classes:
                    self.learner.grow(len(self.labels))
                self.changed()
            return [self.labels.number(name) for name in plain]

    def learn(self, x: Tensor, labels: Sequence[Any], ids: Sequence[str] | None = None) -> Learned:
        """Samples as the learner takes them, a label for each, and perhaps an id for each.

        A sample that is known is not learned again; where its label is another now, it is corrected. Of one that comes
        twice the last counts.
        """
        if len(labels) != len(x):
            raise UsageError(f"Expected a label for each of {len(x)} samples, got {len(labels)}.")
        check_ids(ids, len(x))
        with self.turn():
            classes = self.declare(labels)
            digests = self.digests(x, ids)
            last = {digest: row for row, digest in enumerate(digests) if digest is not None}
            fresh: list[int] = []
            moved: list[int] = []
            for row, digest in enumerate(digests):
                if digest is not None and last[digest] != row:
                    continue  # it comes again below
                number = None if digest is None else self.journal.find(digest)
                if number is None:
                    fresh.append(row)
                elif self.journal.class_of(number) != classes[row]:
                    moved.append(row)
            for start in range(0, len(fresh), self.batch):
                rows = fresh[start : start + self.batch]
                self._step(
                    x if len(rows) == len(x) else x[rows], [classes[r] for r in rows], [digests[r] for r in rows]
                )
            if moved:
                from onepass.live.corrections import relabel

                names = [digest.hex() for row in moved if (digest := digests[row]) is not None]
                relabel(self, names, [labels[row] for row in moved], x[moved])
            return Learned(len(fresh), len(x) - len(fresh) - len(moved), len(moved))

    def digests(self, x: Tensor, ids: Sequence[str] | None) -> Sequence[bytes | None]:
        if ids is not None:
            check_ids(ids, len(x))
            return [digest_of(str(name)) for name in ids]
        return content_digests(x) if self.by_content else [None] * len(x)

    def _step(self, x: Tensor, classes: list[int], digests: Sequence[bytes | None]) -> None:
        named = [digest for digest in digests if digest is not None]
        first = len(self.journal)
        numbers = list(range(first, first + len(named))) if named else [UNNUMBERED] * len(classes)
        self._test(x, classes, numbers)
        y = torch.tensor(classes)
        self.learner.observe(Batch(x, y, extra={"number": torch.tensor(numbers)}))
        self.journal.add(named, classes[: len(named)])
        for c in classes:
            self.counts[c] += 1
        self.changed()
        if self.on_learned is not None:
            self.on_learned(x, classes, digests)

    def _test(self, x: Tensor, classes: list[int], numbers: list[int]) -> None:
        """Predict some of these samples, which are about to be learned."""
        n = self.prequential.allowance(self.learned, len(x))
        if n == 0 or len(self.learner.seen) < 2:
            return
        snapshot = self.latest
        if snapshot is None or self.learned - snapshot.learned > self._patience(snapshot):
            snapshot = self.snapshot()
        rows = list(range(0, len(x), -(-len(x) // n)))
        known = [self.labels.number(name) for name in snapshot.names]
        scores = snapshot.scores(x[rows]).cpu().numpy()
        self.prequential.note([numbers[r] for r in rows], [classes[r] for r in rows], known, scores, self.learned)

    def _patience(self, snapshot: Snapshot) -> int:
        """How many samples a snapshot may be behind for a test: those of statistics cost a solution."""
        return max(32, min(snapshot.learned, 16384 if self.learner.takes_back else 1024))

    # Asking.

    def snapshot(self) -> Snapshot:
        """What predicts now. Made anew only if something was learned since the last."""
        found = self.latest
        if found is not None and found.version == self.version:
            return found
        with self.turn():
            if self.latest is None or self.latest.version != self.version:
                predictor = self.learner.snapshot()
                self.latest = Snapshot(
                    tuple(self.labels.names[c] for c in predictor.seen_classes.tolist()),
                    self.shape,
                    self.prequential.temperature,
                    self.prequential.calibrated,
                    predictor,
                    self.version,
                    self.learned,
                )
            return self.latest

    def class_counts(self) -> dict[Label, int]:
        with self.turn():
            return dict(zip(self.labels.names, self.counts, strict=True))

    def stored(self) -> tuple[Tensor, list[Label], list[str]]:
        """What memories hold, as it came or as a frozen network gave it: samples, labels, ids (or '')."""
        with self.turn():
            held = [memory.read(torch.arange(len(memory))) for memory in self.learner.memories()]
            x = torch.cat([batch.x for batch in held])
            names = [self.labels.names[c] for batch in held for c in batch.y.tolist()]
            numbers = [number for batch in held for number in batch.extra["number"].tolist()]
            return x, names, [self.journal.id_of(n) if n >= 0 else "" for n in numbers]

    # Changing what was set when it was made.

    def set_learning_rate(self, lr: float) -> None:
        config = self.learner.config
        if not isinstance(config, LearnerConfig):
            raise UsageError(f"{type(self.learner).__name__} takes no gradient steps, so it has no learning rate.")
        with self.turn():
            self.learner.config = dataclasses.replace(config, lr=lr)
            for _, optimizer in self.learner.optimizers():
                for group in optimizer.param_groups:
                    group["lr"] = lr
            self.changed()

    def resize_memory(self, capacity: int) -> None:
        with self.turn():
            self.learner.resize_memory(capacity)
            self.changed()

    @property
    def memory(self) -> tuple[int, int]:
        """Samples in memory, and how many there is room for."""
        config = self.learner.config
        held = sum(len(memory) for memory in self.learner.memories())
        return held, config.memory if isinstance(config, ReplayConfig) else held
