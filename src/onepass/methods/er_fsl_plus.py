"""ER-FSL+: ER-FSL that predicts by an average of its weights; ours (docs/beyond.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from onepass.average import Average
from onepass.batch import Batch
from onepass.config import option
from onepass.methods.er_fsl import ERFSL, ERFSLConfig
from onepass.net import Net


@dataclass(frozen=True)
class ERFSLPlusConfig(ERFSLConfig):
    decay: float = option(0.98, "of the average that predicts, for each step", low=0, high=1)


class ERFSLPlus(ERFSL):
    """ER-FSL's last weights are noisy, and predict worse than an average of them. So an average predicts.
    Learning is ER-FSL's.

    V, v = averages of the weights W of the head and of those of the network, their statistics too, after each step:
    v <- d v + (1 - d) w, with d = min(decay, (n - 1) / (n + 9)) after step n
    prediction: argmax over classes of V[:, A] z[A], z the features by v
    """

    Config = ERFSLPlusConfig
    config: ERFSLPlusConfig

    def setup(self) -> None:
        super().setup()
        self.mean = Average([self.net], self.config.decay)

    def learn(self, batch: Batch, replay: Batch) -> Tensor:
        loss = super().learn(batch, replay)
        self.mean.follow(self.steps + 1)
        return loss

    def predictors(self) -> list[nn.Module]:
        return [*self.mean.copies]

    def scorer(self) -> Callable[[Tensor], Tensor]:
        net = self.mean.copies[0]
        assert isinstance(net, Net)
        return lambda x: self.logits(net.features(x), self.config.test_in, net.head)
