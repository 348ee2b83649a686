"""NCM: the nearest class mean."""

from __future__ import annotations

from onepass.methods.analytic import ClassMeans


class NCM(ClassMeans):
    """Each class is the mean of its samples' features, and a sample belongs to the nearest. The simplest baseline.

    prediction: argmin over classes of |x - m_c|, m_c = mean of all samples of c
    """
