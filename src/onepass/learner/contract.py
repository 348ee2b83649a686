"""The contract: four verbs that a driver calls, and the hook methods that a method overrides."""

from __future__ import annotations

import copy
import dataclasses
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from onepass.config import ReplayConfig, Settings
from onepass.errors import Diverged, UsageError
from onepass.learner.augment import decode
from onepass.learner.average import Average
from onepass.learner.batch import Batch, Task, check_samples
from onepass.learner.functional import pad_state
from onepass.learner.memory import Memory
from onepass.learner.net import Body, Net
from onepass.learner.precision import check_precision, passed
from onepass.learner.predictor import Predictor, PredictorPair
from onepass.learner.problem import MOST_CLASSES, Problem
from onepass.seeds import generator

# Images scored at once, fewer of those larger than 32x32. On a CPU 64 stay in its caches: twice as fast as 500.
CHUNKS = {"cpu": 64}
CHUNK = 512
INDEX = ("seen_classes", "seen_index", "old", "new")  # made anew from the sets of classes
SETTLING_STEPS = 20  # steps within which classes that nobody announced are taken for one task


class BaseLearner(nn.Module):
    """A network, a memory and a rule. Everything that changes is in `state_dict()`: it is the checkpoint.

    What every learner has; `Learner` adds what those have that learn by gradient steps.
    """

    Config: ClassVar[type[Settings]] = Settings
    image_dtype: ClassVar[torch.dtype] = torch.uint8
    needs_images: ClassVar[str] = ""  # why it learns from images alone, if it does
    class_rows: ClassVar[str] = "net.head.weight"  # the part of its state that has a row for each class
    warm_up: int = 0  # samples until a step costs what it costs from then on
    frozen_net: ClassVar[bool] = False  # whether it trains no network: all of it then is the encoder
    takes_back: ClassVar[bool] = False  # whether samples can be taken back
    foundation: int = 0  # so many first samples shape something that stays when they are taken back
    recipe: dict[str, Any] | None = None  # how build() made it; what save() writes down
    seen_classes: Tensor  # the classes seen so far, sorted
    seen_index: Tensor  # of each class among them
    old: Tensor  # the classes seen before the running task began, sorted
    new: Tensor  # the others

    def __init__(
        self, net: Net, problem: Problem, config: Settings, *, seed: int, encoder: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.net = net
        self.encoder = None if encoder is None else encoder.requires_grad_(False).eval()
        self.problem = problem
        self.config = config
        if self.needs_images and not (problem.images and encoder is None):
            got = "the features of a frozen network" if problem.images else f"vectors of shape {problem.shape}"
            raise UsageError(f"{self.needs_images}: expected images, got {got}")
        self.rng = generator(seed, "learner")
        capacity, self.replay = (config.memory, config.replay) if isinstance(config, ReplayConfig) else (0, 0)
        # What the network takes and the memory holds: the problem's samples, or their features by the encoder.
        self.sample_shape, dtype = problem.shape, self.image_dtype if problem.images else torch.float32
        if isinstance(self.encoder, Body):
            self.sample_shape, dtype = (self.encoder.width,), torch.float32
        elif self.encoder is not None:
            device = next((weight.device for weight in self.encoder.parameters()), None)
            self.sample_shape = tuple(self.encode(torch.zeros(1, *problem.shape, device=device)).shape[1:])
            dtype = torch.float32
        self.memory = Memory(capacity, self.sample_shape, dtype, seed=seed)
        self.task: Task | None = None
        self.arrived: int | None = None  # the step at which the task began by itself
        self.steps = 0
        self._turn, self._doing = threading.RLock(), ""
        self.seen: set[int] = set()
        self.classes_before_task: set[int] = set()  # as `old`
        for name in INDEX:
            self.register_buffer(name, torch.empty(0, dtype=torch.int64), persistent=False)
        self.average: Average | None = None
        self.expert: BaseLearner | None = None  # one of statistics, that learns and predicts beside it
        self.setup()

    # The four verbs.

    def begin_task(self, task: Task) -> None:
        """Classes that may come from now on: from here they belong to what has been seen (C_1:t)."""
        self.classes_before_task = set(self.seen)
        self.mark_seen(task.classes)
        self.task = task
        self.arrived = None

    def observe(self, batch: Batch) -> Tensor:
        """One step on samples that will not come again. Returns the loss.

        Classes that no `begin_task` announced begin a task by themselves: so a stream may have no boundaries. A step
        that is refused, for its input or because it would leave weights that are not finite, changes nothing at all.
        """
        return self._observe(batch, self._keep)

    def observe_again(self, batch: Batch) -> Tensor:
        """The same on samples whose labels were corrected: they are stored already, or need not be."""
        return self._observe(batch, lambda batch: None)

    def _observe(self, batch: Batch, remember: Callable[[Batch], None]) -> Tensor:
        with self.exclusive("observe"):
            new = self._check(batch)
            batch = self.encoded(batch.to(self.device))
            if not self.training:
                self.train()
            with self._all_or_nothing(everything=bool(new) or self.many_steps):
                if new:
                    self._begin_unannounced_task(new)
                loss = self.absorb(batch)
            remember(batch)
            self.steps += 1
            return loss

    def _keep(self, batch: Batch) -> None:
        self.remember(batch)
        if self.expert is not None:
            self.expert.observe(Batch(self.expert.samples(batch.x), batch.y, extra=batch.extra))

    def end_task(self) -> None:
        """The task's last batch has been observed."""

    def predict(self, images: Tensor, among: Iterable[int] | None = None) -> Tensor:
        """The class of each image, among the classes seen so far or `among` some of them; changes nothing here."""
        with self.predicting() as predict:
            return predict(images, among)

    @contextmanager
    def predicting(self, last: bool = False) -> Iterator[Predictor]:
        """`predict` for many calls in a row: what `scorer` prepares is prepared once.

        By the average if there is one, unless the last weights are asked for.
        """
        with self._asked(), nullcontext() if self.average is None else self.average.in_place(not last):
            yield Predictor(self)

    @contextmanager
    def predicting_both(self) -> Iterator[PredictorPair]:
        """The same by what predicts and, if that is an average, by the last weights, in one pass over the images."""
        with self._asked(), nullcontext() if self.average is None else self.average.in_place():
            yield PredictorPair(self)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """In evaluation mode inside, and by nobody else."""
        with self.exclusive("predict"):
            self._check_seen()
            training = self.training
            self.eval()
            try:
                yield
            finally:
                self.train(training)

    def snapshot(self) -> Predictor:
        """What predicts now, as an object of its own: threads may ask it while this learner goes on learning."""
        with self.exclusive("snapshot"):
            self._check_seen()
            shared: dict[int, Any] = {id(column): column for column in map(self.memory.field, self.memory.fields)}
            shared[id(self.encoder)] = self.encoder  # it never changes; the memory is read here and now
            unused: dict[int, Any] = {id(optimizer): None for _, optimizer in self.optimizers()}
            copied: BaseLearner = copy.deepcopy(self, {**shared, **unused})
            copied.eval()
            if copied.average is not None:
                copied.average.put_in_place()
            return Predictor(copied)

    def _check_seen(self) -> None:
        if not self.seen:
            raise UsageError("nothing to predict yet: no class has been seen; call begin_task and observe first")

    # Hook methods: most methods override one or two.

    def setup(self) -> None:
        """Declare further state: heads, copies, masks, memory fields. Nothing is declared later."""

    def absorb(self, batch: Batch) -> Tensor:
        """Learn from a batch, and give the loss; a step that is refused raises Diverged."""
        raise NotImplementedError(f"{type(self).__name__} must define absorb(batch)")

    def remember(self, batch: Batch) -> None:
        """What of this batch to store; by default a reservoir."""
        if self.memory.capacity:
            self.memory.write(self.memory.reservoir(len(batch)), batch)

    def widen(self, n_classes: int) -> None:
        """Give whatever is as wide as there are classes its new width."""
        apart = {part for module in self.modules() if isinstance(module, Average) for part in module.modules()}
        apart |= set() if self.expert is None else {*self.expert.modules()}
        for module in [*self.modules()]:
            if isinstance(module, Net) and module not in apart:  # copies of the network too
                module.grow(n_classes, self.rng)

    def scorer(self) -> Callable[[Tensor], Tensor]:
        """A function from float images to one score per class."""
        return self.net

    def take_back(self, batch: Batch) -> None:
        """Become what it would be without these samples, to rounding; they were learned with these labels."""
        raise UsageError(f"{type(self).__name__} cannot take samples back: its weights were trained on them")

    def facts(self) -> dict[str, Any]:
        """What is worth writing down after a task beside the accuracies, as JSON."""
        return {}

    # What methods build on.

    many_steps = False  # whether a batch is learned in several steps, of which a later one may be refused

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        """Samples as they come, as floats that the network takes."""
        samples = decode(x)
        return samples if self.encoder is None else passed(self.encoder, samples, self.net.precision)

    def samples(self, x: Tensor) -> Tensor:
        """As an expert's, what the learner beside it takes: images stay images, all else is a row of numbers."""
        return x if self.problem.images else x.flatten(1)

    def encoded(self, batch: Batch) -> Batch:
        """A batch whose samples passed the encoder, once: nobody passes them again."""
        return batch if self.encoder is None else dataclasses.replace(batch, x=self.encode(batch.x))

    def train(self, mode: bool = True) -> BaseLearner:
        super().train(mode)
        if self.encoder is not None:
            self.encoder.eval()
        return self

    def number_samples(self) -> None:
        """From now on batches carry a number for each sample, `extra["number"]`, and memories keep it."""
        for memory in self.memories():
            memory.add_field("number", (), torch.int64)
        if self.recipe is not None:
            self.recipe["numbered"] = True

    def memories(self) -> list[Memory]:
        return [module for module in self.modules() if isinstance(module, Memory)]

    def resize_memory(self, capacity: int) -> None:
        """Room for more samples, or for fewer, in a memory that is used already."""
        if not isinstance(self.config, ReplayConfig):
            raise UsageError(f"{type(self).__name__} has no memory that could be resized")
        with self.exclusive("resize_memory"):
            config = dataclasses.replace(self.config, memory=capacity)
            self.memory.resize(capacity)
            self.config = config

    @property
    def device(self) -> torch.device:
        return self.seen_classes.device

    @property
    def chunk(self) -> int:
        """Images to pass at once where no gradient is needed."""
        if not self.problem.images:
            return CHUNK
        most = CHUNKS.get(self.device.type, CHUNK)
        return max(1, min(most, most * 32 * 32 // math.prod(self.problem.shape[1:])))

    def mark_seen(self, classes: Iterable[int]) -> None:
        """Count these classes as seen."""
        self.seen |= self._valid(set(classes))
        self._index()

    def _valid(self, classes: set[int]) -> set[int]:
        n = self.problem.n_classes
        wrong = sorted(c for c in classes if not 0 <= c < n)
        if wrong:
            room = "" if max(wrong) < 0 else f"; grow({max(wrong) + 1}) makes room for more"
            raise UsageError(f"label {wrong[0]}: allowed are 0 to {n - 1}{room}")
        return classes

    def grow(self, n_classes: int) -> None:
        """Make room for more classes; what is known about the old ones stays as it is."""
        if n_classes < self.problem.n_classes:
            raise UsageError(f"grow({n_classes}): the learner has {self.problem.n_classes} classes and cannot lose any")
        if n_classes > MOST_CLASSES:
            raise UsageError(f"grow({n_classes}): at most {MOST_CLASSES:,} classes are possible")
        self.widen(n_classes)
        for _, optimizer in self.optimizers():
            pad_state(optimizer)
        for module in self.modules():
            if isinstance(module, Average):
                module.grow()
        if self.expert is not None:
            self.expert.grow(n_classes)
        self.problem = dataclasses.replace(self.problem, n_classes=n_classes)
        self._index()

    def _index(self) -> None:
        self.seen_classes = torch.tensor(sorted(self.seen), dtype=torch.int64, device=self.device)
        self.seen_index = torch.zeros(self.problem.n_classes, dtype=torch.int64, device=self.device)
        self.seen_index[self.seen_classes] = torch.arange(len(self.seen), device=self.device)
        self.old, self.new = (
            torch.tensor(sorted(classes), dtype=torch.int64, device=self.device)
            for classes in (self.classes_before_task, self.seen - self.classes_before_task)
        )

    @contextmanager
    def exclusive(self, what: str) -> Iterator[None]:
        """One call at a time: what is asked meanwhile, by another thread or inside `predicting`, is refused at once."""
        if not self._turn.acquire(blocking=False) or (self._doing and what != "predict"):
            raise UsageError(
                f"{what} while {self._doing or 'another call'} is under way: call one after the other; "
                "threads that predict while another learns use learner.snapshot()"
            )
        before, self._doing = self._doing, what
        try:
            yield
        finally:
            self._doing = before
            self._turn.release()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_turn"}  # locks cannot be copied

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's
        self._turn, self._doing = threading.RLock(), ""

    @contextmanager
    def _all_or_nothing(self, everything: bool) -> Iterator[None]:
        """If the step inside is refused, all becomes what it was: by default what a step moves before its weights."""
        statistics = [value.clone() for value in self.statistics()]
        rng, state = self.rng.get_state(), self._without_memory() if everything else None
        try:
            yield
        except Diverged:
            if state is not None:
                self.load_state_dict(state, strict=False)
            for value, before in zip(self.statistics(), statistics, strict=True):
                value.copy_(before)
            self.rng.set_state(rng)
            raise

    def statistics(self) -> list[Tensor]:
        """What forward passes may move: batch-norm's, in the network and in whatever a method has beside it."""
        beside = ("memory.", "average.", "encoder.", "expert.", *INDEX)
        return [value for name, value in self.named_buffers() if not name.startswith(beside)]

    def _without_memory(self) -> dict[str, Any]:
        """A copy of the state without what is in the memory and in the expert, which change after a step only."""
        later = ("memory.", "expert.")
        state = {name: value for name, value in self.state_dict().items() if not name.startswith(later)}
        return copy.deepcopy(state)

    def _check(self, batch: Batch) -> tuple[int, ...]:
        """Refuse what is no batch, and a precision that is only emulated here; the classes in it that are new."""
        check_precision(self.net.precision, self.device)
        if not isinstance(batch, Batch):
            raise UsageError(f"expected a Batch, got {type(batch).__name__}; use Batch(images, labels)")
        check_samples(batch.x, self.problem.shape)
        if not isinstance(batch.y, Tensor):
            given = type(batch.y).__name__
            raise UsageError(f"expected labels as a torch.int64 tensor, got {given}; use torch.tensor(labels)")
        if batch.y.dtype != torch.int64 or batch.y.shape != batch.x.shape[:1] or not len(batch):
            given = f"{tuple(batch.y.shape)} of {batch.y.dtype} for {len(batch.x)} samples"
            raise UsageError(f"expected one torch.int64 label for each sample, and at least one sample; got {given}")
        labels = set(batch.y.tolist())
        return () if labels <= self.seen else tuple(sorted(self._valid(labels - self.seen)))

    def _begin_unannounced_task(self, classes: tuple[int, ...]) -> None:
        """Classes that nobody announced: a task begins by itself, or the one that just began is joined."""
        if self.task is not None and self.arrived is not None and self.steps - self.arrived < SETTLING_STEPS:
            self.task = Task(self.task.index, self.task.classes + classes)
            self.mark_seen(classes)
            return
        if self.task is not None:
            self.end_task()
        self.begin_task(Task(0 if self.task is None else self.task.index + 1, classes))
        self.arrived = self.steps

    # Saving and loading: parameters and buffers as in any module; the rest here.

    def get_extra_state(self) -> dict[str, Any]:
        task = None if self.task is None else {"index": self.task.index, "classes": list(self.task.classes)}
        return {
            "steps": self.steps,
            "seen": sorted(self.seen),
            "before": sorted(self.classes_before_task),
            "task": task,
            "arrived": self.arrived,
            "rng": self.rng.get_state(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers()},
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.steps, task = state["steps"], state["task"]
        self.seen, self.classes_before_task = set(state["seen"]), set(state["before"])
        self.task = None if task is None else Task(task["index"], tuple(task["classes"]))
        self.arrived = state["arrived"]
        self.rng.set_state(state["rng"].cpu())
        for name, optimizer in self.optimizers():
            optimizer.load_state_dict(copy.deepcopy(state["optimizers"][name]))  # else Adam would write into them
        self._index()

    def optimizers(self) -> list[tuple[str, torch.optim.Optimizer]]:
        return [(name, value) for name, value in vars(self).items() if isinstance(value, torch.optim.Optimizer)]

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        rows = len(state_dict[self.class_rows])
        if rows > self.problem.n_classes:
            self.grow(rows)
        return super().load_state_dict(state_dict, strict=strict, assign=assign)
