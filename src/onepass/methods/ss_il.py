"""SS-IL: separated softmax for incremental learning (Ahn et al., ICCV 2021), online."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.config import option
from onepass.learner.batch import Batch
from onepass.learner.functional import Frozen
from onepass.methods.er import ER, ERConfig


@dataclass(frozen=True)
class SSILConfig(ERConfig):
    distil: float = option(1.0, "weight of the distillation from the network at the last task's end", low=0)
    softening: float = option(2.0, "temperature of the distilled probabilities (T)", low=0.01)


class SSIL(ER):
    """Old classes compete among themselves and new ones among themselves, so that neither group pushes the other down.
    The network as it was at the last task's end teaches each finished task's probabilities to all samples.

    L = mean of CE(over the old classes if y is old, else over the new) + distil KD
    KD = sum over finished tasks s of T^2 KL(teacher || network), both softmax(logits of the classes of s / T)
    """

    Config = SSILConfig
    config: SSILConfig

    def setup(self) -> None:
        self.teacher = Frozen(self.net)
        self.past: list[list[int]] = []  # the classes that each finished task brought

    def end_task(self) -> None:
        super().end_task()
        self.teacher.follow(self.net)
        finished = self.new.tolist()
        if finished and finished not in self.past:  # a task may bring no class, and may be ended twice
            self.past.append(finished)

    def beside_teacher(self, x: Tensor) -> Tensor:
        return torch.cat([self.net(x), self.teacher(x)], dim=1)

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        distil = self.config.distil if self.past else 0.0
        function = self.beside_teacher if distil else self.net
        passes = self.forward_batches(function, batch, replay, joint=self.config.forward == "joint")
        terms = [(self.separated(outputs[:, : self.problem.n_classes], y), len(y)) for outputs, y in passes]
        loss = self.combine(terms)
        if distil:
            network, teacher = torch.cat([outputs for outputs, _ in passes]).chunk(2, dim=1)
            loss = loss + distil * self.distillation(network, teacher)
        return loss

    def separated(self, logits: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy of each row over its label's own group of classes."""
        sums, own = groups(logits, y, self.old, self.new)
        return (sums.gather(1, own) - logits.gather(1, y[:, None])).mean()

    def distillation(self, network: Tensor, teacher: Tensor) -> Tensor:
        """Summed over finished tasks, mean over rows."""
        softening = self.config.softening
        given, wanted = (
            torch.cat([F.log_softmax(logits[:, classes] / softening, dim=1) for classes in self.past], dim=1)
            for logits in (network, teacher)
        )
        return softening**2 * F.kl_div(given, wanted, reduction="batchmean", log_target=True)

    def get_extra_state(self) -> dict[str, Any]:
        return {**super().get_extra_state(), "past": list(self.past)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self.past = list(state["past"])


def groups(logits: Tensor, y: Tensor, old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """logsumexp over the old and over the new classes (n, 2), and which of the two the label belongs to (n, 1)."""
    sums = torch.stack([logits.index_select(1, classes).logsumexp(dim=1) for classes in (old, new)], dim=1)
    return sums, torch.isin(y, old, invert=True).long()[:, None]
