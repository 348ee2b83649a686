"""The parts of OCM's contrasts, against loops over single entries. The other losses are tested with their methods."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import rng
from onepass.learner.losses import pair_losses, partners_mean, positives_mean


def similarities(n: int, seed: int = 0) -> Tensor:
    """Of rows of length one with each other, as OCM's without the stretch of features."""
    rows = F.normalize(torch.randn(n, 5, dtype=torch.float64, generator=rng(seed)))
    return (rows @ rows.T).requires_grad_()


@pytest.mark.parametrize("tau", [0.07, 0.5])
@pytest.mark.parametrize("itself", [True, False])
def test_a_pairs_loss_is_minus_the_log_of_its_share_and_no_share_counts_as_a_tiny_one(tau: float, itself: bool) -> None:
    """Exponentials are relative to the row's largest, which may be the entry without a share; sums have a floor."""
    s = similarities(6)
    losses = pair_losses(s, tau, itself=itself)
    for i, row in enumerate(s.tolist()):
        parts = [math.exp((value - max(row)) / tau) if itself or k != i else 0.0 for k, value in enumerate(row)]
        for j, part in enumerate(parts):
            expected = -math.log(part / (sum(parts) + 1e-8) + 1e-8)
            assert losses[i, j].item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("tau", [0.07, 0.5])
def test_where_all_labels_differ_the_mean_over_positives_is_infonce_in_which_each_row_must_find_itself(
    tau: float,
) -> None:
    """OCM's property (c): a row's only positive is its own entry, which stays in the denominator."""
    s, labels = similarities(7), torch.tensor([4, 0, 9, 2, 7, 1, 3])
    loss = positives_mean(pair_losses(s, tau), labels[:, None] == labels)
    total = s.new_zeros(())
    for i in range(7):
        below = s.new_zeros(())
        for k in range(7):
            below = below + torch.exp(s[i, k] / tau)
        total = total - torch.log(torch.exp(s[i, i] / tau) / below) / 7
    torch.testing.assert_close(loss, total, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(*(torch.autograd.grad(value, s)[0] for value in (loss, total)), rtol=1e-4, atol=1e-6)
    without = positives_mean(pair_losses(s, tau, itself=False), labels[:, None] == labels)
    assert without.item() == pytest.approx(-math.log(1e-8))  # a constant: nothing would be learned


def test_the_mean_over_positives_weighs_rows_alike_and_a_row_without_any_is_no_loss() -> None:
    losses = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    positive = torch.tensor([[True, True, False], [False, False, True], [False, False, False]])
    assert positives_mean(losses, positive).item() == pytest.approx((1.5 + 6 + 0) / 3)


def test_partners_are_an_image_and_its_view() -> None:
    losses = torch.arange(36.0).view(6, 6) ** 2
    expected = sum(losses[i, j].item() for i, j in ((0, 3), (1, 4), (2, 5), (3, 0), (4, 1), (5, 2))) / 6
    assert partners_mean(losses).item() == pytest.approx(expected)
