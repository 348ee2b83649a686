"""SLDA: streaming linear discriminant analysis (Hayes and Kanan, CVPR workshops 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.config import Settings, option
from onepass.methods.analytic import Discriminant


@dataclass(frozen=True)
class SLDAConfig(Settings):
    shrinkage: float | None = option(
        None, "share of the diagonal in the covariance; default: estimated from what was seen (OAS)", low=0, high=1
    )


class SLDA(Discriminant):
    """A mean for each class and one covariance within all of them, exact at any moment, whatever the order.

    S = (1 - e) covariance within classes + e diagonal of it
    prediction: argmax over classes of x S^-1 m_c - m_c S^-1 m_c / 2
    """

    Config = SLDAConfig
    config: SLDAConfig

    @property
    def shrinkage(self) -> float | None:
        return self.config.shrinkage
