"""Do others gain as ER-FSL does by thirty replayed images, a view of each, in the place of ten and their views?"""

from __future__ import annotations

from once import Once
from onepass.methods.er import ER
from onepass.methods.pcr import PCR


class MoreER(ER):
    views = Once.views  # type: ignore[assignment]


class MorePCR(PCR):
    views = Once.views  # type: ignore[assignment]
