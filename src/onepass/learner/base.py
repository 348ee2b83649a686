"""The contract: four verbs that a driver calls, and the hook methods that a method overrides."""

from __future__ import annotations

import copy
import math
import operator
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.config import LearnerConfig, ReplayConfig, unknown
from onepass.errors import Diverged, UsageError
from onepass.learner.augment import AUGMENTATIONS, decode
from onepass.learner.average import Average
from onepass.learner.batch import Batch, Task, check_images
from onepass.learner.functional import pad_state
from onepass.learner.memory import Memory
from onepass.learner.net import Net
from onepass.learner.predictor import Predictor
from onepass.seeds import generator

# Images scored at once, fewer of those larger than 32x32. On a CPU 64 stay in its caches: twice as fast as 500.
CHUNKS = {"cpu": 64}
CHUNK = 512
MOST_CLASSES = 10_000_000  # rows of a head; a number beyond is a mistake, and would take all memory
SETTLING_STEPS = 20  # steps within which classes that nobody announced are taken for one task


def _count(value: Any) -> int:
    number = operator.index(value)
    if number < 1:
        raise ValueError(number)
    return number


@dataclass(frozen=True)
class Problem:
    """What is to be learned: the number of classes (more may come: `grow`), the images' shape, their augmentation."""

    n_classes: int
    shape: tuple[int, int, int]
    augment: str = "none"
    n_tasks: int | None = None

    def __post_init__(self) -> None:
        try:
            channels, height, width = (_count(side) for side in self.shape)
        except (TypeError, ValueError):
            raise UsageError(f"shape={self.shape!r}: expected (channels, height, width)") from None
        object.__setattr__(self, "shape", (channels, height, width))
        if self.augment not in AUGMENTATIONS:
            raise unknown("augmentation", self.augment, AUGMENTATIONS, "allowed")
        if isinstance(self.n_classes, int) and self.n_classes > MOST_CLASSES:
            raise UsageError(f"n_classes={self.n_classes}: at most {MOST_CLASSES:,} are possible")
        for name in ("n_classes", "n_tasks"):
            value = getattr(self, name)
            if name == "n_tasks" and value is None:
                continue
            try:
                object.__setattr__(self, name, _count(value))
            except (TypeError, ValueError):
                raise UsageError(f"{name}={value!r}: must be a whole number of at least 1") from None


