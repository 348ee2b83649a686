"""iCaRL: incremental classifier and representation learning (Rebuffi et al., CVPR 2017), online."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.learner.batch import Batch, Task
from onepass.learner.functional import Frozen, nearest_mean
from onepass.methods.er import ER


class ICaRL(ER):
    """Each class is a yes or no of its own. For new classes the label answers, for old ones the network as it was when
    the task began. An image is then given the class whose stored samples have the nearest mean feature.

    L = mean over rows of the sum over classes c of BCE(sigmoid(l_c), t_c)
    t_c = sigmoid(l'_c) for c seen before the task, with l' the logits by the network of then; else 1 if c = y, else 0
    prediction: argmax over classes of f(x) m_c, with m_c the direction of the mean of f over the stored samples of c
    """

    def setup(self) -> None:
        self.teacher = Frozen(self.net)

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.teacher.follow(self.net)

    def beside_teacher(self, x: Tensor) -> Tensor:
        return torch.cat([self.net(x), self.teacher(x)], dim=1)

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        function = self.beside_teacher if len(self.old) else self.net
        passes = self.forward_batches(function, batch, replay, joint=self.config.forward == "joint")
        return self.combine([(self.answers(outputs, y), len(y)) for outputs, y in passes])

    def answers(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Binary cross-entropy of the network's logits, which the teacher's follow if it takes part."""
        logits, *teacher = outputs.split(self.problem.n_classes, dim=1)
        target = F.one_hot(y, self.problem.n_classes).to(logits)
        for known in teacher:
            target[:, self.old] = known[:, self.old].sigmoid()
        terms = F.binary_cross_entropy_with_logits(self.scoped(logits), self.scoped(target), reduction="none")
        return terms.sum(dim=1).mean()

    def scorer(self) -> Callable[[Tensor], Tensor]:
        return nearest_mean(self)
