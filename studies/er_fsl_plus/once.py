"""One view of each image in the place of the image and a view: twice as many images for the same work.

Beside candidates.py, not in it: stored runs know a learner by a hash of its code, which must stay.
"""

from __future__ import annotations

from torch import Tensor

from candidates import Candidate
from onepass.learner.batch import Batch


class Once(Candidate):
    """A candidate that learns a view of each image, and not the image itself."""

    def views(self, *batches: Batch) -> list[tuple[Tensor, Tensor]]:
        return [(view, batch.y) for (_, view), batch in zip(self.images_and_views(*batches), batches, strict=True)]
