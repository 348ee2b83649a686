"""MOSE: multi-level online sequential experts (Yan et al., CVPR 2024)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.config import Optimizer, ReplayConfig, option
from onepass.errors import UsageError
from onepass.learner.augment import decode
from onepass.learner.base import Learner
from onepass.learner.batch import Batch
from onepass.learner.functional import class_means, evaluating
from onepass.learner.losses import supcon
from onepass.learner.net import Net, Pool, drawn_from, linear
from onepass.learner.precision import lowered
from onepass.methods.ocm import light_view


def halving(inputs: int, outputs: int) -> nn.Sequential:
    """Maps of half the side: twice a 3x3 convolution within each channel, the first with stride 2, and a 1x1 across."""
    layers: list[nn.Module] = []
    for width, stride in ((inputs, 2), (outputs, 1)):
        within = nn.Conv2d(inputs, inputs, 3, stride, padding=1, groups=inputs, bias=False)
        layers += [within, nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers)


class Attention(nn.Module):
    """Maps weighted, place by place and channel by channel, by what is seen at half their side."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.seen = nn.Sequential(halving(channels, channels), nn.BatchNorm2d(channels), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        weights = F.interpolate(self.seen(x), size=x.shape[2:], mode="bilinear")
        return x * weights.sigmoid()


def expert_body(channels: list[int]) -> nn.Sequential:
    """From a stage's maps to features: as many halvings as the network has stages still to come."""
    halvings = [halving(inputs, outputs) for inputs, outputs in pairwise(channels)]
    return nn.Sequential(Attention(channels[0]), *halvings, Pool())


@dataclass(frozen=True)
class MOSEConfig(ReplayConfig):
    lr: float = option(0.001, "learning rate", low=0)
    optimizer: Optimizer = option("adam", "how the weights are stepped", since="0.2.0")
    weight_decay: float = option(1e-4, "weight decay", low=0, since="0.2.0")
    temperature: float = option(0.07, "divides the similarities of two samples (tau)", low=1e-3)
    experts: Literal["last", "all"] = option("last", "who predicts: the last expert (MOSE) or all (MOE-MOSE)")


