"""RAR: repeated augmented rehearsal (Zhang et al., NeurIPS 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from onepass.config import option
from onepass.learner.batch import Batch
from onepass.methods.er import ER, ERConfig


@dataclass(frozen=True)
class RARConfig(ERConfig):
    updates: int = option(10, "gradient steps on each new batch, each with a replay of its own (K)", low=1)
    images: Literal["augmented", "both"] = option(
        "augmented", "what is learned of each image: an augmentation alone, or the image and an augmentation"
    )


class RAR(ER):
    """Experience replay that takes several steps for each new batch. Each step replays another part of the memory and
    augments all samples anew, so that a small memory is learned often without being learned by heart.

    for k = 1 .. updates: R_k drawn from the memory; w <- w - lr dL_k/dw
    L_k = mean of CE over augmentations, drawn in step k, of the new samples and of R_k
    """

    Config = RARConfig
    config: RARConfig

    def views(self, *batches: Batch) -> list[tuple[Tensor, Tensor]]:
        if self.config.images == "both":
            return super().views(*batches)
        return [(view, batch.y) for (_, view), batch in zip(self.images_and_views(*batches), batches, strict=True)]
