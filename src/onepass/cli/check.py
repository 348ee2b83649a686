"""`onepass check`: a learner of your own against the contract."""

from __future__ import annotations

from collections.abc import Sequence

from onepass.cli.flags import Parser
from onepass.errors import RunError
from onepass.methods.registry import method_class


def check(command: str, words: Sequence[str]) -> None:
    parser = Parser(prog="onepass check", description="Test a learner against every promise of the contract.")
    parser.add_argument("learner", metavar="MODULE:CLASS", help="a subclass of onepass.Learner, or a method's name")
    name = parser.parse(words).learner
    cls = method_class(name)
    from onepass.learner.checks import PROMISES, failures

    broken = 0
    for promise, problem in failures(cls):
        broken += bool(problem)
        print(f"{'broken' if problem else 'kept  '}  {promise}" + (f": {problem}" if problem else ""))
    print(f"{cls.__name__} keeps {len(PROMISES) - broken} of {len(PROMISES)} promises")
    if broken:
        raise RunError(f"{cls.__name__} breaks the contract")
