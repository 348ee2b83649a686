"""What a learner predicts by, prepared once for many images."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from onepass.errors import UsageError
from onepass.learner.batch import check_samples
from onepass.learner.functional import exact

if TYPE_CHECKING:
    from onepass.learner.contract import BaseLearner

Prepared = tuple[Tensor, Tensor | None]  # samples as the network takes them, and an expert's scores of them


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
        self._expert: Callable[[Tensor], Tensor] | None = None
        if (expert := learner.expert) is not None:
            beside = expert.scorer()
            self._expert = lambda x: beside(expert.samples(x))

    def predict(self, images: Tensor, among: Iterable[int] | None = None) -> Tensor:
        """`among` these classes only, each of which has been seen; by default among all that have."""
        return self.answers(self.prepared(images), among)

    @torch.inference_mode()
    def prepared(self, images: Tensor) -> Iterator[Prepared]:
        """What does not depend on the weights, worked out: as many images at once as may be passed."""
        check_samples(images, self.shape)
        for chunk in images.split(self.chunk):
            yield self._prepare(chunk.to(self.device))

    @torch.inference_mode()
    def answers(self, prepared: Iterable[Prepared], among: Iterable[int] | None = None) -> Tensor:
        """The class of each image."""
        classes = self.seen_classes if among is None else self._seen(set(among))
        return classes[self._scores(prepared).index_select(1, classes).argmax(dim=1)]

    @torch.inference_mode()
    def scores(self, images: Tensor) -> Tensor:
        """A score for each of `seen_classes`, the largest for the class that `predict` gives."""
        return self._scores(self.prepared(images)).index_select(1, self.seen_classes)

    def raw_scores(self, images: Tensor) -> Tensor:
        """A score for each class, seen or not, of images that may be passed at once."""
        return self._scores([self._prepare(images)])

    def _prepare(self, images: Tensor) -> Prepared:
        samples = self._encode(images)
        return samples, None if self._expert is None else self._expert(samples)

    def _scores(self, prepared: Iterable[Prepared]) -> Tensor:
        found = [
            self._score(samples) if expert is None else added(self._score(samples), expert, self.seen_classes)
            for samples, expert in prepared
        ]
        return found[0] if len(found) == 1 else torch.cat(found)

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


class PredictorPair:
    """By what predicts and, if that is an average, by the last weights too, in one pass over the images: they are
    decoded, moved and encoded once, and an expert scores them once."""

    def __init__(self, learner: BaseLearner) -> None:
        self._first, self._last = Predictor(learner), None
        if (average := learner.average) is not None:
            self._last_weights = functools.partial(average.in_place, False)
            with self._last_weights():
                self._last = Predictor(learner)

    def __call__(self, images: Tensor, among: Collection[int] | None = None, last: bool = True) -> list[Tensor]:
        """The classes of the images; then those by the last weights, if they are wanted and not the same."""
        if self._last is None or not last:
            return [self._first(images, among)]
        prepared = list(self._first.prepared(images))
        answers = self._first.answers(prepared, among)
        with self._last_weights():
            return [answers, self._last.answers(prepared, among)]


def added(one: Tensor, other: Tensor, classes: Tensor) -> Tensor:
    """The sum of two scores' log-probabilities among these classes; other classes have none."""
    both = one.index_select(1, classes).log_softmax(dim=1) + other.index_select(1, classes).log_softmax(dim=1)
    return both.new_full(one.shape, -torch.inf).index_copy(1, classes, both)
