"""ER-WA: experience replay with weight aligning (Zhao et al., CVPR 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onepass.methods.er import ER


class ERWA(ER):
    """Experience replay; new classes end a task with longer weight vectors than old ones, and so with larger logits.
    Each task's end therefore scales the new classes' vectors to the mean length of the old ones'.

    w_c <- gamma w_c for new c, gamma = mean over old c of |w_c| / mean over new c of |w_c|
    """

    gamma: Tensor

    def setup(self) -> None:
        self.register_buffer("gamma", torch.tensor(torch.nan))  # of the last task's end, if it aligned anything

    def end_task(self) -> None:
        super().end_task()
        self.gamma.fill_(torch.nan)
        if len(self.old) and len(self.new):
            gammas = []
            for weights in self.each_weight_set():
                with weights:
                    gammas.append(self.align())
            self.gamma.copy_(gammas[0])

    def facts(self) -> dict[str, Any]:
        """How the last weights were scaled."""
        return {"gamma": None if self.gamma.isnan() else self.gamma.item()}

    @torch.no_grad()
    def align(self) -> Tensor:
        weight = self.net.head.weight
        old, new = (weight.index_select(0, classes) for classes in (self.old, self.new))
        gamma: Tensor = old.norm(dim=1).mean() / new.norm(dim=1).mean()
        weight.index_copy_(0, self.new, gamma * new)
        return gamma
