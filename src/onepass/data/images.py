"""What readers of image files share: decoding by pillow in threads, some images at a time, and a fixed test share.

Images become RGB squares of bytes: upright as their EXIF says, on white where they are transparent, the shorter side
scaled to the size, the longer side cut off evenly.
"""

from __future__ import annotations

import errno
import io
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from PIL import Image, UnidentifiedImageError

from onepass.data import Split
from onepass.data.archive import shown, sniff
from onepass.errors import RunError, UsageError, lacks_memory
from onepass.host import cores
from onepass.seeds import child_seed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from onepass.data import Blocks

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
SEED = 0  # of every test share that is chosen here
_BLOCK_BYTES = 4 << 20
_MAX_THREADS = 8
_MAX_PIXELS = 32_000_000  # of an image: a few hundred megabytes while it is decoded
_MAX_JPEG = 170_000_000  # which comes scaled down
_LARGE = 4_000_000  # pixels from which images are decoded one at a time, whatever the threads
_ONE_LARGE = threading.Lock()
# What an image that is no good may say; anything else that the system says will pass, and the image is still wanted.
_OF_THE_FILE = (None, errno.EINVAL, errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR)
_ORIENTATION = 0x0112  # the EXIF tag, and what its values ask for
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

Item = TypeVar("Item")
Result = TypeVar("Result")


class BadImage(ValueError):
    """An image that does not decode, or is too large to try: the reason alone, since the caller knows its name."""


def decode(source: Path | bytes, size: int) -> NDArray[np.uint8]:
    """The image as (3, size, size)."""
    return square(_loaded(source, 2 * size), size)


