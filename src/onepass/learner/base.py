"""A learner by gradient steps: one optimizer step a batch on a loss over new and replayed samples."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.config import LearnerConfig
from onepass.errors import Diverged
from onepass.learner.augment import FOR_VECTORS, Augment, augmentation, decode
from onepass.learner.average import Average
from onepass.learner.batch import Batch
from onepass.learner.contract import CHUNK, SETTLING_STEPS, BaseLearner
from onepass.learner.net import Net, Standardise
from onepass.learner.precision import settled
from onepass.learner.problem import Problem
from onepass.learner.uncompiled import take_step

__all__ = ["CHUNK", "SETTLING_STEPS", "Learner"]


class Learner(BaseLearner):
    """What methods are made of: most override `loss`, some what to retrieve, to remember, or how to predict."""

    Config: ClassVar[type[LearnerConfig]] = LearnerConfig
    config: LearnerConfig
    betas: ClassVar[tuple[float, float]] = (0.9, 0.999)  # of Adam

    def __init__(
        self, net: Net, problem: Problem, config: LearnerConfig, *, seed: int, encoder: nn.Module | None = None
    ) -> None:
        self.many_steps = config.updates > 1
        config = settled(config, net.head.weight.device)
        net.precision, net.compiled = config.precision, config.compile  # before copies of it are made
        super().__init__(net, problem, config, seed=seed, encoder=encoder)
        self.optimizer = self.make_optimizer()
        self.average = None if config.average is None else Average(self.predictors(), config.average)

    @functools.cached_property
    def augment(self) -> Augment | None:
        """What is drawn of each sample; a frozen network's features are no images any more."""
        name = self.problem.augment
        return augmentation(name if self.encoder is None or name in FOR_VECTORS else "none")

    # Hook methods.

    def trainable(self) -> Iterator[nn.Parameter]:
        """What the optimizer steps."""
        return self.net.parameters()

    def make_optimizer(self) -> torch.optim.Optimizer:
        """How it is stepped: as the settings say."""
        return self.optimizer_of(self.trainable())

    def optimizer_of(self, weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """An optimizer as the settings have it, of those weights that learn."""
        config = self.config
        learning = [weight for weight in weights if weight.requires_grad]
        if config.optimizer == "sgd":
            return torch.optim.SGD(learning, config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
        kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
        return kind(learning, config.lr, betas=self.betas, weight_decay=config.weight_decay)

    def retrieve(self, batch: Batch) -> Batch:
        """Which stored samples to replay beside this batch; may be none."""
        return self.memory.sample(self.replay, self.rng)

    def absorb(self, batch: Batch) -> Tensor:
        for layer in self.net.modules():
            if isinstance(layer, Standardise):
                layer.meet(decode(batch.x))
        for _ in range(self.config.updates):
            loss = self.learn(batch, self.retrieve(batch))
        if self.average is not None:
            self.average.follow(self.steps + 1)
        return loss

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define loss(batch, replay)")

    def learn(self, batch: Batch, replay: Batch) -> Tensor:
        """One optimizer step on `loss`."""
        return self.step(self.loss(batch, replay))

    def predictors(self) -> list[nn.Module]:
        """All modules that `scorer` uses: what is averaged if an average is kept."""
        return [self.net]

    def each_weight_set(self) -> list[AbstractContextManager[None]]:
        """The last weights in place, then the average in place if one is kept: for what changes weights by hand."""
        return [nullcontext()] if self.average is None else [self.average.in_place(False), self.average.in_place()]

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
        take_step(optimizer)
        return loss.detach()

    def images_and_views(self, *batches: Batch) -> list[tuple[Tensor, Tensor]]:
        """For each batch its images and one augmentation of each, drawn in one go; without any, the images again."""
        sizes = [len(batch) for batch in batches]
        images = torch.cat([decode(batch.x) for batch in batches])
        seen = images if self.augment is None else self.augment(images, self.rng)
        return list(zip(images.split(sizes), seen.split(sizes), strict=True))

    def views(self, *batches: Batch) -> list[tuple[Tensor, Tensor]]:
        """For each batch its images followed by one augmentation of each (if the stream has any), with labels."""
        if self.augment is None:
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
