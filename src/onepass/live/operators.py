"""The operators that a file for prediction may use, and how many values each will make, known before it does.

All of them only compute: none draws, writes, or looks at anything but its arguments.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

Size = Callable[..., int]
MOST_PATCHES = 1 << 30  # values of all patches of an image that a kernel is laid upon


def _first(x: Tensor, *rest: Any, **named: Any) -> int:
    return x.numel()


def _broadcast(*values: Any, **named: Any) -> int:
    return math.prod(np.broadcast_shapes(*(tuple(value.shape) for value in values if isinstance(value, Tensor))))


def _product(a: Tensor, b: Tensor) -> int:
    return math.prod(a.shape[:-1]) * b.shape[-1]


def _convolution(
    x: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, *rest: Any
) -> int:
    if transposed:
        raise ValueError("transposed convolutions are not among them")
    sides = [side + 2 * p for side, p in zip(x.shape[2:], padding, strict=True)]  # at most
    if weight[0].numel() * math.prod(sides) > MOST_PATCHES:  # some libraries write them all down
        raise ValueError("its kernels are too large")
    found: int = len(x) * len(weight) * math.prod(sides)
    return found


def _padded(x: Tensor, pads: list[int], *rest: Any) -> int:
    added = [0] * x.dim()
    for place, pad in enumerate(pads):
        added[-1 - place // 2] += pad
    found: int = math.prod(side + more for side, more in zip(x.shape, added, strict=True))
    return found


def _whole(*values: Any) -> int:
    return 1


def _numbers(*values: Any) -> int:
    """Python's arithmetic, on whole numbers alone: on tensors and lists it has no bound."""
    if not all(type(value) is int and abs(value) < 1 << 31 for value in values):
        raise ValueError("its arithmetic is not of whole numbers below 2^31")
    return 1


def _item(values: Any, place: Any) -> int:
    """One of several results of an operator."""
    if not isinstance(values, tuple | list) or type(place) is not int:
        raise ValueError("it takes an item of what is no list")
    return 0


SIZES: dict[str, Size] = {
    **dict.fromkeys(
        [
            *(
                "relu",
                "neg",
                "sqrt",
                "rsqrt",
                "reciprocal",
                "abs",
                "exp",
                "log",
                "log1p",
                "cos",
                "sin",
                "tanh",
                "sigmoid",
            ),
            *("erf", "silu", "gelu", "leaky_relu", "elu", "hardtanh", "hardswish", "hardsigmoid", "softplus"),
            *("clamp", "_softmax", "_log_softmax", "_to_copy", "clone", "permute", "view", "_unsafe_view", "unsqueeze"),
            *("squeeze", "alias", "flip", "native_layer_norm", "native_group_norm", "max_pool2d_with_indices"),
            *("avg_pool2d", "_native_batch_norm_legit_no_training", "floor", "round", "sign", "square", "t"),
        ],
        _first,
    ),
    "mean.dim": _first,
    "sum.dim_IntList": _first,
    "amax": _first,
    "amin": _first,
    "var.correction": _first,
    "linalg_vector_norm": _first,
    "pow.Tensor_Scalar": _first,
    "select.int": _first,
    "slice.Tensor": _first,
    "squeeze.dims": _first,
    "squeeze.dim": _first,
    "add.Scalar": _first,
    "mul.Scalar": _first,
    "transpose.int": _first,
    **dict.fromkeys(
        [
            "add.Tensor",
            "sub.Tensor",
            "mul.Tensor",
            "div.Tensor",
            "pow.Tensor_Tensor",
            "maximum",
            "minimum",
            "where.self",
        ],
        _broadcast,
    ),
    "expand": lambda x, sizes, **named: max(x.numel(), math.prod(side for side in sizes if side > 0)),
    "mm": _product,
    "bmm": _product,
    "addmm": lambda bias, a, b, **named: _product(a, b),
    "convolution": _convolution,
    "_adaptive_avg_pool2d": lambda x, sides: x.shape[0] * x.shape[1] * math.prod(sides),
    "cat": lambda parts, *rest: sum(part.numel() for part in parts),
    "index_select": lambda x, dim, index: x.numel() // max(1, x.shape[dim]) * len(index),
    "constant_pad_nd": _padded,
    "sym_size.int": _whole,
}
NUMBERS: dict[str, Callable[..., Any]] = {
    "getitem": operator.getitem,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
}


def name_of(target: Any) -> str:
    """The name of a function in a graph of torch's."""
    for name, function in NUMBERS.items():
        if function is target:
            return name
    return str(target).removeprefix("aten.").removesuffix(".default")


def operator_of(name: Any) -> tuple[Callable[..., Any], Size]:
    """The operator of a name, and what tells how much it makes."""
    if name in NUMBERS:
        return NUMBERS[name], _item if name == "getitem" else _numbers
    if not isinstance(name, str) or name not in SIZES or not re.fullmatch(r"\w+(\.\w+)?", name):
        raise ValueError(f"{name!r} is not among the operators of a file for prediction")
    if name == "view":  # which depends on how a tensor lies in memory, and that on the machine
        return torch.ops.aten.reshape.default, SIZES[name]
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default"), SIZES[name]
