"""Contrastive losses, as pure functions: which rows of a batch to pull together and which to push apart."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

FLOOR = 1e-8  # the smallest share that a pair can have in `pair_losses`


def unit(rows: Tensor) -> Tensor:
    """Each row divided by its length; a row of zeros stays one."""
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / (length + 1e-6)


def supcon(vectors: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss (Khosla et al., 2020) over rows of length one, each of them an anchor.

    An anchor's positives are the other rows with its label; an anchor without any counts as no loss.
    """
    s = vectors @ vectors.T / temperature
    itself = torch.eye(len(s), dtype=torch.bool, device=s.device)
    losses = s.masked_fill(itself, -torch.inf).logsumexp(dim=1, keepdim=True) - s
    return positives_mean(losses, (labels[:, None] == labels) & ~itself)


def proxy_contrast(features: Tensor, proxies: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of each row's own proxy among the proxies of all rows, by cosine (PCR).

    A class takes part as often as it occurs in the batch, and not at all if it does not occur.
    """
    s = unit(features) @ unit(proxies[labels]).T / temperature
    return F.cross_entropy(s, torch.arange(len(s), device=s.device))


def pair_losses(similarity: Tensor, temperature: float, *, itself: bool = True) -> Tensor:
    """-log of each entry's share in the softmax of its row; without `itself` the diagonal has no share (OCM)."""
    e = ((similarity - similarity.detach().amax(dim=1, keepdim=True)) / temperature).exp()
    if not itself:
        e = e.masked_fill(torch.eye(len(e), dtype=torch.bool, device=e.device), 0)
    return -(e / (e.sum(dim=1, keepdim=True) + FLOOR) + FLOOR).log()


def positives_mean(losses: Tensor, positive: Tensor) -> Tensor:
    """Mean over rows of the mean over a row's positive entries."""
    return ((losses * positive).sum(dim=1) / positive.sum(dim=1).clamp(min=1)).mean()


def partners_mean(losses: Tensor) -> Tensor:
    """Mean over rows of the one entry that is its partner, where rows are n images and then n augmentations of them."""
    n = len(losses) // 2
    return torch.cat([losses.diagonal(n), losses.diagonal(-n)]).mean()