class Learner(nn.Module):
    """A network, a memory and a rule. Everything that changes is in `state_dict()`: it is the checkpoint."""

    Config: ClassVar[type[LearnerConfig]] = LearnerConfig
    image_dtype: ClassVar[torch.dtype] = torch.uint8
    recipe: dict[str, Any] | None = None  # how build() made it; what save() writes down
    seen_classes: Tensor  # the classes seen so far, sorted
    seen_index: Tensor  # of each class among them
    old: Tensor  # the classes seen before the running task began, sorted
    new: Tensor  # the others

    def __init__(self, net: Net, problem: Problem, config: LearnerConfig, *, seed: int) -> None:
        super().__init__()
        self.net = net
        self.problem = problem
        self.config = config
        self.rng = generator(seed, "learner")
        capacity, self.replay = (config.memory, config.replay) if isinstance(config, ReplayConfig) else (0, 0)
        self.memory = Memory(capacity, problem.shape, self.image_dtype, seed=seed)
        self.task: Task | None = None
        self.arrived: int | None = None  # the step at which the task began by itself
        self.steps = 0
        self._turn, self._doing = threading.RLock(), ""
        self.seen: set[int] = set()
        self.classes_before_task: set[int] = set()  # as `old`
        for name in ("seen_classes", "seen_index", "old", "new"):
            self.register_buffer(name, torch.empty(0, dtype=torch.int64), persistent=False)
        self.setup()
        self.optimizer = self.make_optimizer()
        self.average = None if config.average is None else Average(self.predictors(), config.average)

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
        with self.exclusive("observe"):
            new = self._check(batch)
            batch = batch.to(self.device)
            if not self.training:
                self.train()
            with self._all_or_nothing(everything=bool(new)):
                if new:
                    self._begin_unannounced_task(new)
                loss = self.learn(batch, self.retrieve(batch))
            self.remember(batch)
            self.steps += 1
            if self.average is not None:
                self.average.follow(self.steps)
            return loss

    def end_task(self) -> None:
        """The task's last batch has been observed."""

    def predict(self, images: Tensor) -> Tensor:
        """The class of each image, among the classes seen so far; changes nothing in the learner."""
        with self.predicting() as predict:
            return predict(images)

    @contextmanager
    def predicting(self, last: bool = False) -> Iterator[Predictor]:
        """`predict` for many calls in a row: what `scorer` prepares is prepared once.

        By the average if there is one, unless the last weights are asked for.
        """
        with self.exclusive("predict"):
            training = self.training
            self.eval()
            average = nullcontext() if self.average is None else self.average.in_place(not last)
            try:
                with average:
                    yield self._predictor()
            finally:
                self.train(training)

    def snapshot(self) -> Predictor:
        """What predicts now, as an object of its own: threads may ask it while this learner goes on learning."""
        with self.exclusive("snapshot"):
            shared = {id(column): column for column in map(self.memory.field, self.memory.fields)}  # read here and now
            unused: dict[int, Any] = {id(optimizer): None for _, optimizer in self.optimizers()}
            copied: Learner = copy.deepcopy(self, {**shared, **unused})
            copied.eval()
            if copied.average is not None:
                copied.average.put_in_place()
            return copied._predictor()

    def _predictor(self) -> Predictor:
        if not self.seen:
            raise UsageError("nothing to predict yet: no class has been seen; call begin_task and observe first")
        return Predictor(self)

    # Hook methods: most methods override one or two.

    def setup(self) -> None:
        """Declare further state: heads, copies, masks, memory fields. Nothing is declared later."""

    def trainable(self) -> Iterator[nn.Parameter]:
        """What the optimizer steps."""
        return self.net.parameters()

    def make_optimizer(self) -> torch.optim.Optimizer:
        """How it is stepped: by plain SGD, as the paper's methods are."""
        return torch.optim.SGD(self.trainable(), lr=self.config.lr)

    def retrieve(self, batch: Batch) -> Batch:
        """Which stored samples to replay beside this batch; may be none."""
        return self.memory.sample(self.replay, self.rng)

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define loss(batch, replay)")

    def learn(self, batch: Batch, replay: Batch) -> Tensor:
        """One optimizer step on `loss`."""
        return self.step(self.loss(batch, replay))

    def remember(self, batch: Batch) -> None:
        """What of this batch to store; by default a reservoir."""
        if self.memory.capacity:
            self.memory.write(self.memory.reservoir(len(batch)), batch)

    def widen(self, n_classes: int) -> None:
        """Give whatever is as wide as there are classes its new width."""
        averaged = {part for module in self.modules() if isinstance(module, Average) for part in module.modules()}
        for module in [*self.modules()]:
            if isinstance(module, Net) and module not in averaged:  # copies of the network too
                module.grow(n_classes, self.rng)

    def predictors(self) -> list[nn.Module]:
        """All modules that `scorer` uses: what is averaged if an average is kept."""
        return [self.net]

    def scorer(self) -> Callable[[Tensor], Tensor]:
        """A function from float images to one score per class."""
        return self.net

    def facts(self) -> dict[str, Any]:
        """What is worth writing down after a task beside the accuracies, as JSON."""
        return {}

    # What methods build on.

    def each_weight_set(self) -> list[AbstractContextManager[None]]:
        """The last weights in place, then the average in place if one is kept: for what changes weights by hand."""
        return [nullcontext()] if self.average is None else [self.average.in_place(False), self.average.in_place()]

    @property
    def device(self) -> torch.device:
        return self.net.head.weight.device

    @property
    def chunk(self) -> int:
        """Images to pass at once where no gradient is needed."""
        most = CHUNKS.get(self.device.type, CHUNK)
        return max(1, min(most, most * 32 * 32 // math.prod(self.problem.shape[1:])))

    def step(self, loss: Tensor, optimizer: torch.optim.Optimizer | None = None) -> Tensor:
        """Descend once, by the learner's optimizer or by another."""
        optimizer = optimizer or self.optimizer
        optimizer.zero_grad()
        loss.backward()
        return self.update(loss, optimizer)

    def update(self, loss: Tensor, optimizer: torch.optim.Optimizer | None = None) -> Tensor:
        """Step along the gradients as they are. If they or the loss are not finite, refuse and leave all as it was."""
        optimizer = optimizer or self.optimizer
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        lr = optimizer.param_groups[0]["lr"]
        change = lr * torch.stack(torch._foreach_norm(grads)).norm()
        if not torch.isfinite(loss + change).item():
            raise Diverged(
                f"at step {self.steps} the loss is {loss.item():g} and the step would be {change.item():g} long with "
                f"lr={lr:g}: try a smaller one (--lr {lr / 10:g}); the learner from before this step is kept"
            )
        optimizer.step()
        return loss.detach()

    def images_and_views(self, *batches: Batch) -> list[tuple[Tensor, Tensor]]:
        """For each batch its images and one view of each, drawn in one go; without views, the images again."""
        sizes = [len(batch) for batch in batches]
        images = torch.cat([decode(batch.x) for batch in batches])
        augment = AUGMENTATIONS[self.problem.augment]
        seen = images if augment is None else augment(images, self.rng)
        return list(zip(images.split(sizes), seen.split(sizes), strict=True))

    def views(self, *batches: Batch) -> list[tuple[Tensor, Tensor]]:
        """For each batch its images followed by one view of each (if the stream has views), with labels."""
        if AUGMENTATIONS[self.problem.augment] is None:
            return [(decode(batch.x), batch.y) for batch in batches]
        pairs = zip(self.images_and_views(*batches), batches, strict=True)
        return [(torch.cat(pair), batch.y.repeat(2)) for pair, batch in pairs]

    def forward_batches(
        self, function: Callable[[Tensor], Tensor], *batches: Batch, joint: bool
    ) -> list[tuple[Tensor, Tensor]]:
        """(function(views), labels) of every batch that is not empty, in one forward pass or in one each."""
        views = self.views(*(batch for batch in batches if len(batch)))
        if joint and len(views) > 1:
            outputs = function(torch.cat([x for x, _ in views])).split([len(y) for _, y in views])
            return [(output, y) for output, (_, y) in zip(outputs, views, strict=True)]
        return [(function(x), y) for x, y in views]

    def cross_entropy(self, logits: Tensor, y: Tensor, reduction: str = "mean", smoothing: float = 0.0) -> Tensor:
        """Cross-entropy over the classes in scope."""
        return F.cross_entropy(self.scoped(logits), self.targets(y), reduction=reduction, label_smoothing=smoothing)

    def scoped(self, logits: Tensor) -> Tensor:
        """The columns of the classes in scope."""
        return logits.index_select(-1, self.seen_classes) if self._narrow else logits

    def targets(self, y: Tensor) -> Tensor:
        """The place of each label among those columns."""
        return self.seen_index[y] if self._narrow else y

    @property
    def _narrow(self) -> bool:
        return self.config.scope == "seen" and len(self.seen) < self.problem.n_classes

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
        self.problem = replace(self.problem, n_classes=n_classes)
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
        statistics = [value.clone() for value in self.net.buffers()]  # forward passes move batch-norm's
        rng, state = self.rng.get_state(), self._without_memory() if everything else None
        try:
            yield
        except Diverged:
            if state is not None:
                self.load_state_dict(state, strict=False)
            for value, before in zip(self.net.buffers(), statistics, strict=True):
                value.copy_(before)
            self.rng.set_state(rng)
            raise

    def _without_memory(self) -> dict[str, Any]:
        """A copy of the state without what is in the memory."""
        state = {name: value for name, value in self.state_dict().items() if not name.startswith("memory.")}
        return copy.deepcopy(state)

    def _check(self, batch: Batch) -> tuple[int, ...]:
        """Refuse what is no batch; the classes in it that were never seen."""
        if not isinstance(batch, Batch):
            raise UsageError(f"expected a Batch, got {type(batch).__name__}; use Batch(images, labels)")
        check_images(batch.x, self.problem.shape)
        if not isinstance(batch.y, Tensor):
            given = type(batch.y).__name__
            raise UsageError(f"expected labels as a torch.int64 tensor, got {given}; use torch.tensor(labels)")
        if batch.y.dtype != torch.int64 or batch.y.shape != batch.x.shape[:1] or not len(batch):
            given = f"{tuple(batch.y.shape)} of {batch.y.dtype} for {len(batch.x)} images"
            raise UsageError(f"expected one torch.int64 label for each image, and at least one image; got {given}")
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
        rows = len(state_dict["net.head.weight"])
        if rows > self.problem.n_classes:
            self.grow(rows)
        return super().load_state_dict(state_dict, strict=strict, assign=assign)
