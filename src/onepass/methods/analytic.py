"""Learners of statistics: counts, sums and second moments of features that never change. No gradient, no forgetting.

What is kept is a sum over samples. So the order of the stream does not matter (but for rounding), and a sample can be
taken back exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.config import Settings
from onepass.errors import UsageError
from onepass.learner.augment import decode
from onepass.learner.batch import Batch
from onepass.learner.contract import BaseLearner
from onepass.methods.symmetric import add_products, cholesky, oas, solve, stripes

WAITING = 50  # rows of features that are added to the second moment at once: its bytes are read and written less often


class ClassMeans(BaseLearner):
    """A count and a sum of features for each class.

    Each class is measured from a start of its own, near its samples: sums and squares then are of small numbers and
    lose few digits, however far from one another the classes are.
    """

    Config = Settings
    class_rows = "counts"
    frozen_net = True
    takes_back = True
    counts: Tensor  # whole numbers: single precision ends at 2^24
    starts: Tensor  # the mean of each class in the batch that brought it
    apart: Tensor  # sums of each class's features minus its start
    origin: Tensor  # near the middle of all features: scores are worked out from there
    begun: Tensor

    def setup(self) -> None:
        n, width = self.problem.n_classes, self.width
        self.register_buffer("counts", torch.zeros(n, dtype=torch.int64))
        self.register_buffer("starts", torch.zeros(n, width))
        self.register_buffer("apart", torch.zeros(n, width))
        self.register_buffer("origin", torch.zeros(width))
        self.register_buffer("begun", torch.tensor(False))
        self._solved: tuple[Tensor, Tensor] | None = None  # weights and offsets of what was learned so far

    @property
    def width(self) -> int:
        """Numbers in a feature vector."""
        return self.net.head.in_features

    def features(self, x: Tensor) -> Tensor:
        """Samples as rows of numbers: what the network in front of it gives."""
        return x.flatten(1)

    @torch.no_grad()
    def absorb(self, batch: Batch) -> Tensor:
        self.add(batch)
        return torch.zeros((), device=self.device)  # there is no loss to descend

    @torch.no_grad()
    def take_back(self, batch: Batch) -> None:
        with self.exclusive("take_back"):
            self._check(batch)
            left = self.counts - torch.bincount(batch.y, minlength=len(self.counts)).to(self.counts)
            if (left < 0).any():
                c = int(left.argmin())
                raise UsageError(f"Expected samples that were learned, got more of class {c} than there are.")
            taken = self.encoded(batch.to(self.device))
            self.add(taken, times=-1)
            self.measure_anew(taken.y.unique())

    def add(self, batch: Batch, times: int = 1) -> None:
        """Count samples; `times=-1` takes them back."""
        self.count(self.features(decode(batch.x)), batch.y, times)

    def count(self, z: Tensor, y: Tensor, times: int = 1) -> None:
        """Add samples to the statistics; `times=-1` takes them back."""
        self._solved = None
        if not self.counts.index_select(0, y).all():
            self._begin(z, y)
        rows = z - self.starts.index_select(0, y)
        self.counts.index_add_(0, y, torch.ones_like(y), alpha=times)
        self.apart.index_add_(0, y, rows, alpha=times)
        self.second_moment(rows, times)

    def _begin(self, z: Tensor, y: Tensor) -> None:
        """Set the starts of the classes that this batch brings, and the origin if it is the first: by arithmetic alone,
        so that no GPU is waited for."""
        self.origin.copy_(torch.where(self.begun, self.origin, z.mean(dim=0)))
        self.begun.fill_(True)
        n = torch.zeros_like(self.counts).index_add_(0, y, torch.ones_like(y))
        means = torch.zeros_like(self.starts).index_add_(0, y, z) / n.clamp(min=1)[:, None]
        self.starts = torch.where(((self.counts == 0) & (n > 0))[:, None], means, self.starts)

    def second_moment(self, rows: Tensor, times: int) -> None:
        """What else is kept of the rows."""

    def measure_anew(self, classes: Tensor) -> None:
        """Move the starts of these classes to their means: a sample that was taken back may have been one."""
        n, starts = self.counts[classes][:, None], _wide(self.starts[classes])
        means = torch.where(n > 0, starts + _wide(self.apart[classes]) / n.clamp(min=1), 0)
        self.starts[classes] = means.to(self.starts)
        self.apart[classes] = (n * (means - self.starts[classes])).to(self.apart)

    def statistics(self) -> list[Tensor]:
        return []  # no step is ever refused, so nothing has to be put back

    def exact_means(self) -> Tensor:
        """Of each class, minus the origin, in double precision."""
        n = self.counts[:, None]
        return torch.where(n > 0, _wide(self.starts) - self.origin + _wide(self.apart) / n.clamp(min=1), 0)

    @property
    def means(self) -> Tensor:
        """Of each class, minus the origin."""
        return self.exact_means().to(self.starts)

    @property
    def sums(self) -> Tensor:
        """Of each class's features, minus the origin."""
        return (self.exact_means() * self.counts[:, None]).to(self.starts)

    def weights(self) -> tuple[Tensor, Tensor]:
        """The matrix and the offsets of linear scores."""
        means = self.exact_means()
        return means, -(means**2).sum(dim=1) / 2

    def scorer(self) -> Callable[[Tensor], Tensor]:
        if self._solved is None:
            weight, bias = self.weights()
            absent = torch.where(self.counts > 0, 0.0, -torch.inf)
            self._solved = weight, bias + absent - weight @ _wide(self.origin)
        weight, offset = self._solved
        return lambda x: F.linear(_wide(self.features(x)), weight, offset)

    def widen(self, n_classes: int) -> None:
        more = n_classes - len(self.counts)
        self.counts = F.pad(self.counts, (0, more))
        self.starts, self.apart = (F.pad(rows, (0, 0, 0, more)) for rows in (self.starts, self.apart))
        self._solved = None

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self._solved = None


