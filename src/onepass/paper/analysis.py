"""The learner behind figure 2: two tasks, new samples learned in a share of the features, replay in all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from onepass.config import option
from onepass.learner.augment import decode
from onepass.learner.batch import Batch
from onepass.learner.functional import evaluating
from onepass.methods.er_fsl import ERFSL, ERFSLConfig, Space


@dataclass(frozen=True)
class AnalysisConfig(ERFSLConfig):
    rule: Literal["finetune", "er"] = option("er", "learn new samples alone, or beside replayed ones")
    scale: float = option(
        1.0, "share of the features that new samples are learned in, from the first on", low=0, high=1
    )
    since: int = option(0, "task from which rule and scale hold; earlier ones are learned by er in all features", low=0)


class Analysis(ERFSL):
    """ER or fine-tuning without a bias, in the first features for new samples and in all for replayed ones.

    L = CE(new; first features) + CE(replayed; all features), or its first term alone, which is then tested there too
    """

    Config = AnalysisConfig
    config: AnalysisConfig

    def setup(self) -> None:
        super().setup()
        self.subspace = max(1, int(self.config.scale * self.width))
        self.spaces[2] = (torch.arange(self.width) < self.subspace).to(self.spaces)

    @property
    def general(self) -> bool:
        """Whether the task is still one of those before rule and scale hold."""
        return int(self.begun) <= self.config.since

    def terms(self, batch: Batch, replay: Batch) -> list[tuple[Batch, Space, float]]:
        if self.general:
            return [(batch, "all", 1.0), (replay, "all", 1.0)]
        return [(batch, "first", 1.0), (replay, "all", float(self.config.rule == "er"))]

    def scorer(self) -> Any:
        space: Space = "first" if self.config.rule == "finetune" and not self.general else "all"
        return lambda x: self.logits(self.net.features(x), space)

    @torch.no_grad()
    def facts(self) -> dict[str, Any]:
        """The decomposed inner products w_ci z_i of the first task's samples in the memory, averaged over samples and
        over the prototypes of the first task's classes (old) and of all others (new)."""
        first = self.old if len(self.old) else self.seen_classes
        stored = self.memory.read(torch.arange(len(self.memory)))
        rows = torch.isin(stored.y, first)
        with evaluating(self.net):
            chunks = decode(stored.x[rows]).split(self.chunk)
            features = torch.cat([self.net.features(chunk) for chunk in chunks]).mean(dim=0)
        others = torch.ones(self.problem.n_classes, dtype=torch.bool, device=self.device).index_fill(0, first, False)
        weight = self.net.head.weight
        return {
            "old": _rounded(weight[first].mean(dim=0) * features),
            "new": _rounded(weight[others].mean(dim=0) * features),
        }


def _rounded(values: Tensor) -> list[float]:
    return [float(f"{value:.5g}") for value in values.tolist()]