def square(image: Image.Image, size: int) -> NDArray[np.uint8]:
    """The middle of an RGB image as (3, size, size)."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    if (width, height) != (size, size):
        box = (left, top, left + side, top + side)
        image = image.resize((size, size), Image.Resampling.LANCZOS, box=box, reducing_gap=3.0)
    pixels: NDArray[np.uint8] = np.asarray(image).transpose(2, 0, 1)
    return pixels


def measure(source: Path | bytes) -> tuple[int, int]:
    """Width and height of an image once it is upright, by its header alone: whether the rest decodes is not known."""
    with _opened(source) as image:
        if image.format == "TIFF":  # which pillow turns by itself: this size is upright
            return image.size
        # Not image.getexif(): that of a PNG decodes, as EXIF may come after its pixels. Only _loaded finds it there.
        turn = Image.Image.getexif(image).get(_ORIENTATION, 1)
        return image.size[::-1] if turn in _UPRIGHT and turn > 4 else image.size


def _loaded(source: Path | bytes, at_least: int) -> Image.Image:
    """An RGB image, upright; a JPEG comes scaled down if both sides keep `at_least` pixels."""
    with _opened(source) as image:
        image.draft(image.mode, (at_least, at_least))
        with _ONE_LARGE if math.prod(image.size) > _LARGE else nullcontext():
            return upright(image)


def upright(image: Image.Image) -> Image.Image:
    image.load()
    turn = image.getexif().get(_ORIENTATION, 1)
    return rgb(image).transpose(_UPRIGHT[turn]) if turn in _UPRIGHT else rgb(image)


@contextmanager
def _opened(source: Path | bytes) -> Iterator[Image.Image]:
    """An image of which the header was read and says nothing against decoding; whatever goes wrong is a BadImage."""
    try:
        with Image.open(source if isinstance(source, Path) else io.BytesIO(source), formats=FORMATS) as image:
            width, height = image.size
            limit = _MAX_JPEG if image.format == "JPEG" else _MAX_PIXELS
            if width * height > limit:
                raise BadImage(f"{width} x {height} pixels are more than the {limit:,} that are safe to decode")
            if image.mode == "F":
                raise BadImage("its pixels are floats, of which nobody knows the range; save it with 8 bits")
            yield image
    except BadImage:
        raise
    except Exception as error:  # pillow's decoders let anything out of a damaged file
        if lacks_memory(error) or (isinstance(error, OSError) and error.errno not in _OF_THE_FILE):
            where = source if isinstance(source, Path) else "an image"
            raise RunError(f"{where} cannot be read now ({_reason(source, error)}): mend that, or remove it") from error
        raise BadImage(_reason(source, error)) from error


def _reason(source: Path | bytes, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        head = source if isinstance(source, bytes) else source.read_bytes()
        return f"it is {sniff(head[:1024]) or 'no image'}" if head else "the file is empty"
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return shown(words) or type(error).__name__


def rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):  # 16 bits, which convert() would cut off at 255
        high = np.clip(np.asarray(image), 0, 65535) >> 8
        return Image.fromarray(high.astype(np.uint8)).convert("RGB")
    if "A" in image.getbands() or "transparency" in image.info:
        over = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", over.size, "white"), over).convert("RGB")
    return image.convert("RGB")


def decoded(images: Sequence[tuple[Path, int]], size: int, bad: dict[Path, str]) -> Split:
    """Files and their labels as a split without those that do not decode; reading its blocks notes in `bad` why not."""
    return Split(len(images), (3, size, size), partial(_blocks, images, size, bad), exact=False)


def _blocks(images: Sequence[tuple[Path, int]], size: int, bad: dict[Path, str]) -> Blocks:
    length = max(1, min(256, _BLOCK_BYTES // (3 * size * size)))
    chunks = (images[i : i + length] for i in range(0, len(images), length))
    for x, y, reasons in in_threads(partial(_block, size), chunks):
        bad.update(reasons)  # here and not in the threads, so that nothing is shared between them
        if len(y):
            yield x, y


def _block(
    size: int, images: Sequence[tuple[Path, int]]
) -> tuple[NDArray[np.uint8], NDArray[np.int64], dict[Path, str]]:
    x = np.empty((len(images), 3, size, size), dtype=np.uint8)
    labels: list[int] = []
    reasons = {}
    for path, label in images:
        try:
            x[len(labels)] = decode(path, size)
            labels.append(label)
        except BadImage as error:
            reasons[path] = str(error)
    return x[: len(labels)], np.array(labels, dtype=np.int64), reasons


def measured(paths: Sequence[Path]) -> Iterator[tuple[int, int] | str]:
    """For each file its width and height by its header, or why that cannot be read."""
    chunks = (paths[i : i + 64] for i in range(0, len(paths), 64))
    for sizes in in_threads(lambda chunk: [_measured(path) for path in chunk], chunks):
        yield from sizes


def _measured(path: Path) -> tuple[int, int] | str:
    try:
        return measure(path)
    except BadImage as error:
        return str(error)


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """map() over a few threads, which work only a little ahead, so that results need not fit in memory."""
    n = min(cores(), _MAX_THREADS)
    pool = ThreadPoolExecutor(n)
    try:
        ahead: deque[Callable[[], Result]] = deque()
        for item in items:
            ahead.append(pool.submit(function, item).result)
            if len(ahead) > 2 * n:
                yield ahead.popleft()()
        while ahead:
            yield ahead.popleft()()
    finally:
        pool.shutdown(cancel_futures=True)


def held_out(
    labels: NDArray[np.int64],
    classes: tuple[str, ...],
    share: float,
    purpose: str,
    where: Path,
    sample: str = "image",
) -> NDArray[np.bool_]:
    """Which samples are for testing: in each class the end of a shuffle that its name and its size alone decide."""
    test = np.zeros(len(labels), dtype=np.bool_)
    sizes = np.bincount(labels, minlength=len(classes))
    for name, rows in zip(classes, np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1]), strict=True):
        n = len(rows)
        if n < 2:
            few = f"one {sample}" if n else f"no {sample}s"
            raise UsageError(f"{where}: class {name!r} has {few}; it needs at least two")
        order = np.random.default_rng(child_seed(SEED, purpose, name)).permutation(n)
        test[rows[order[n - max(1, round(share * n)) :]]] = True
    return test


def by_numbers(name: str) -> tuple[bool, int, str]:
    """A sort key for names of classes: numbers first and by value, then the others."""
    return (False, int(name), name) if name.isdecimal() else (True, 0, name)
