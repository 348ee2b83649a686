"""Samples as plain arrays on disk, made once from whatever they came as, checked by hash, opened in milliseconds.

A cache is a folder of `.npy` files (never loaded with pickle) and a `meta.json` with their hash and with the names,
sizes and times of the files they were made from: if those change, it is made again. It appears whole or not at all.
Its own files have stamps too: where one has moved, every byte is hashed before the arrays are used.
"""

from __future__ import annotations

import glob
import hashlib
import json
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch

from onepass.data import HIDDEN, SUFFIXES, Dataset, LocatedFiles, Source, Split
from onepass.errors import RunError, UsageError
from onepass.files import UMASK, alone_in, lock, sync_folder, write_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = "onepass-arrays-1"
ARRAYS = ("x", "y", "x_test", "y_test")
DOMAINS = ("domain", "domain_test")  # of data that has domains
TICK = 0.02  # seconds: longer than what file systems tell times apart by
SMALL = 1 << 28  # bytes of samples that may stay resident: giving pages back costs reading them again
Progress = Callable[[int, int], None]  # samples done, samples in all


class Mapped(Dataset):
    """A data set whose samples stay in their file until they are asked for."""

    def release(self) -> None:
        for samples in (self.x, self.x_test):
            mapped = getattr(samples, "mapped", None)
            if mapped is not None and len(mapped) > SMALL:
                mapped.madvise(mmap.MADV_DONTNEED)


def stamp(files: tuple[Path, ...]) -> list[list[Any]]:
    """Which files, how large and how old: enough to notice that they changed. For a folder, of all that is in it."""
    return [[str(path), *(_inside(path) if path.is_dir() else _age(path))] for path in files]


def _age(file: Path) -> list[int]:
    facts = file.stat()
    return [facts.st_size, facts.st_mtime_ns]


def _inside(folder: Path) -> list[Any]:
    """How many images are in a folder and the folders in it, and a hash of their names, sizes and times."""
    count, folders, digest = 0, [str(folder)], hashlib.sha256()
    for place in folders:  # which grows
        found = []
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.name.startswith(HIDDEN):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.name.lower().endswith(SUFFIXES):
                    try:
                        facts = entry.stat()
                    except OSError:  # a link that leads nowhere, or to itself, is no image
                        continue
                    found.append(f"{entry.name} {facts.st_size} {facts.st_mtime_ns}")
        count += len(found)
        digest.update("\n".join([place, *sorted(found)]).encode(errors="surrogateescape"))
    return [count, digest.hexdigest()]


def open_cache(folder: Path, files: tuple[Path, ...] | None = None) -> Dataset | None:
    """The data set in a cache folder; None if it is not there, not whole, damaged, or made from other files."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if meta["format"] != FORMAT or (files is not None and meta["files"] != stamp(files)):
            return None
        x, y, x_test, y_test = (_map(folder / f"{name}.npy", meta["sizes"][name]) for name in ARRAYS)
        domains = tuple(map(str, meta.get("domains", ())))
        of = {name: _map(folder / f"{name}.npy", meta["sizes"][name]) for name in (DOMAINS if domains else ())}
        classes, digest = tuple(map(str, meta["classes"])), str(meta["digest"])
        data = Mapped(x, y, x_test, y_test, classes, digest, of.get("domain"), of.get("domain_test"), domains)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not _sound(data):
        return None
    stamps = _stamps(folder)
    if meta.get("stamps") != stamps:  # another disk, a restored backup, a version without stamps, or damage
        if digest_of(data) != data.digest or not _finite(data):
            return None
        with suppress(RunError):  # it may be somebody else's
            write_text(folder / "meta.json", json.dumps({**meta, "stamps": stamps}, indent=1))
    return data


def _within(labels: torch.Tensor, n: int) -> bool:
    """Whether these are places in a list of n."""
    return labels.dtype == torch.int64 and (not len(labels) or bool(labels.min() >= 0 and labels.max() < n))


def _sound(data: Dataset) -> bool:
    """Whether the arrays are of the kinds and sizes that a data set has, and their labels in range."""
    if data.x.dtype != data.x_test.dtype or data.x.shape[1:] != data.x_test.shape[1:]:
        return False
    for samples, labels, domain in ((data.x, data.y, data.domain), (data.x_test, data.y_test, data.domain_test)):
        if samples.dtype not in (torch.uint8, torch.float32) or samples.dim() < 2 or not samples.is_contiguous():
            return False
        if labels.shape != samples.shape[:1] or not _within(labels, len(data.classes)):
            return False
        if domain is not None and (domain.shape != labels.shape or not _within(domain, len(data.domains))):
            return False
    return True


def _finite(data: Dataset) -> bool:
    """Whether all samples are numbers; what readers wrote is, but the hash of a stranger's cache fits anything."""
    if data.x.dtype == torch.uint8:
        return True
    whole = all(bool(block.isfinite().all()) for x in (data.x, data.x_test) for block in x.split(1000))
    data.release()
    return whole


