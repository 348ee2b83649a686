"""ER-FSL: experience replay with feature subspace learning (Lin, ACM MM 2024)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.config import ReplayConfig, option
from onepass.errors import UsageError
from onepass.learner.base import Learner
from onepass.learner.batch import Batch, Task
from onepass.methods.er import FORWARD, Forward

Space = Literal["task", "used", "first", "all"]


@dataclass(frozen=True)
class ERFSLConfig(ReplayConfig):
    gamma: float = option(0.3, "weight of the replayed loss (eq. 5); 1 - gamma weighs the new batch", low=0, high=1)
    subspace: int | None = option(None, "dimensions of a task's own subspace (k); default: features / tasks", low=1)
    forward: Forward = option("separate", FORWARD)
    learn_in: Space = option(
        "task",
        "space for new samples: the task's own, all used so far, the first task's, or all features",
        ablation=True,
    )
    replay_in: Space = option("used", "space for replayed samples", ablation=True)
    test_in: Space = option("used", "space for predictions", ablation=True)
    new_weight: float | None = option(None, "weight of the new batch's loss instead of 1 - gamma", low=0, ablation=True)
    replay_weight: float | None = option(None, "weight of the replayed loss instead of gamma", low=0, ablation=True)


class ERFSL(Learner):
    """New samples are learned in the task's own feature dimensions; replay and prediction use all taken so far.

    L = (1 - gamma) CE(W[:, S] z[S], y) over new samples + gamma CE(W[:, A] z[A], y) over replayed ones (eq. 5, 6, 9)
    S: the task's own k dimensions; if no blank ones are left, those in which the weights of old classes vary least
    A: all dimensions taken so far; prediction: argmax over classes of W[:, A] z[A]
    """

    Config = ERFSLConfig
    config: ERFSLConfig
    spaces: Tensor
    begun: Tensor

    def setup(self) -> None:
        self.net.head.register_parameter("bias", None)  # a bias belongs to no subspace
        self.width = self.net.head.in_features
        given, tasks = self.config.subspace, self.problem.n_tasks
        if given is None and tasks is None:
            raise UsageError(
                "subspace=None divides the features by the number of tasks, which is unknown: give subspace, or n_tasks"
            )
        self.subspace = given or max(1, self.width // (tasks or 1))
        if self.subspace > self.width:
            raise UsageError(f"subspace={self.subspace}: the network has {self.width} features, so at most that many")
        self.register_buffer("begun", torch.tensor(0))
        self.register_buffer("spaces", torch.zeros(4, self.width))  # rows: task, used, first, all
        self.spaces[2, : self.subspace] = 1
        self.spaces[3] = 1

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        first, last = int(self.begun) * self.subspace, (int(self.begun) + 1) * self.subspace
        own, used = self.spaces[0].zero_(), self.spaces[1]
        if last <= self.width:
            own[first:last] = used[first:last] = 1  # S in eq. 7, A in eq. 10
        else:  # no blank subspace is left: reuse the dimensions that tell the old classes apart least
            variance = self.net.head.weight.detach()[self.old].var(dim=0, correction=0)
            own[variance.argsort(stable=True)[: self.subspace]] = 1
            used.fill_(1)
        self.begun += 1

    def space(self, name: Space) -> Tensor:
        return self.spaces[("task", "used", "first", "all").index(name)]

    def logits(self, features: Tensor, space: Space, head: nn.Linear | None = None) -> Tensor:
        return F.linear(features * self.space(space), (head or self.net.head).weight)

    def terms(self, batch: Batch, replay: Batch) -> list[tuple[Batch, Space, float]]:
        """What is learned, in which space, with which weight."""
        config = self.config
        return [
            (batch, config.learn_in, 1 - config.gamma if config.new_weight is None else config.new_weight),
            (replay, config.replay_in, config.gamma if config.replay_weight is None else config.replay_weight),
        ]

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        terms = [term for term in self.terms(batch, replay) if len(term[0]) and term[2] > 0]
        if not terms:  # an ablation without the new batch's term has nothing to learn from until the memory fills
            return 0 * self.net.head.weight.sum()
        joint = self.config.forward == "joint"
        passes = self.forward_batches(self.net.features, *(rows for rows, _, _ in terms), joint=joint)
        return torch.stack(
            [
                weight * self.cross_entropy(self.logits(features, space), y)
                for (features, y), (_, space, weight) in zip(passes, terms, strict=True)
            ]
        ).sum()

    def scorer(self) -> Callable[[Tensor], Tensor]:
        return lambda x: self.logits(self.net.features(x), self.config.test_in)

    def facts(self) -> dict[str, Any]:
        """The dimensions that the task's new samples and its replay were learned in, as [first, last + 1) stretches."""
        spaces = {"learned_in": self.config.learn_in, "replayed_in": self.config.replay_in}
        return {name: stretches(self.space(space)) for name, space in spaces.items()}


def stretches(mask: Tensor) -> list[list[int]]:
    """Where a vector of zeros and ones is one."""
    padded = F.pad(mask.long(), (1, 1))
    edges = padded.diff().nonzero().flatten().tolist()
    return [list(pair) for pair in zip(edges[::2], edges[1::2], strict=True)]
