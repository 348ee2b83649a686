"""`onepass check`: a learner of your own against the contract."""

from __future__ import annotations

from collections.abc import Sequence

from onepass.cli.flags import Parser
from onepass.errors import RunError
from onepass.methods.registry import method_class
from onepass.names import NET_NAMES


def check(command: str, words: Sequence[str]) -> None:
    parser = Parser(prog="onepass check", description="Run all contract checks on a learner.")
    parser.add_argument("learner", metavar="MODULE:CLASS", help="a subclass of onepass.Learner, or a method's name")
    parser.add_argument("--net", default="", help=f"{', '.join(NET_NAMES)}, or MODULE:FACTORY (default: one layer)")
    parser.add_argument("--vectors", action="store_true", help="on vectors of 12 numbers (default: on 8x8 images)")
    values = parser.parse(words)
    cls = method_class(values.learner)
    import torch

    from onepass.learner.checks import PROMISES, failures
    from onepass.learner.toy_problem import IMAGES, VECTORS

    torch.set_num_threads(1)  # more of them only wait for each other over networks as small as these
    broken, on = 0, VECTORS if values.vectors else IMAGES
    for name, problem in failures(cls, problem=on, net=values.net):
        broken += bool(problem)
        print(f"{'failed' if problem else 'passed'}  {name}" + (f": {problem}" if problem else ""), flush=True)
    print(f"{cls.__name__} passes {len(PROMISES) - broken} of {len(PROMISES)} contract checks")
    if broken:
        raise RunError(f"{cls.__name__} breaks the contract")