def _stamps(folder: Path) -> dict[str, list[int]]:
    """Sizes and times of the arrays. Nothing can write to a file without moving the second of its times."""
    names = [*ARRAYS, *(name for name in DOMAINS if (folder / f"{name}.npy").exists())]
    found = {name: (folder / f"{name}.npy").stat() for name in names}
    return {name: [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns] for name, facts in found.items()}


def _map(path: Path, size: int) -> torch.Tensor:
    if path.stat().st_size != size:
        raise ValueError(f"{path} has another size than when it was written")
    # Copy-on-write, so that torch takes it without a warning; nobody ever writes.
    array = np.load(path, mmap_mode="c", allow_pickle=False)
    tensor = torch.from_numpy(array)
    tensor.mapped = array._mmap  # type: ignore[attr-defined]  # kept so that release() can reach it
    return tensor


def write_cache(folder: Path, found: LocatedFiles, progress: Progress = lambda done, total: None) -> Dataset:
    """Read what was found and put its arrays into the folder."""
    progress(0, 0)
    try:
        files = stamp(found.files)  # before reading: what changes meanwhile is noticed the next time
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from error
    source = found.read()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with alone_in(folder.parent):  # else what was just made could be swept before it is locked
            _sweep(folder)
            room = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
            handle = os.open(room, os.O_RDONLY)
            lock(handle)  # so that nobody sweeps it
        try:
            _fill(room, source, {"form": found.form, "files": files}, progress)
            room.chmod(0o777 & ~UMASK)  # mkdtemp's are for their owner alone, and a cache may be shared
            with alone_in(folder.parent):  # else another process could take ours away before we opened it
                _place(room, folder, found.files)
                data = open_cache(folder)
        finally:
            os.close(handle)
            shutil.rmtree(room, ignore_errors=True)
    except OSError as error:
        raise RunError(f"cannot make the array cache {folder}: {error}; --data-dir chooses another place") from error
    if data is None:
        raise RunError(f"the array cache {folder} cannot be read back; check the disk, or choose another --data-dir")
    return data


def _sweep(folder: Path) -> None:
    """Remove what killed processes left behind."""
    for rest in folder.parent.glob(f".{glob.escape(folder.name)}.*"):
        with suppress(OSError):
            handle = os.open(rest, os.O_RDONLY)
            try:
                if lock(handle):  # nobody is filling it
                    shutil.rmtree(rest, ignore_errors=True)
            finally:
                os.close(handle)


def _place(room: Path, folder: Path, files: tuple[Path, ...]) -> None:
    if open_cache(folder, files) is not None:
        return  # another process was quicker, with the same samples
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(room, folder)
    sync_folder(folder.parent)


