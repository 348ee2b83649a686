"""Child seeds by name: no stream, network or learner ever shares a generator with another."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def child_seed(seed: int, *names: str | int) -> int:
    """A seed of its own for every name, so that drawing more in one place never changes another."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int) -> torch.Generator:
    """A CPU generator: indices and augmentations are drawn on the CPU on every device, so devices choose alike."""
    import torch

    return torch.Generator().manual_seed(child_seed(seed, *names))
