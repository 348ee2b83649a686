"""IID++: the compute of replay, on shuffled data (Caccia et al., ICLR 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from onepass.learner.base import Learner
from onepass.learner.batch import Batch
from onepass.learner.functional import union_mean


class IIDPP(Learner):
    """Fine-tuning on shuffled data whose stream brings a second, independent batch in each step: the compute of replay.
    Each batch passes through the network on its own.

    L = mean of CE over the samples of both batches
    """

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        halves = [batch[rows] for rows in torch.arange(len(batch)).tensor_split(2)]
        passes = self.forward_batches(self.net, *halves, joint=False)
        return union_mean([(self.cross_entropy(logits, y), len(y)) for logits, y in passes])