def _fill(room: Path, source: Source, facts: dict[str, Any], progress: Progress) -> None:
    total, done = source.train.n + source.test.n, 0
    digest = hashlib.sha256()

    def advance(samples: int) -> None:
        nonlocal done
        done += samples
        progress(done, total)

    for suffix, split in (("", source.train), ("_test", source.test)):
        labels = _write(room / f"x{suffix}.npy", split, digest, advance)
        if source.domains:
            domain, labels = np.divmod(labels, len(source.classes))
            _save(room / f"domain{suffix}.npy", domain, digest)
        _save(room / f"y{suffix}.npy", labels, digest)
    sizes = {path.stem: path.stat().st_size for path in room.glob("*.npy")}
    meta = {
        "format": FORMAT,
        **({"domains": source.domains} if source.domains else {}),
        "classes": source.classes,
        "digest": digest.hexdigest(),
        "sizes": sizes,
        "notes": (*source.notes, *source.finish()),
        **facts,
    }
    time.sleep(TICK)  # whatever is written from now on has a later time
    write_text(room / "meta.json", json.dumps({**meta, "stamps": _stamps(room)}, indent=1))
    sync_folder(room)


def _write(path: Path, split: Split, digest: Any, advance: Callable[[int], None]) -> NDArray[np.int64]:
    """Write the samples of a split; their labels."""
    labels = [np.zeros(0, dtype=np.int64)]
    with path.open("wb") as file:  # written onwards, not mapped: a mapped gigabyte would be resident
        start = _header(file, split.n, split)
        for samples, y in split.blocks():
            if samples.dtype != np.dtype(split.dtype) or samples.shape != (len(y), *split.shape):
                wanted = f"{len(y)} samples of {split.dtype} {split.shape}"
                raise ValueError(f"a block of {samples.dtype} {samples.shape} for {wanted}")
            if split.dtype == "float32" and not np.isfinite(samples).all():
                raise ValueError("a block with a NaN or an infinity, which its reader should have refused")
            block = np.ascontiguousarray(samples)
            file.write(block.data)
            digest.update(block.data)
            labels.append(np.asarray(y, dtype=np.int64))
            advance(len(y))
        y = np.concatenate(labels)
        if len(y) > split.n or (split.exact and len(y) < split.n):
            raise ValueError(f"{len(y)} samples where {split.n} were announced")
        if len(y) < split.n:
            file.seek(0)
            end = _header(file, len(y), split)
            assert end == start  # numpy pads headers, so that the first dimension can be written anew
            advance(split.n - len(y))  # the others were tried too
        file.flush()
        os.fsync(file.fileno())
    return y


def _save(path: Path, labels: NDArray[np.int64], digest: Any) -> None:
    digest.update(labels.data)
    with path.open("wb") as file:
        np.save(file, labels, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def _header(file: IO[bytes], n: int, split: Split) -> int:
    """Write the header of n samples; where it ends."""
    descr = np.lib.format.dtype_to_descr(np.dtype(split.dtype))
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": (n, *split.shape)})
    return file.tell()


def notes(folder: Path) -> list[str]:
    """What a person should know about a cache's samples."""
    try:
        return list(json.loads((folder / "meta.json").read_text(encoding="utf-8"))["notes"])
    except OSError as error:
        raise RunError(f"{folder} cannot be read: {error.strerror}; the same command tries again") from error


def digest_of(data: Dataset) -> str:
    """A hash of every byte of a data set."""
    digest = hashlib.sha256()
    for x, domain, y in ((data.x, data.domain, data.y), (data.x_test, data.domain_test, data.y_test)):
        for block in x.split(1000):
            digest.update(block.numpy().data)
        for labels in (y,) if domain is None else (domain, y):
            digest.update(labels.numpy().data)
        data.release()
    return digest.hexdigest()


def verify(folder: Path) -> bool:
    """Whether every byte of a cache is what was written, whatever its stamps say."""
    data = open_cache(folder)
    return data is not None and digest_of(data) == data.digest
