"""EWC++: elastic weight consolidation with a running Fisher (Chaudhry et al., ECCV 2018)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from onepass.config import LearnerConfig, option
from onepass.learner.base import Learner
from onepass.learner.batch import Batch, Task

FLOOR = 1e-32  # keeps the importance zero where no weight has any


@dataclass(frozen=True)
class EWCPPConfig(LearnerConfig):
    strength: float = option(3.0, "weight of the pull to the weights at the task's beginning (lambda)", low=0)
    fisher_alpha: float = option(0.9, "share of the newest batches in the running Fisher (alpha)", low=0, high=1)
    fisher_period: int = option(50, "batches that make one update of the running Fisher", low=1)


class PerWeight(nn.Module):
    """A number for each of these weights, zero at first; part of the state."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        super().__init__()
        for place, weight in enumerate(weights):
            # What zeros_like gives, which on torch's meta device imports an algebra system.
            zeros = torch.empty_strided(weight.shape, weight.stride(), dtype=weight.dtype, device=weight.device).zero_()
            self.register_buffer(str(place), zeros)

    def values(self) -> list[Tensor]:
        return list(self.buffers())

    def copy(self, values: Iterable[Tensor]) -> None:
        torch._foreach_copy_(self.values(), list(values))

    def grow(self, weights: Iterable[Tensor]) -> None:
        """Zeros for rows that the weights have gained."""
        for (name, value), weight in zip([*self.named_buffers()], weights, strict=True):
            if more := len(weight) - len(value):
                self.register_buffer(name, torch.cat([value, value.new_zeros(more, *value.shape[1:])]))


class EWCPP(Learner):
    """No memory of samples: weights that mattered to earlier tasks are pulled back to where the last task left them.
    How much one mattered is its share in a running mean of squared gradients, the diagonal of the empirical Fisher.

    L = CE(new) + lambda sum over weights i of I_i (theta_i - theta*_i)^2
    F <- (1 - alpha) F + alpha mean of (grad CE)^2 over a period's batches
    at a task's beginning: theta* = theta, I = (F - min F) / (max F - min F)
    """

    Config = EWCPPConfig
    config: EWCPPConfig
    batches: Tensor

    def setup(self) -> None:
        self.weights = [p for p in self.net.parameters() if p.requires_grad]
        self.anchor, self.importance, self.fisher = (PerWeight(self.weights) for _ in range(3))
        self.register_buffer("batches", torch.tensor(0))  # of this task

    @torch.no_grad()
    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.anchor.copy(self.weights)
        fisher = self.fisher.values()
        low, high = (
            torch.stack([part.min() for part in fisher]).min(),
            torch.stack([part.max() for part in fisher]).max(),
        )
        self.importance.copy([(part - low) / (high - low + FLOOR) for part in fisher])
        self.batches.zero_()

    def learn(self, batch: Batch, replay: Batch) -> Tensor:
        [(logits, y)] = self.forward_batches(self.net, batch, joint=False)
        loss = self.cross_entropy(logits, y)
        self.optimizer.zero_grad()
        loss.backward()
        slopes = [p.grad for p in self.weights]
        loss = self.update(loss.detach() + self.pull())
        self.follow(slopes)  # by the cross-entropy alone, and only if the step was taken
        return loss

    @torch.no_grad()
    def pull(self) -> Tensor:
        """Add the gradient of the penalty to the one that is held, in new tensors; the penalty."""
        strength, penalty = self.config.strength, torch.zeros((), device=self.device)
        for p, anchor, importance in zip(self.weights, self.anchor.values(), self.importance.values(), strict=True):
            if p.grad is not None:
                moved = p - anchor
                force = importance * moved
                penalty += (force * moved).sum()
                p.grad = p.grad + 2 * strength * force
        return strength * penalty

    @torch.no_grad()
    def follow(self, slopes: Iterable[Tensor | None]) -> None:
        """Squared gradients into the running Fisher. A period that the task's end cuts short counts for what it had."""
        alpha, period = self.config.fisher_alpha, self.config.fisher_period
        if int(self.batches) % period == 0:
            torch._foreach_mul_(self.fisher.values(), 1 - alpha)
        for part, slope in zip(self.fisher.values(), slopes, strict=True):
            if slope is not None:
                part.addcmul_(slope, slope, value=alpha / period)
        self.batches += 1

    def widen(self, n_classes: int) -> None:
        super().widen(n_classes)
        for part in (self.anchor, self.importance, self.fisher):
            part.grow(self.weights)
