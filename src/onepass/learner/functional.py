"""What several methods build on: looking ahead without a trace, and networks as they were."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.errors import Diverged
from onepass.learner.augment import decode
from onepass.learner.net import Net

if TYPE_CHECKING:
    from onepass.learner.base import Learner

M = TypeVar("M", bound=nn.Module)


def batchnorm_layers(net: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [layer for layer in net.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


@contextmanager
def frozen_batchnorm(net: nn.Module) -> Iterator[None]:
    """Train-mode passes normalise by their own batch, as in training, but leave the running statistics alone."""
    layers = [layer for layer in batchnorm_layers(net) if layer.track_running_stats]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Passes inside normalise by the running statistics, and leave them alone."""
    training = net.training
    net.eval()
    try:
        yield
    finally:
        net.train(training)


@contextmanager
def exact(module: nn.Module) -> Iterator[None]:
    """In fp32 and as networks are written: for gradients that are compared one by one, or that change samples."""
    nets = [(part, part.precision, part.compiled) for part in module.modules() if isinstance(part, Net)]
    for net, _, _ in nets:
        net.precision, net.compiled = "fp32", False
    try:
        yield
    finally:
        for net, precision, compiled in nets:
            net.precision, net.compiled = precision, compiled


@contextmanager
def virtual_step(net: nn.Module, lr: float) -> Iterator[None]:
    """Inside, the weights are those after a plain step along the gradients they hold; then the old ones again."""
    grads = {p: p.grad for p in net.parameters() if p.grad is not None}
    moved, before = list(grads), [p.data for p in grads]
    after = torch._foreach_add(before, list(grads.values()), alpha=-lr) if grads else []
    for p, value in zip(moved, after, strict=True):
        p.data = value
    try:
        yield
    finally:
        for p, value in zip(moved, before, strict=True):
            p.data = value


@contextmanager
def all_or_nothing(*stepped: nn.Module | torch.optim.Optimizer) -> Iterator[None]:
    """Two steps, both or none: if the second is refused, what the first has changed becomes what it was."""
    before = [copy.deepcopy(part.state_dict()) for part in stepped]
    try:
        yield
    except Diverged:
        for part, state in zip(stepped, before, strict=True):
            part.load_state_dict(state)
        raise


def pad_state(optimizer: torch.optim.Optimizer) -> None:
    """After parameters have grown: what an optimizer like Adam keeps of them grows too, by zeros."""
    for p, state in optimizer.state.items():
        for name, value in state.items():
            if torch.is_tensor(value) and value.dim() == p.dim():
                missing = [part for new, old in zip(p.shape, value.shape, strict=True) for part in (new - old, 0)]
                state[name] = F.pad(value, missing[::-1])


def union_mean(terms: Sequence[tuple[Tensor, int]]) -> Tensor:
    """One mean over all rows, from the mean of each part and its number of rows."""
    losses = torch.stack([loss for loss, _ in terms])
    sizes = losses.new_tensor([rows for _, rows in terms])
    return losses @ (sizes / sizes.sum())


def class_means(learner: Learner, features: Callable[[Tensor], Tensor], parts: int = 1) -> tuple[Tensor, Tensor]:
    """The direction of each class's stored samples; and 0 for a class that has any, -inf for the others.

    Features may be of several parts side by side, each as wide as the network's: then each part has its direction.
    """
    n = learner.problem.n_classes
    sums = torch.zeros(n, parts * learner.net.head.in_features, device=learner.device)
    absent = torch.full((n,), -torch.inf, device=learner.device)
    for slots in torch.arange(len(learner.memory)).split(learner.chunk):
        stored = learner.memory.read(slots)
        found = features(decode(stored.x))
        sums += F.one_hot(stored.y, n).to(found).T @ found
        absent[stored.y] = 0
    return F.normalize(sums.unflatten(1, (parts, -1)), dim=2).flatten(1), absent


def nearest_mean(learner: Learner) -> Callable[[Tensor], Tensor]:
    """A scorer by the distance of an image's feature to the mean feature of each class's stored samples.

    All features and means have length one, so the nearest mean is the one with the largest product.
    """

    def features(x: Tensor) -> Tensor:
        return F.normalize(learner.net.features(x))

    means, absent = class_means(learner, features)
    # What all means share tells no class from another; without it, scores that hardly differ lose no digits.
    apart = means - means[absent == 0].mean(dim=0)
    return lambda x: F.linear(features(x), apart, absent)


class Frozen(nn.Module, Generic[M]):
    """A copy of a module: part of the state from the first step on, never trained.

    Its batch-norm uses the statistics it was copied with or, `by_batch`, those of the batch that passes.
    """

    def __init__(self, module: M, *, by_batch: bool = False) -> None:
        super().__init__()
        self.module = copy.deepcopy(module).requires_grad_(False).train(by_batch)
        for layer in batchnorm_layers(self.module):
            layer.track_running_stats = False  # in train mode: leave them alone

    def follow(self, module: M) -> None:
        """Become what the module is now."""
        self.module.load_state_dict(module.state_dict())

    def train(self, mode: bool = True) -> Frozen[M]:
        return self

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.module(x)
        return output
