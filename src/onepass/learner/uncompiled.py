"""Torch's optimizers without its compiler, which they import to keep it away from themselves: a second of CPU time."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

GUARDED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")  # of torch's optimizers


@contextmanager
def without_compiler() -> Iterator[None]:
    """Without what torch imports when an optimizer is first made, emptied or read.

    That takes ten times as long as all else when a model is loaded, and neither prediction nor a run needs any of it.
    """
    used = [getattr(torch.optim.Optimizer, name) for name in GUARDED]
    guarded = [function for function in map(inspect.unwrap, used) if not hasattr(function, "__dynamo_disable")]
    for function in guarded:
        setattr(function, "__dynamo_disable", function)  # where torch looks for the guarded one
    try:
        yield
    finally:
        for function in guarded:
            delattr(function, "__dynamo_disable")


def take_step(optimizer: torch.optim.Optimizer) -> None:
    """`optimizer.step()`; that of torch's own as it is inside, until somebody has imported the compiler."""
    step = type(optimizer).step
    ours = type(optimizer).__module__.startswith("torch.optim.") and not optimizer.defaults.get("differentiable")
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    if "torch._dynamo" in sys.modules or "step" in vars(optimizer) or hooks or not ours:
        optimizer.step()
        return
    with torch.no_grad():
        inspect.unwrap(step)(optimizer)