class Discriminant(ClassMeans):
    """The same and one second moment of all classes: what a linear discriminant is made of.

    S = covariance within classes, shrunk towards its diagonal D: (1 - e) S + e D
    score of class c: x S^-1 m_c - m_c S^-1 m_c / 2, m_c the mean of the class
    """

    moment: Tensor  # symmetric; what is above its stripes is not kept up
    waiting: Tensor
    n_waiting: Tensor

    def setup(self) -> None:
        super().setup()
        self.register_buffer("moment", torch.zeros(self.width, self.width))
        self.register_buffer("waiting", torch.zeros(WAITING, self.width))
        self.register_buffer("n_waiting", torch.tensor(0))

    @property
    def shrinkage(self) -> float | None:
        """Between 0 and 1; None: estimated from what was seen."""
        return None

    def estimated_shrinkage(self, correlations: Tensor, n: float) -> float:
        """From the correlations within classes of n samples."""
        return oas(correlations, n)

    def second_moment(self, rows: Tensor, times: int) -> None:
        if times < 0:
            add_products(self.moment, rows, rows, -1)
            return
        while len(rows):
            n = int(self.n_waiting)
            taken = rows[: WAITING - n]
            self.waiting[n : n + len(taken)] = taken
            self.n_waiting += len(taken)
            rows = rows[len(taken) :]
            if n + len(taken) == WAITING:
                add_products(self.moment, self.waiting, self.waiting)
                self.n_waiting.zero_()

    def covariance(self) -> Tensor:
        """Within classes."""
        waiting, around = self.waiting[: int(self.n_waiting)], self._around(slice(None))
        moment = self.moment.clone()
        add_products(moment, waiting, waiting)
        add_products(moment, around, around, -1)
        for rows in stripes(moment):
            moment[: rows.start, rows] = moment[rows, : rows.start].T
        return moment.div_(self.counts.sum().clamp(min=1))

    def _around(self, classes: Tensor | slice) -> Tensor:
        """A row for each of these classes: their products are what the moment has only because starts are no means."""
        return self.apart[classes] / self.counts[classes].clamp(min=1).sqrt()[:, None]

    def measure_anew(self, classes: Tensor) -> None:
        waiting, before = self.waiting[: int(self.n_waiting)], self._around(classes)
        super().measure_anew(classes)
        after = self._around(classes)
        rows, signed = torch.cat([waiting, before, after]), torch.cat([waiting, -before, after])
        add_products(self.moment, signed, rows)
        self.waiting.zero_()  # it has rows as they came, perhaps of what was taken back
        self.n_waiting.zero_()

    def weights(self) -> tuple[Tensor, Tensor]:
        means, s = self.exact_means(), self.covariance()
        scale = s.diagonal().clamp(min=0).sqrt()
        scale = torch.where(scale > 1e-6 * scale.max(), scale, scale.max()).clamp(min=1e-12)
        s.div_(scale).div_(scale[:, None])  # correlations: what has another unit counts alike
        e = self.shrinkage
        e = self.estimated_shrinkage(s, float(self.counts.sum())) if e is None else e
        s.mul_(1 - e).diagonal().add_(e)
        solved = solve(cholesky(s), (means / scale).T).T / scale
        return solved, -(solved * means).sum(dim=1) / 2


def _wide(x: Tensor) -> Tensor:
    """In double precision, where the device has it: in single, a row's last digits depend on the rows beside it."""
    return x if x.device.type == "mps" else x.double()
