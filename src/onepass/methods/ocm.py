"""OCM: online continual learning through mutual information maximisation (Guo et al., ICML 2022)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.config import Optimizer, ReplayConfig, option
from onepass.errors import UsageError
from onepass.learner.augment import crop, decode, draw_boxes, saturation_
from onepass.learner.base import Learner
from onepass.learner.batch import Batch
from onepass.learner.functional import Frozen
from onepass.learner.losses import pair_losses, partners_mean, positives_mean
from onepass.learner.net import linear


def transforms(x: Tensor) -> Tensor:
    """All images under each of 16 transforms in turn: no half, the left one, both or the right one turned by 180
    degrees, and then the whole by 0, 90, 180 or 270. The first is the image itself."""
    left, right = x.chunk(2, dim=3)
    left_turned, right_turned = left.flip(2, 3), right.flip(2, 3)
    pairs = (left, right), (left_turned, right), (left_turned, right_turned), (left, right_turned)
    halves = torch.cat([torch.cat(pair, dim=3) for pair in pairs])
    return torch.cat([halves.rot90(turns, (2, 3)) for turns in range(4)])


def light_view(x: Tensor, rng: torch.Generator, mirrored: float = 0.5) -> Tensor:
    """For each image a crop of area 0.3 to 1, mirrored or not, and grey with probability 1/4 if it has colours."""
    box = draw_boxes(len(x), x.shape[2], x.shape[3], (0.3, 1.0), rng)
    flip, keep = torch.rand(2, len(x), generator=rng) >= torch.tensor([[1 - mirrored], [0.25]])
    view = crop(x, box, flip)
    return saturation_(view, keep.to(x)[:, None, None, None]) if x.shape[1] == 3 else view.clamp_(0, 1)


def alike(y: Tensor, views: int) -> Tensor:
    """Which rows have one label and one transform, for so many forms of all 16 transforms of these samples."""
    one_transform: Tensor = torch.block_diag(*16 * [y[:, None] == y])
    return one_transform.repeat(views, views)


@dataclass(frozen=True)
class OCMConfig(ReplayConfig):
    lr: float = option(0.001, "learning rate", low=0)
    optimizer: Optimizer = option("adam", "how the weights are stepped; betas are 0.9 and 0.99", since="0.2.0")
    weight_decay: float = option(1e-4, "weight decay", low=0, since="0.2.0")
    temperature: float = option(0.07, "divides the similarities of two samples (tau)", low=1e-3)
    scale: float = option(0.5, "weight of the similarities after the first task (alpha; 1 in the first)", low=0)


class TransformContrast(Learner):
    """What OCM and OnPro share: a projection of the features, by which images under 16 transforms are contrasted."""

    Config = OCMConfig
    config: OCMConfig
    betas = (0.9, 0.99)

    def setup(self) -> None:
        height, width = self.problem.shape[1:]
        if height != width or width % 2:
            name = type(self).__name__.lower()
            raise UsageError(f"{name} turns images and halves of them: expected even squares, got {height}x{width}")
        features = self.net.head.in_features
        self.project = linear(features, 128 if features > 128 else max(1, features // 2), self.rng)

    def trainable(self) -> Iterator[nn.Parameter]:
        return chain(self.net.parameters(), self.project.parameters())

    def similarity(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Of each row's projection with every row's projection and with a random stretch of its features."""
        u, z = F.normalize(self.project(features)), F.normalize(features)
        size = u.shape[1]
        first = int(torch.randint(max(1, z.shape[1] - size), (), generator=self.rng))
        scale = self.config.scale if len(self.old) else 1.0
        return scale * u @ (u + z[:, first : first + size]).T, u

    def new_contrast(self, similarity: Tensor, y: Tensor) -> Tensor:
        """NEW: the loss of each row's own augmentation or image, and twice the mean over all rows that are alike."""
        losses = pair_losses(similarity, self.config.temperature, itself=False)
        return partners_mean(losses) + 2 * positives_mean(losses, alike(y, views=2))

    def replay_contrast(self, similarity: Tensor, y: Tensor, views: int = 2) -> Tensor:
        """UNI and PRE: the mean of the losses over all rows that are alike, a row itself among them."""
        return positives_mean(pair_losses(similarity, self.config.temperature), alike(y, views))


class OCM(TransformContrast):
    """Features keep whatever tells an image under one of 16 transforms from all others, not only what tells the task's
    classes apart. What was known before the task is held by contrast with a copy of the network from its beginning.

    first task: L = NEW(new) + CE(augmented new)
    later:      L = NEW(new) + UNI(replayed) + PRE(replayed, copy) + CE(augmented replayed) + MSE(old logits, copy's)
    NEW, UNI and PRE are means of -log(exp(s_ij / tau) / sum_k exp(s_ik / tau)) over pairs of one class and transform
    """

    needs_images = "ocm contrasts images that are turned, cropped and mirrored"

    def setup(self) -> None:
        super().setup()
        self.previous, self.previous_project = Frozen(self.net, by_batch=True), Frozen(self.project)

    def end_task(self) -> None:
        super().end_task()
        self.previous.follow(self.net)
        self.previous_project.follow(self.project)

    def retrieve(self, batch: Batch) -> Batch:
        # As published: the first task replays nothing, though it fills the memory.
        return self.memory.sample(self.replay if len(self.old) else 0, self.rng)

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        turned = [transforms(decode(part.x)) for part in (batch, replay) if len(part)]
        views = [view for x in turned for view in (x, light_view(x, self.rng))]
        # One pass, so that batch-norm sees new and replayed, images and augmentations together.
        new, *replayed = self.net.features(torch.cat(views)).split([2 * len(x) for x in turned])
        loss = self.new_contrast(self.similarity(new)[0], batch.y)
        if replayed:
            return loss + self.recall(replay, turned[1], replayed[0])
        return loss + self.cross_entropy(self.net(light_view(turned[0][: len(batch)], self.rng)), batch.y)

    def recall(self, replay: Batch, turned: Tensor, features: Tensor) -> Tensor:
        """What replayed samples add. From the second task on, new samples reach the head through the memory only."""
        similarity, u = self.similarity(features)
        known = F.normalize(self.previous_project(self.previous.module.features(turned)))
        uni = self.replay_contrast(similarity, replay.y)
        pre = self.replay_contrast(u[: len(turned)] @ known.T, replay.y, views=1)
        logits, before = (net(light_view(turned[: len(replay)], self.rng)) for net in (self.net, self.previous))
        drift = F.mse_loss(logits.index_select(1, self.old), before.index_select(1, self.old))
        return uni + pre + self.cross_entropy(logits, replay.y) + drift
