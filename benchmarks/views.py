"""Milliseconds to augment a batch of 20 images: ours, and kornia's equivalent pipeline where kornia is installed.

python benchmarks/views.py [repeats]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from onepass.learner.augment import colour

BATCH = 20


def kornia_pipeline(size: int) -> Callable[[Tensor], Tensor] | None:
    try:
        from kornia import augmentation as K
    except ImportError:
        return None
    return torch.nn.Sequential(
        K.RandomResizedCrop((size, size), scale=(0.2, 1.0)),
        K.RandomHorizontalFlip(),
        K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        K.RandomGrayscale(p=0.2),
    )


def medians(candidates: dict[str, Callable[[Tensor], Tensor]], x: Tensor, repeats: int) -> dict[str, float]:
    """Interleaved, so that a busy machine slows all candidates alike."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for repeat in range(repeats + 3):
        for name, augment in candidates.items():
            start = time.perf_counter()
            augment(x)
            if repeat >= 3:
                seconds[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(values) for name, values in seconds.items()}


def main(repeats: int) -> None:
    generator = torch.Generator().manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, median of {repeats}, ms per {BATCH} images")
    print(f"{'images':>18} {'onepass':>9} {'kornia':>9} {'ratio':>7}")
    for size in (32, 84):
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.rand(BATCH, 3, size, size, generator=generator).contiguous(memory_format=layout)
            candidates: dict[str, Callable[[Tensor], Tensor]] = {"onepass": lambda x: colour(x, generator)}
            if (pipeline := kornia_pipeline(size)) is not None:
                candidates["kornia"] = pipeline
            ms = medians(candidates, x, repeats)
            name = f"3x{size}x{size} {'NHWC' if layout is torch.channels_last else 'NCHW'}"
            theirs = (
                f"{ms['kornia']:9.2f} {ms['kornia'] / ms['onepass']:6.1f}x" if "kornia" in ms else f"{'-':>9} {'-':>7}"
            )
            print(f"{name:>18} {ms['onepass']:9.2f} {theirs}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
