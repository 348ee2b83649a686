"""Torch without the arithmetic: what operations over many numbers give is zeros of the right sizes."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

MANY = 4096  # floats: operations over fewer are soon done


class ShapesAlone(TorchDispatchMode):
    """Operations over more floats than that are not done; their results are zeros that take no resident memory.

    Labels, slots and whatever else is small stay true, and with them which operations follow, except where that depends
    on pixels.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.known: dict[Any, Any] = {}  # what operations gave for such sizes: torch takes milliseconds to find out

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "out" in kwargs or not (_any_many(args) or _any_many(kwargs.values())):
            return func(*args, **kwargs)
        values, form = tree_flatten((args, kwargs))
        first = func._schema.arguments[0].alias_info
        if first is not None:  # in place, which is left out, or another look at the same numbers
            done = args[0] if func._schema.returns else None
            return done if first.is_write else func(*args, **kwargs)
        key = (func, form, *map(_sizes, values))
        if key not in self.known:
            given, named = tree_unflatten(map(_without_numbers, values), form)
            try:
                self.known[key] = func(*given, **named)
            except (NotImplementedError, RuntimeError):  # as of masked selections, whose sizes depend on numbers
                return func(*args, **kwargs)
        return tree_map(_zeros, self.known[key])


def _any_many(values: Iterable[Any]) -> bool:
    """Looked up by hand: most operations are over few numbers, and flattening their arguments took as long as they."""
    for value in values:
        if isinstance(value, Tensor):
            if value.numel() > MANY and value.is_floating_point():
                return True
        elif isinstance(value, list | tuple) and _any_many(value):
            return True
    return False


def _sizes(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    return type(value), value  # 1 and 1.0 are equal, and make tensors of other types


def _without_numbers(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return torch.device("meta") if isinstance(value, torch.device) else value


def _zeros(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.numel() <= MANY:
        return torch.zeros_like(value, device="cpu") if isinstance(value, Tensor) else value
    numbers = 1 + sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True))
    # Pages fresh from the system become memory when they are written; those that an allocator has are memory already.
    pages = mmap.mmap(-1, numbers * value.element_size())
    return torch.frombuffer(pages, dtype=value.dtype).as_strided(value.shape, value.stride())
