"""OnPro: online prototype learning (Wei et al., ICCV 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.config import option
from onepass.learner.augment import decode
from onepass.learner.batch import Batch
from onepass.learner.losses import supcon
from onepass.methods.ocm import OCMConfig, TransformContrast, light_view, transforms

MOST_AT_RANDOM = 0.6  # the largest share of the other image where two are mixed at random
BETA = 0.4  # both parameters of the distribution of that share where prototypes chose the two


@dataclass(frozen=True)
class OnProConfig(OCMConfig):
    lr: float = option(0.0005, "learning rate", low=0)
    prototype_temperature: float = option(0.5, "divides the similarities of two prototypes", low=1e-3)
    mix: float = option(0.6, "probability with which a replayed image is mixed with another one", low=0, high=1)
    at_random: float = option(
        0.75, "share of the replayed samples mixed at random; prototypes choose the others", low=0, high=1
    )


class Mixed(NamedTuple):
    """(1 - weight) times images of class y, plus weight times images of class other."""

    x: Tensor
    y: Tensor
    other: Tensor
    weight: Tensor


class OnPro(TransformContrast):
    """Beside OCM's contrast of transformed images, prototypes: the mean projection of each class in a batch must be
    told from the other classes' by that of augmented images. Classes with close prototypes are mixed in replay.

    first task: L = NEW(new) + PRO(new) + PRO(replayed) + CE(augmented new)
    later:      L = NEW(new) + UNI(mixed) + PRO(new) + PRO(replayed) + CE(augmented mixed)
    PRO = mean over prototypes p of -log(exp(p q / t) / sum over all r but p of exp(p r / t)), q of the same class as p
    """

    Config = OnProConfig
    config: OnProConfig
    needs_images = "onpro contrasts images that are turned, cropped and mirrored"
    prototypes: Tensor  # of the classes replayed in the last step; zeros for the others

    def setup(self) -> None:
        super().setup()
        self.register_buffer("prototypes", torch.zeros(self.problem.n_classes, self.project.out_features))

    def widen(self, n_classes: int) -> None:
        super().widen(n_classes)
        self.prototypes = F.pad(self.prototypes, (0, 0, 0, n_classes - len(self.prototypes)))

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        mixed = self.mix(replay) if len(self.old) and len(replay) else None
        turned = [transforms(x) for x in (decode(batch.x), *([] if mixed is None else [mixed.x]))]
        rows = torch.cat([view for x in turned for view in (x, light_view(x, self.rng))])
        # One pass, so that batch-norm sees new and mixed, images and augmentations together.
        new, *recalled = self.net.features(rows).split([2 * len(x) for x in turned])
        similarity, u = self.similarity(new)
        plain, augmented = (half[: len(batch)] for half in u.chunk(2))  # the first transform changes nothing
        loss = self.new_contrast(similarity, batch.y) + self.equilibrium(plain, augmented, batch.y)[0]
        if mixed is None:
            loss = loss + self.cross_entropy(self.net(light_view(decode(batch.x), self.rng)), batch.y)
        else:
            loss = loss + self.mixed_loss(mixed, recalled[0])
        return loss + self.recall(replay) if len(replay) else loss

    def equilibrium(self, plain: Tensor, augmented: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """PRO of projected images and their augmentations; the classes and the mean of their two prototypes."""
        classes, row = y.unique(return_inverse=True)
        members = F.one_hot(row).T.to(plain)
        means = [members @ u / members.sum(dim=1, keepdim=True) for u in (plain, augmented)]
        loss = supcon(F.normalize(torch.cat(means)), classes.repeat(2), self.config.prototype_temperature)
        return loss, classes, (means[0] + means[1]) / 2

    def recall(self, replay: Batch) -> Tensor:
        """PRO of what is replayed, unmixed. Its prototypes choose what the next step mixes."""
        x = decode(replay.x)
        u = F.normalize(self.project(self.net.features(torch.cat([x, light_view(x, self.rng)]))))
        plain, augmented = u.chunk(2)
        loss, classes, prototypes = self.equilibrium(plain, augmented, replay.y)
        self.prototypes = torch.zeros_like(self.prototypes).index_copy(0, classes, prototypes.detach())
        return loss

    def mixed_loss(self, mixed: Mixed, features: Tensor) -> Tensor:
        """UNI and the two cross-entropies. A mixture of two classes is alike to nothing but itself."""
        pure = (mixed.weight == 0) | (mixed.y == mixed.other)
        labels = torch.where(pure, mixed.y, self.problem.n_classes + torch.arange(len(pure), device=pure.device))
        logits = self.net(light_view(mixed.x, self.rng))
        first, second = (self.cross_entropy(logits, y, reduction="none") for y in (mixed.y, mixed.other))
        labelled = torch.lerp(first, second, mixed.weight).mean()
        return self.replay_contrast(self.similarity(features)[0], labels) + labelled

    def mix(self, replay: Batch) -> Mixed:
        """As many mixtures as samples were replayed: of random pairs of them, and of stored pairs of close classes."""
        n = len(replay)
        first, second = map(self.memory.read, self.close_pairs(n - int(self.config.at_random * n)))
        base = replay[self.shuffled(n)[: n - len(first)]]
        partners = base[self.shuffled(len(base))]
        gamma = torch._standard_gamma(torch.full((2, len(first)), BETA), generator=self.rng)
        shares = MOST_AT_RANDOM * torch.rand(len(base), generator=self.rng), gamma[0] / gamma.sum(dim=0)
        chosen = torch.rand(n, generator=self.rng) < self.config.mix
        weight = (torch.cat(shares) * chosen).to(self.device)
        x, x2 = (decode(torch.cat([a.x, b.x])) for a, b in ((base, first), (partners, second)))
        y, y2 = (torch.cat([a.y, b.y]) for a, b in ((base, first), (partners, second)))
        return Mixed(torch.lerp(x, x2, weight[:, None, None, None]), y, y2, weight)

    def shuffled(self, n: int) -> Tensor:
        return torch.randperm(n, generator=self.rng).to(self.device)

    def close_pairs(self, n: int) -> Tensor:
        """Slots (2, n) of stored pairs of two classes: the closer their prototypes, the more often. None (2, 0) if
        the memory has fewer than two classes with a prototype."""
        labels, prototypes = self.memory.field("y")[: len(self.memory)].cpu(), self.prototypes.cpu()
        classes = labels.unique()
        classes = classes[prototypes[classes].any(dim=1)]
        if n == 0 or len(classes) < 2:
            return torch.empty(2, 0, dtype=torch.int64)
        chances = (1 / torch.pdist(prototypes[classes]).clamp(min=1e-6)).softmax(dim=0)
        drawn = torch.multinomial(chances, n, replacement=True, generator=self.rng)
        pairs = classes[torch.triu_indices(len(classes), len(classes), 1)[:, drawn]]
        members = (labels == pairs.flatten()[:, None]).float()
        return torch.multinomial(members, 1, generator=self.rng).view(2, n)
