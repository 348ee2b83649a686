"""What a learner predicts by, prepared once for many images."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from onepass.learner.augment import decode
from onepass.learner.batch import check_images

if TYPE_CHECKING:
    from onepass.learner.base import Learner


class Predictor:
    """The class of each image, among the classes that the learner has seen.

    That of `learner.snapshot()` shares nothing that changes with the learner: any number of threads may use it.
    """

    @torch.inference_mode()
    def __init__(self, learner: Learner) -> None:
        self.shape, self.chunk, self.device = learner.problem.shape, learner.chunk, learner.device
        self.seen_classes = learner.seen_classes.clone()
        self._score: Callable[[Tensor], Tensor] = learner.scorer()

    @torch.inference_mode()
    def predict(self, images: Tensor) -> Tensor:
        check_images(images, self.shape)
        chunks = [self._score(decode(chunk.to(self.device))) for chunk in images.split(self.chunk)]
        scores = torch.cat(chunks).index_select(1, self.seen_classes)
        return self.seen_classes[scores.argmax(dim=1)]

    __call__ = predict
