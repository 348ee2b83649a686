"""A folder of pictures as a stream: a class folder is the label, a file is learned once, whatever it is called.

What was read stands in the model's cursor: path, size, time and digest of each file. So a scan reads only what is new,
and since the cursor is saved with the model, a file is learned exactly once however often the process is killed.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from onepass.data.folder import list_images, subfolders
from onepass.data.images import BadImage, in_threads
from onepass.errors import RunError, UsageError
from onepass.live.corrections import relabel
from onepass.live.journal import DIGEST, content_digests
from onepass.live.model import Model
from onepass.live.samples import one_image

TOGETHER = 64  # files that are read at once
NOTHING = bytes(DIGEST)  # the digest of a file whose sample was forgotten
Stamp = tuple[int, int]  # size and time


@dataclass
class Progress:
    """What a scan has done so far."""

    found: int = 0  # files that are new
    read: int = 0
    learned: int = 0
    known: int = 0  # copies of what was learned
    relabelled: int = 0
    quarantined: int = 0


class Files:
    """The cursor: what was read of each file, by its path from the root."""

    def __init__(self, tree: dict[str, Any]) -> None:
        """Raises what a damaged tree makes it raise: see `live.state`."""
        self.stamps: dict[str, Stamp] = {}
        self.digests: dict[str, bytes] = {}
        self.quarantine: dict[str, tuple[Stamp, str]] = {}
        if "files" in tree:
            self._read(tree["files"])
        for path, size, time, reason in tree.get("quarantine", []):
            self.quarantine[str(path)] = (int(size), int(time)), str(reason)

    def _read(self, tree: Any) -> None:
        names = tree["paths"].numpy().tobytes().decode(errors="surrogateescape").split("\0")[:-1]
        stamps, digests = tree["stamps"].tolist(), tree["digests"].numpy()
        if len(names) != len(stamps) or digests.shape != (len(names), DIGEST):
            raise ValueError("its cursor is none")
        for name, (size, time), digest in zip(names, stamps, digests, strict=True):
            self.stamps[name], self.digests[name] = (size, time), digest.tobytes()

    def to_tree(self) -> dict[str, Any]:
        text = "".join(f"{name}\0" for name in self.stamps).encode(errors="surrogateescape")
        blob = b"".join(self.digests[name] for name in self.stamps)
        return {
            "files": {
                "paths": torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(0).byte(),
                "stamps": torch.tensor(list(self.stamps.values()), dtype=torch.int64).reshape(-1, 2),
                "digests": torch.from_numpy(np.frombuffer(blob, np.uint8).copy().reshape(-1, DIGEST)),
            },
            "quarantine": [[name, *stamp, reason] for name, (stamp, reason) in self.quarantine.items()],
        }

    def forget(self, gone: Set[bytes]) -> None:
        """Of files whose samples were forgotten nothing stays but that they were read, so that they are not again."""
        self.digests = {name: NOTHING if digest in gone else digest for name, digest in self.digests.items()}

    def unchanged(self, name: str, stamp: Stamp) -> bool:
        return self.stamps.get(name) == stamp or self.quarantine.get(name, (None,))[0] == stamp


class FolderStream:
    """Scans of a folder for a model."""

    def __init__(self, model: Model, root: Path) -> None:
        if not root.is_dir():
            raise UsageError(f"Expected a folder with a folder of images for each class, got {root}.")
        if len(model.shape) != 3:
            raise UsageError(f"Expected a model of images, got one of samples of shape {model.shape}.")
        self.model, self.root = model, root.resolve()
        self.files = Files(model.cursor.tree)
        self._erased = model.journal.erased
        self.together = model.batch * max(1, TOGETHER // model.batch)

    def scan(self) -> Iterator[Progress]:
        """Learn what is new, some files at a time. Between two of them the model and its cursor are whole."""
        pending = self.pending()
        progress = Progress(found=len(pending))
        yield progress
        parts = (pending[start : start + self.together] for start in range(0, len(pending), self.together))
        for part, images in in_threads(lambda part: (part, [_image(p, self.model.shape) for p, _, _ in part]), parts):
            with self.model.turn():
                if self._erased != self.model.journal.erased:
                    self.files.forget({d for d in self.files.digests.values() if self.model.journal.find(d) is None})
                    self._erased = self.model.journal.erased
                self._take(part, images, progress)
                self.model.cursor.tree = {**self.model.cursor.tree, **self.files.to_tree()}
                self.model.changed()
            yield progress

    def pending(self) -> list[tuple[Path, str, Stamp]]:
        """Files that are new or changed, with their labels, the oldest first."""
        found = []
        for label, folder in subfolders(self.root).items():
            try:
                paths = list_images(folder, self.root)
                self.files.quarantine.pop(label, None)
            except UsageError as error:  # one class that cannot be read stops no other
                self.files.quarantine[label] = (0, 0), str(error)
                continue
            for path in paths:
                try:
                    status = path.stat()
                except OSError:  # gone meanwhile
                    continue
                stamp = status.st_size, status.st_mtime_ns
                if not self.files.unchanged(self._name(path), stamp):
                    found.append((path, label, stamp))
        return sorted(found, key=lambda item: (item[2][1], item[0]))

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.root))

    def _take(
        self, part: list[tuple[Path, str, Stamp]], images: list[NDArray[np.uint8] | str], progress: Progress
    ) -> None:
        model, files = self.model, self.files
        good: list[tuple[str, str, Stamp]] = []
        pixels: list[NDArray[np.uint8]] = []
        for (path, label, stamp), image in zip(part, images, strict=True):
            progress.read += 1
            if isinstance(image, str):
                self._quarantine(self._name(path), stamp, image, progress)
            else:
                good.append((self._name(path), label, stamp))
                pixels.append(image)
        if not good:
            return
        x = torch.from_numpy(np.stack(pixels))
        rows = []  # to learn, or known already
        met: dict[bytes, tuple[str, str]] = {}  # the names and labels of these
        for row, ((name, label, stamp), digest) in enumerate(zip(good, content_digests(x), strict=True)):
            twin, other = met.setdefault(digest, (name, label))
            if other != label:
                self._quarantine(name, stamp, f"the same image is learned as {twin}", progress)
                continue
            number = model.journal.find(digest)
            if number is not None and model.labels.names[model.journal.class_of(number)] != label:
                if (known := self._twin(name, digest)) is not None:
                    self._quarantine(name, stamp, f"the same image is learned as {known}", progress)
                    del met[digest]
                    continue
                progress.relabelled += relabel(model, [digest.hex()], [label], x[row : row + 1])
            else:
                rows.append(row)
            files.quarantine.pop(name, None)
            files.stamps[name], files.digests[name] = stamp, digest
        if rows:
            became = model.learn(x[rows], [good[row][1] for row in rows])
            progress.learned += became.learned
            progress.known += became.known
            progress.relabelled += became.relabelled

    def _twin(self, name: str, digest: bytes) -> str | None:
        """Another file with this content that is still there; those that are not are dropped from the cursor."""
        copies = [other for other, known in self.files.digests.items() if known == digest and other != name]
        for other in copies:
            if (self.root / other).exists():
                return other
            del self.files.stamps[other], self.files.digests[other]
        return None

    def _quarantine(self, name: str, stamp: Stamp, reason: str, progress: Progress) -> None:
        self.files.quarantine[name] = stamp, reason
        progress.quarantined += 1


def _image(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8] | str:
    """The pixels of a file, or why there are none. What cannot be read now is tried again when the file has changed."""
    try:
        return one_image(path, shape)
    except (BadImage, RunError) as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)
