"""ER-LODE: experience replay with loss decoupling (Liang and Li, NeurIPS 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.config import option
from onepass.learner.batch import Batch, Task
from onepass.methods.er import ER, ERConfig
from onepass.methods.ss_il import groups


@dataclass(frozen=True)
class ERLODEConfig(ERConfig):
    rho: float = option(0.1, "weight of new against old classes, before it is divided by the tasks finished", low=0)


class ERLODE(ER):
    """A new sample's cross-entropy is the sum of two: new classes against old ones, and its class among the new.
    The first makes the network forget, so it counts less, and the less the more tasks there have been.

    L = mean of (rho / t) L_inter + L_intra over new samples and of CE over replayed ones, t tasks finished
    L_inter = -log(sum over new c of e^l_c / sum over all c of e^l_c), L_intra = -log(e^l_y / sum over new c of e^l_c)
    """

    Config = ERLODEConfig
    config: ERLODEConfig
    begun: Tensor

    def setup(self) -> None:
        self.register_buffer("begun", torch.tensor(0))  # tasks, whatever numbers their driver gives them

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.begun += 1

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        (logits, y), *replayed = self.forward_batches(self.net, batch, replay, joint=self.config.forward == "joint")
        new = self.decoupled(logits, y)
        return self.combine([(new, len(y)), *((self.cross_entropy(logits, y), len(y)) for logits, y in replayed)])

    def decoupled(self, logits: Tensor, y: Tensor) -> Tensor:
        """The loss of new samples. One of an old class (blurry streams) has the same loss with the groups exchanged."""
        if not len(self.old):
            return self.cross_entropy(logits, y)
        new = self.new
        if self.config.scope == "all":  # as in the published code: all that is not old, to come or not
            new = torch.ones(logits.shape[1], device=logits.device).index_fill(0, self.old, 0).nonzero().squeeze(1)
        sums, own = groups(logits, y, self.old, new)
        inter = F.cross_entropy(sums, own.squeeze(1))
        intra = (sums.gather(1, own) - logits.gather(1, y[:, None])).mean()
        return self.config.rho / max(1, int(self.begun) - 1) * inter + intra
