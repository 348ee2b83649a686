"""What several tests of data sets build with: pickles as Python 2 wrote them, and folders of small images."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]


def py2_int(value: int) -> bytes:
    return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value)


def py2_text(value: str | bytes) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value


def py2_list(items: Iterable[bytes | int]) -> bytes:
    return b"](" + b"".join(item if isinstance(item, bytes) else py2_int(item) for item in items) + b"e"


def py2_dict(**items: bytes) -> bytes:
    return b"}(" + b"".join(py2_text(name) + item for name, item in items.items()) + b"u"


def py2_array(array: Pixels) -> bytes:
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    sides = b"".join(map(py2_int, array.shape))
    shape = sides + b"\x86" if array.ndim == 2 else b"(" + sides + b"t"  # TUPLE2, or MARK and TUPLE
    return made + b"(K\x01" + shape + dtype + b"\x89" + py2_text(array.tobytes()) + b"tb"


def py2_pickle(value: bytes) -> bytes:
    """A file with protocol 2."""
    return b"\x80\x02" + value + b"."


def noise(seed: int, side: int = 8) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


def save(path: Path, pixels: Pixels) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def some_classes(root: Path, classes: tuple[str, ...] = ("cat", "dog"), n: int = 5) -> Path:
    for c, name in enumerate(classes):
        for i in range(n):
            save(root / name / f"{i}.png", noise(100 * c + i))
    return root
