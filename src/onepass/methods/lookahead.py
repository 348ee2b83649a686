"""What MIR, GMED and ER-DVC share: a look at what a step on the new batch would do, before anything is replayed."""

from __future__ import annotations

import torch
from torch import Tensor

from onepass.config import CombineConfig
from onepass.learner.base import Learner
from onepass.learner.batch import Batch


class Lookahead(Learner):
    """The new batch's gradient is computed once: to look ahead with, and to learn by."""

    Config = CombineConfig
    config: CombineConfig

    def batch_loss(self, batch: Batch) -> Tensor:
        """The loss of new samples, and of replayed ones."""
        [(logits, y)] = self.forward_batches(self.net, batch, joint=False)
        return self.cross_entropy(logits, y)

    def choose(self, pool: Batch) -> Batch:
        """What to replay of what `retrieve` found. The network holds the gradient of the new batch's loss alone."""
        raise NotImplementedError(f"{type(self).__name__} must define choose(pool)")

    def learn(self, batch: Batch, replay: Batch) -> Tensor:
        loss = self.batch_loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        chosen = self.choose(replay) if len(replay) else replay
        if not len(chosen):
            return self.update(loss)
        new, old = 1.0, 1.0
        if self.config.combine == "mean":
            new, old = (len(part) / (len(batch) + len(chosen)) for part in (batch, chosen))
            torch._foreach_mul_([p.grad for p in self.trainable() if p.grad is not None], new)
        replayed = old * self.batch_loss(chosen)
        replayed.backward()
        return self.update(new * loss + replayed)
