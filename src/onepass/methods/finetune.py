"""FINE-TUNE."""

from __future__ import annotations

from torch import Tensor

from onepass.learner.base import Learner
from onepass.learner.batch import Batch


class FineTune(Learner):
    """No memory: each batch is learned and left behind. What forgetting looks like.

    L = mean of CE over new samples (eq. 1)
    """

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        [(logits, y)] = self.forward_batches(self.net, batch, joint=False)
        return self.cross_entropy(logits, y)
