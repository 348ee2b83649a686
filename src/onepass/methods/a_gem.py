"""A-GEM: averaged gradient episodic memory (Chaudhry et al., ICLR 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from onepass.config import ReplayConfig
from onepass.learner.base import Learner
from onepass.learner.batch import Batch


class AGEM(Learner):
    """Only new samples are learned. Stored samples of earlier tasks guard the step: if it would raise their mean loss,
    to first order, the part of the gradient that points against theirs is taken out.

    g = gradient of CE over new samples, r = gradient of CE over stored samples of earlier tasks
    step along g if g . r >= 0, else along g - (g . r / r . r) r
    """

    Config = ReplayConfig
    config: ReplayConfig

    def retrieve(self, batch: Batch) -> Batch:
        """Samples of classes from before the running task alone: the task's own would speak for the step."""
        labels = self.memory.field("y")[: len(self.memory)]
        slots = torch.isin(labels, self.old).nonzero().flatten().cpu()
        return self.memory.read(slots[torch.randperm(len(slots), generator=self.rng)[: self.replay]])

    def learn(self, batch: Batch, replay: Batch) -> Tensor:
        new, *guards = self.forward_batches(self.net, batch, replay, joint=False)
        loss = self.cross_entropy(*new)
        self.optimizer.zero_grad()
        loss.backward()
        for guard in guards:  # none in the first task
            self.project(self.cross_entropy(*guard))
        return self.update(loss)

    def project(self, guard: Tensor) -> None:
        """Take out of the gradients that are held what would raise this loss."""
        held = [(p, p.grad) for p in self.trainable() if p.grad is not None]
        grads = [grad for _, grad in held]
        reference = torch.autograd.grad(guard, [p for p, _ in held])
        dot, square = (
            torch.stack([(one * other).sum() for one, other in zip(part, reference, strict=True)]).sum()
            for part in (grads, reference)
        )
        if not dot >= 0:  # so that a reference that is not finite reaches the step, which is refused then
            factor = dot / square.clamp(min=torch.finfo(square.dtype).tiny)
            torch._foreach_sub_(grads, torch._foreach_mul(reference, factor))
