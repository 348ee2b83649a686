"""The features of a data set by the pretrained network, once, as an .npz that is a stream of vectors.

    python studies/pretrained/features.py cifar10 DATA OUT.npz [FRACTION]

Learning these vectors with `--net linear` is what `--net pretrained:lite0` does: each image passes the network once.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from pretrained import lite0

from onepass.bench.stream import parts
from onepass.data.catalog import load

AT_ONCE = 16  # images; 64 take twice the CPU time each, as their maps leave the caches


@torch.inference_mode()
def features(net: torch.nn.Module, images: torch.Tensor) -> np.ndarray:  # type: ignore[type-arg]
    parts = []
    for number, part in enumerate(images.split(AT_ONCE)):
        parts.append(net(part / 255).numpy())
        print(f"{AT_ONCE * number + len(part):,} of {len(images):,}", end="\r", file=sys.stderr)
    return np.concatenate(parts)


def main(name: str, data: str, out: str, fraction: str = "1") -> None:
    found, net = load(name, root=Path(data)), lite0((3, 32, 32)).eval()
    names = np.array(found.classes)
    _, rows, _ = parts(found, float(fraction))  # the same images as `--fraction` has
    np.savez(
        out,
        x=features(net, found.x[rows]),
        y=names[found.y[rows].numpy()],
        x_test=features(net, found.x_test),
        y_test=names[found.y_test.numpy()],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
