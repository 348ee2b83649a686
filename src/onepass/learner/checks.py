"""The contract, executable: throw any learner at it.

    from onepass import check_learner
    check_learner(MyLearner)

It learns a toy problem for a few seconds; the checks themselves are in `promises`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onepass.config import Settings
from onepass.errors import UsageError
from onepass.learner.contract import BaseLearner
from onepass.learner.net import Factory
from onepass.learner.problem import Problem
from onepass.learner.promises import PROMISES
from onepass.learner.toy_problem import IMAGES
from onepass.learner.trial import Trial

__all__ = ["PROMISES", "ContractError", "check_learner", "failures"]


class ContractError(AssertionError):
    """A learner fails a contract check."""


def check_learner(
    cls: type[BaseLearner],
    config: Settings | None = None,
    *,
    problem: Problem = IMAGES,
    net: str | Factory = "",
) -> None:
    """Raise ContractError if the learner fails a contract check; all failed ones are named.

    It learns six classes of images, or of vectors with `problem=onepass.learner.toy_problem.VECTORS`.
    """
    broken = [f"{promise}: {what}" for promise, what in failures(cls, config, problem=problem, net=net) if what]
    if broken:
        failed = f"{cls.__name__} fails {len(broken)} of {len(PROMISES)} contract checks"
        raise ContractError("\n".join([failed, *broken]))


def failures(
    cls: type[BaseLearner],
    config: Settings | None = None,
    only: Iterable[str] = (),
    *,
    problem: Problem = IMAGES,
    net: str | Factory = "",
) -> Iterator[tuple[str, str]]:
    """Each contract check (or only those named) with what failed, or with an empty string."""
    if not (isinstance(cls, type) and issubclass(cls, BaseLearner)):
        raise UsageError(f"expected a subclass of onepass.Learner, got {cls!r}")
    trial = Trial(cls, cls.Config() if config is None else config, problem, net)
    for promise in only or PROMISES:
        try:
            PROMISES[promise](trial)
        except Exception as error:  # whatever a learner under test raises is its failure to keep the promise
            yield promise, str(error) or type(error).__name__
        else:
            yield promise, ""
