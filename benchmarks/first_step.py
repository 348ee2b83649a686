"""A learner that ends its process as soon as it is to learn: what went by until then is the start of a command."""

from __future__ import annotations

from typing import NoReturn

from onepass.methods.er import ER  # and nothing else of onepass: other versions are measured with it too


class FirstStep(ER):
    def learn(self, *batches: object) -> NoReturn:
        raise SystemExit(0)
