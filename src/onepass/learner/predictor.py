"""What a learner predicts by, prepared once for many images."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from onepass.errors import UsageError
from onepass.learner.batch import check_samples
from onepass.learner.functional import exact

if TYPE_CHECKING:
    from onepass.learner.contract import BaseLearner


class Predictor:
    """The class of each image, among the classes that the learner has seen.

    That of `learner.snapshot()` shares nothing that changes with the learner: any number of threads may use it.
    """

    @torch.inference_mode()
    def __init__(self, learner: BaseLearner) -> None:
        self.shape, self.chunk, self.device = learner.problem.shape, learner.chunk, learner.device
        self.seen_classes = learner.seen_classes.clone()
        self._learner, self._encode = learner, learner.encode
        self._score: Callable[[Tensor], Tensor] = learner.scorer()
        if (expert := learner.expert) is not None:
            beside = expert.scorer()
            self._score = added(self._score, lambda x: beside(expert.samples(x)), self.seen_classes)

    @torch.inference_mode()
    def predict(self, images: Tensor, among: Iterable[int] | None = None) -> Tensor:
        """`among` these classes only, each of which has been seen; by default among all that have."""
        classes = self.seen_classes if among is None else self._seen(set(among))
        return classes[self._scores(images).index_select(1, classes).argmax(dim=1)]

    @torch.inference_mode()
    def scores(self, images: Tensor) -> Tensor:
        """A score for each of `seen_classes`, the largest for the class that `predict` gives."""
        return self._scores(images).index_select(1, self.seen_classes)

    def _scores(self, images: Tensor) -> Tensor:
        check_samples(images, self.shape)
        return torch.cat([self.raw_scores(chunk.to(self.device)) for chunk in images.split(self.chunk)])

    def raw_scores(self, images: Tensor) -> Tensor:
        """A score for each class, seen or not, of images that may be passed at once."""
        return self._score(self._encode(images))

    def exact_scores(self, images: Tensor) -> Tensor:
        """The same in fp32, whatever the learner computes in: what is exported."""
        with exact(self._learner):
            return self.raw_scores(images)

    def _seen(self, among: set[int]) -> Tensor:
        wrong = sorted(among - set(self.seen_classes.tolist()))
        if wrong or not among:
            given = f"{wrong[0]}, which has not been" if wrong else "none"
            raise UsageError(f"among: expected classes that have been seen, got {given}; leave it out to ask among all")
        return torch.tensor(sorted(among), device=self.device)

    __call__ = predict


def added(
    one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor], classes: Tensor
) -> Callable[[Tensor], Tensor]:
    """The sum of two scores' log-probabilities among these classes; other classes have none."""

    def score(x: Tensor) -> Tensor:
        first, second = one(x), other(x)
        both = first.index_select(1, classes).log_softmax(dim=1) + second.index_select(1, classes).log_softmax(dim=1)
        return torch.full_like(first, -torch.inf).index_copy(1, classes, both)

    return score
