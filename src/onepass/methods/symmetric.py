"""Symmetric matrices: sums of products, how much to shrink them, and equations solved by them."""

from __future__ import annotations

import torch
from torch import Tensor

from onepass.errors import RunError

STRIPE = 512  # rows that are added to at once, up to the diagonal
BLOCK = 128  # rows of a factor that are held in double precision at once


def stripes(moment: Tensor) -> list[slice]:
    return [slice(start, min(start + STRIPE, len(moment))) for start in range(0, len(moment), STRIPE)]


def add_products(moment: Tensor, a: Tensor, b: Tensor, times: int = 1) -> None:
    """moment += times a^T b, which is symmetric: only up to the diagonal, at about half of the work."""
    for rows in stripes(moment):
        moment[rows, : rows.stop].addmm_(a[:, rows].T, b[:, : rows.stop], alpha=times)


def oas(s: Tensor, n: float) -> float:
    """Oracle approximating shrinkage of n samples' covariance towards a multiple of the identity.

    Chen, Wiesel, Eldar and Hero (2010), equation 23.
    """
    d, trace, squares = len(s), float(s.trace()), float(s.pow(2).sum())
    away = squares - trace**2 / d
    if away <= 0:
        return 1.0
    return min(1.0, ((1 - 2 / d) * squares + trace**2) / ((n + 1 - 2 / d) * away))


def cholesky(s: Tensor) -> Tensor:
    """Of a matrix that rounding may have left short of being positive definite."""
    ridge = 1e-6
    while True:
        factor: Tensor
        factor, failed = torch.linalg.cholesky_ex(s)
        if not failed:
            return factor
        if not s.isfinite().all():  # which no ridge mends
            raise RunError(
                "the covariance of the features has values that are no numbers: squares of what was learned leave "
                "float32. Scale what comes in, and learn it anew"
            )
        s.diagonal().add_(ridge)
        ridge *= 10


def solve(factor: Tensor, right: Tensor) -> Tensor:
    """x of factor factor^T x = right, to the digits of the right side.

    In single precision two classes that lie far from the origin would differ by rounding. A whole factor in double
    would take twice its memory; some of its rows at a time do not.
    """
    x = right.clone(memory_format=torch.contiguous_format)
    blocks = [slice(i, min(i + BLOCK, len(x))) for i in range(0, len(x), BLOCK)]
    for rows in blocks:
        left = x[rows] - factor[rows, : rows.start].to(x) @ x[: rows.start]
        x[rows] = torch.linalg.solve_triangular(factor[rows, rows].to(x), left, upper=False)
    for rows in reversed(blocks):
        left = x[rows] - factor[rows.stop :, rows].T.to(x) @ x[rows.stop :]
        x[rows] = torch.linalg.solve_triangular(factor[rows, rows].T.to(x), left, upper=True)
    return x
