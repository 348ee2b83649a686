"""CCL-DC: collaborative learning along a distillation chain (Wang et al., CVPR 2024), for two networks of ER."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.config import Optimizer, option
from onepass.learner.augment import crop, decode, draw_boxes
from onepass.learner.batch import Batch
from onepass.learner.net import redrawn
from onepass.learner.randaugment import STRONGEST, randaugment
from onepass.methods.er import ER, ERConfig


@dataclass(frozen=True)
class CCLDCConfig(ERConfig):
    lr: float = option(0.0005, "learning rate", low=0)
    optimizer: Optimizer = option("adamw", "how the weights are stepped", since="0.2.0")
    weight_decay: float = option(1e-4, "weight decay", low=0, since="0.2.0")
    distill: float = option(2.0, "weight of what the networks learn from each other", low=0)
    temperature: float = option(4.0, "divides the logits that they compare", low=1e-3)
    operations: int = option(3, "operations of RandAugment in each of the chain's last two links", low=0)
    magnitude: int = option(15, "strength of these operations", low=0, high=STRONGEST)


class CCLDC(ER):
    """Two networks learn as in ER, and from each other along a chain of ever stronger augmentations: what one says of
    an image shall be what the other says of the next link, which is harder and so has more entropy. Both predict.

    L = sum over both networks of (ER + sum_i CE(x_i)) / 2 + w (KL(0, 1) + KL(1, 2) + KL(2, 3) + KL(3, 3))
    x_0 the images, x_1 cropped and mirrored, x_2 and x_3 by RandAugment from the link before
    KL(i, j) = T^2 KL(softmax(l'(x_j) / T) || softmax(l(x_i) / T)), l' the other network's logits, held fixed
    """

    Config = CCLDCConfig
    config: CCLDCConfig
    needs_images = "ccl-dc crops and turns images"

    def setup(self) -> None:
        self.peer = redrawn(self.net, self.rng)

    def trainable(self) -> Iterator[nn.Parameter]:
        return chain(self.net.parameters(), self.peer.parameters())

    def predictors(self) -> list[nn.Module]:
        return [self.net, self.peer]

    def scorer(self) -> Callable[[Tensor], Tensor]:
        return lambda x: self.both(x).mean(dim=1)

    def both(self, x: Tensor) -> Tensor:
        """The logits of both networks: (n, 2, classes)."""
        return torch.stack([self.net(x), self.peer(x)], dim=1)

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        joint = self.config.forward == "joint"
        passes = self.forward_batches(self.both, batch, replay, joint=joint)
        learned = self.combine([(self.summed_entropy(logits, y), len(y)) for logits, y in passes])
        x, y = torch.cat([decode(batch.x), decode(replay.x)]), torch.cat([batch.y, replay.y])
        sizes = [len(y)] if joint or not len(replay) else [len(batch), len(replay)]
        logits = torch.stack([torch.cat([self.both(rows) for rows in link.split(sizes)]) for link in self.links(x)])
        learned = learned + torch.stack([self.summed_entropy(link, y) for link in logits]).sum()
        return learned / 2 + self.config.distill * self.taught(self.scoped(logits) / self.config.temperature)

    def links(self, x: Tensor) -> list[Tensor]:
        """The chain: the images, a crop of area 0.6 to 1, mirrored or not, and RandAugment once and twice."""
        config, (height, width) = self.config, x.shape[2:]
        mirrored = torch.rand(len(x), generator=self.rng) < 0.5
        links = [x, crop(x, draw_boxes(len(x), height, width, (0.6, 1.0), self.rng), mirrored).clamp_(0, 1)]
        for _ in range(2):
            links.append(randaugment(links[-1], self.rng, operations=config.operations, magnitude=config.magnitude))
        return links

    def summed_entropy(self, logits: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of (n, 2, classes) logits, summed over the two networks."""
        return 2 * self.cross_entropy(logits.flatten(0, 1), y.repeat_interleave(2))

    def taught(self, logits: Tensor) -> Tensor:
        """T^2 KL from the other network at the next link, the last link's at the last; (links, n, 2, classes)."""
        teachers = torch.cat([logits[1:], logits[-1:]]).flip(2).detach()
        apart = F.kl_div(logits.log_softmax(-1), teachers.log_softmax(-1), reduction="sum", log_target=True)
        return self.config.temperature**2 * apart / logits.shape[1]