class MOSE(Learner):
    """Every stage of the network has an expert with a head of its own; the last one also learns the others' features.
    New samples are learned among the new classes, and in a batch with so many old ones that classes are balanced.

    L = sum over experts e of SupCon + CE(new samples, new classes) + 2 CE(balanced) + |a(z) - z_e|, first task: one CE
    |a(z) - z_e|: over all samples, z the last expert's features, z_e held fixed, both of length one; 0 for the last
    prediction: argmax over classes of z m_c, with m_c the direction of the mean of z over the stored samples of c
    """

    Config = MOSEConfig
    config: MOSEConfig
    needs_images = "mose mirrors and crops images"

    def setup(self) -> None:
        width, classes = self.net.head.in_features, self.problem.n_classes
        channels = self.find_stages()
        with drawn_from(self.rng):
            bodies = [expert_body([*channels[first:], width]) for first in range(len(channels))]
            self.experts = nn.ModuleList(Net(body, width, classes) for body in bodies)
        for expert in self.every:
            expert.precision = self.net.precision
        self.projections = nn.ModuleList(linear(width, 128, self.rng) for _ in range(len(channels) + 1))
        self.adapt = linear(width, width, self.rng)

    def find_stages(self) -> list[int]:
        """The channels of each stage but the last. A stage ends where the next layer's maps have another size."""
        body = self.net.body
        if not isinstance(body, nn.Sequential):
            got = type(body).__name__
            raise UsageError(f"mose has experts between the layers of a network: expected an nn.Sequential, got {got}")
        x, sizes = torch.zeros(1, *self.problem.shape, device=self.device), []
        with torch.no_grad(), evaluating(self.net):
            for layer in body:
                x = layer(x)
                sizes.append(x.shape)
        self.ends = [i for i, (a, b) in enumerate(pairwise(sizes)) if len(a) == len(b) == 4 and a != b]
        return [sizes[end][1] for end in self.ends]

    def trainable(self) -> Iterator[nn.Parameter]:
        parts = (self.net, self.experts, self.projections, self.adapt)
        return chain.from_iterable(part.parameters() for part in parts)

    @property
    def every(self) -> list[Net]:
        """All experts; the last is the network itself."""
        return [*(expert for expert in self.experts if isinstance(expert, Net)), self.net]

    def features(self, x: Tensor) -> list[Tensor]:
        """Of every expert."""
        assert isinstance(self.net.body, nn.Sequential)
        experts = self.every
        found: list[Tensor] = []
        with lowered(self.net.precision, x.device):
            for place, layer in enumerate(self.net.body):
                x = layer(x)
                if place in self.ends:
                    found.append(experts[len(found)].features(x))
        return [*found, x.float() if self.net.precision == "bf16" else x]

    def retrieve(self, batch: Batch) -> Batch:
        if not len(self.old):
            return super().retrieve(batch)
        fresh = torch.isin(self.memory.field("y")[: len(self.memory)], self.new).cpu()
        wanted = (fresh, max(0, self.replay // 2 - len(batch))), (~fresh, self.replay - self.balanced(batch))
        pools = [(mask.nonzero().flatten(), n) for mask, n in wanted]
        slots = [pool[torch.randperm(len(pool), generator=self.rng)[:n]] for pool, n in pools]
        return self.memory.read(torch.cat(slots))

    def balanced(self, batch: Batch) -> int:
        """How many of the batch's samples of new classes stand beside replayed old ones: the new classes' share."""
        share = self.replay * len(self.new) // len(self.seen)
        return min(share, int(torch.isin(batch.y, self.new).sum()))

    def groups(self, batch: Batch, replay: Batch) -> tuple[Batch, Batch]:
        """The samples of new classes, and a balanced batch of all classes; in the first task the second is empty."""
        fresh, known = (torch.isin(part.y, self.new) for part in (batch, replay))
        beside = ~fresh | (fresh.cumsum(0) <= (self.balanced(batch) if len(self.old) else 0))
        return joined(batch[fresh], replay[known]), joined(batch[beside], replay[~known])

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        new, balanced = self.groups(batch, replay)
        # One pass, so that batch-norm sees both groups, images and augmentations together.
        x = torch.cat([self.augmented(part) for part in (new, balanced) if len(part)])
        y, y2 = new.y.repeat(4), balanced.y.repeat(4)
        features, terms = self.features(x), []
        student = F.normalize(self.adapt(features[-1]))
        for z, expert, project in zip(features, self.every, self.projections, strict=True):
            terms.append(supcon(F.normalize(project(z)), torch.cat([y, y2]), self.config.temperature))
            logits, logits2 = expert.head(z).split([len(y), len(y2)])
            if len(y):
                terms.append(self.new_entropy(logits, y))
            if len(y2):
                terms.append(2 * self.cross_entropy(logits2, y2))
            if expert is not self.net:
                terms.append(torch.linalg.vector_norm(student - F.normalize(z.detach())))
        return torch.stack(terms).sum()

    def augmented(self, batch: Batch) -> Tensor:
        """The images, mirrored ones, and a crop of each that is grey with probability 1/4."""
        x = decode(batch.x)
        x = torch.cat([x, x.flip(3)])
        return torch.cat([x, light_view(x, self.rng, mirrored=0.0)])

    def new_entropy(self, logits: Tensor, y: Tensor) -> Tensor:
        """Among new classes alone; in the first task among those in scope."""
        if not len(self.old):
            return self.cross_entropy(logits, y)
        return F.cross_entropy(logits.index_select(1, self.new), torch.searchsorted(self.new, y))

    def predictors(self) -> list[nn.Module]:
        return [self.net, self.experts] if self.config.experts == "all" else [self.net]

    def scorer(self) -> Callable[[Tensor], Tensor]:
        all_experts = self.config.experts == "all"

        def features(x: Tensor) -> Tensor:
            found = self.features(x) if all_experts else [self.net.features(x)]
            return torch.cat([F.normalize(z) for z in found], dim=1)

        means, absent = class_means(self, features, parts=len(self.every) if all_experts else 1)
        # For vectors of length one the mean with the least squared distance is the one with the largest product.
        return lambda x: F.linear(features(x), means, absent)


def joined(first: Batch, second: Batch) -> Batch:
    return Batch(torch.cat([decode(first.x), decode(second.x)]), torch.cat([first.y, second.y]))
