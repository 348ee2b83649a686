"""ER-ACE: experience replay with asymmetric cross-entropy (Caccia et al., ICLR 2022)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from onepass.learner.batch import Batch
from onepass.methods.er import ER


class ERACE(ER):
    """New samples compete only among the classes of their own batch, so they do not push the old classes down.
    Replayed samples compete among all classes seen.

    L = mean of CE(new, over the classes in the new batch) and CE(replayed, over the classes seen so far)
    """

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        (logits, y), *replayed = self.forward_batches(self.net, batch, replay, joint=self.config.forward == "joint")
        present, target = y.unique(return_inverse=True)
        new = F.cross_entropy(logits.index_select(1, present), target)  # zero if the batch has one class: as it should
        return self.combine([(new, len(y)), *((self.cross_entropy(logits, y), len(y)) for logits, y in replayed)])
