"""LwF: learning without forgetting (Li and Hoiem, ECCV 2016), online and with one head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.config import LearnerConfig, option
from onepass.learner.base import Learner
from onepass.learner.batch import Batch, Task
from onepass.learner.functional import Frozen


@dataclass(frozen=True)
class LwFConfig(LearnerConfig):
    distil: float | None = option(
        None, "weight of the distillation, beside 1 (lambda_o); default: 1 - 1/t, beside 1/t in task t", low=0
    )
    softening: float = option(2.0, "temperature of the distilled probabilities (T)", low=0.01)


class LwF(Learner):
    """No memory of samples: on new samples, the network as it was when the task began teaches its answers about the old
    classes. The more tasks there have been, the more these answers count beside the labels.

    L = 1/t CE(new) + (1 - 1/t) KD in task t;  KD = -T^2 mean over new samples of sum over old c of p_c log q_c
    p, q = softmax(logits of the old classes / T) of the network as it was and as it is
    """

    Config = LwFConfig
    config: LwFConfig
    begun: Tensor

    def setup(self) -> None:
        self.teacher = Frozen(self.net, by_batch=True)
        self.register_buffer("begun", torch.tensor(0))  # tasks, whatever numbers their driver gives them

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.teacher.follow(self.net)
        self.begun += 1

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        [(x, y)] = self.views(batch)
        logits = self.net(x)
        loss = self.cross_entropy(logits, y)
        if not len(self.old) or self.config.distil == 0:
            return loss
        share = 1 / int(self.begun)
        new, old = (share, 1 - share) if self.config.distil is None else (1.0, self.config.distil)
        return new * loss + old * self.distillation(logits, self.teacher(x))

    def distillation(self, network: Tensor, teacher: Tensor) -> Tensor:
        """Cross-entropy between softened answers, over the softmax that the teacher was trained with."""
        softening = self.config.softening
        if self.config.scope == "seen":
            network, teacher = (logits.index_select(1, self.old) for logits in (network, teacher))
        return softening**2 * F.cross_entropy(network / softening, F.softmax(teacher / softening, dim=1))
