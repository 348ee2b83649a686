"""Read archives that may be hostile, member by member: no links, no names that lead out, no more than was allowed.

Nothing is unpacked: tarfile and zipfile are asked for names and bytes, never to extract, and the sizes in their headers
are not believed.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Literal, cast

from onepass.errors import UNREADABLE, BadData

_CHUNK = 1 << 20
_MAX_HEADER = 4 << 20  # tarfile reads a long-name or pax header whole, whatever size it declares
_MAX_PARTS = 64  # folders in folders; no data set nests deeper
_TAR_KINDS = {tarfile.SYMTYPE: "symbolic link", tarfile.LNKTYPE: "hard link", tarfile.FIFOTYPE: "pipe"}
_TAR_KINDS |= {tarfile.CHRTYPE: "device", tarfile.BLKTYPE: "device"}
_HTML = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b", re.I | re.S)
_STARTS = {
    b"\x1f\x8b": "a gzip file",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ\0": "an xz file",
    b"PK\x03\x04": "a zip archive",
    b"PK\x05\x06": "a zip archive",
    b"Rar!": "a rar archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"version https://git-lfs": "a Git LFS pointer, in place of the file itself",
}
_READERS: dict[str, Callable[[Path, Literal["rb"]], object]] = {
    "a tar archive": open,
    "a gzip file": gzip.GzipFile,
    "a bzip2 file": bz2.BZ2File,
    "an xz file": lzma.LZMAFile,
}
_BROKEN = (
    OSError,
    EOFError,
    ValueError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
)
_OVERWHELMED = (OverflowError, RecursionError)  # tarfile recurses into headers of headers
_Entry = tuple[str, str, Callable[[], IO[bytes]] | None]  # name, why it is refused if it is, content unless a folder


class ArchiveError(BadData):
    """An archive that is damaged, hostile or larger than was allowed."""


class _Refused(Exception):
    """A reason, to which `_explained` adds the archive and the member."""


def sniff(head: bytes) -> str:
    """What a file is, by its first kilobyte and with an article, as messages need it; "" if none of the known kinds."""
    if _HTML.match(head):
        return "an HTML page"
    if head[257:262] == b"ustar":
        return "a tar archive"
    return next((kind for start, kind in _STARTS.items() if head.startswith(start)), "")


def shown(text: str) -> str:
    """Words from a file, for a message: without control characters, and no longer than a line."""
    return text[:100].encode("unicode_escape").decode("ascii")


def members(
    archive: Path, *, limit_bytes: int, limit_files: int
) -> Iterator[tuple[PurePosixPath, Iterator[bytes] | None]]:
    """Each member's name and content in pieces (None for a folder), in order; read it or skip it.

    The archive may be a .tar, .tar.gz, .tar.bz2, .tar.xz or .zip, told by its content.
    """
    left = limit_bytes

    def pieces(name: str, content: Callable[[], IO[bytes]]) -> Iterator[bytes]:
        nonlocal left
        with _explained(archive, name), content() as source:
            while piece := source.read(_CHUNK):
                left -= len(piece)
                if left < 0:
                    raise _Refused(f"the archive unpacks to more than the {limit_bytes:,} bytes allowed")
                yield piece

    with _explained(archive):
        for n, (name, problem, content) in enumerate(_entries(archive, limit_bytes, limit_files), 1):
            with _explained(archive, name):
                if n > limit_files:
                    raise _Refused(f"the archive holds more than the {limit_files:,} files and folders allowed")
                if problem:
                    raise _Refused(problem)
                path = _checked(name)
            if path.parts:  # tars made of "." begin with it
                yield path, pieces(name, content) if content else None


def _entries(archive: Path, limit_bytes: int, limit_files: int) -> Iterator[_Entry]:
    with archive.open("rb") as file:
        kind = sniff(file.read(1024)) or ("a tar archive" if archive.suffix == ".tar" else "")
    if kind == "a zip archive":
        with zipfile.ZipFile(archive) as zipped:
            for entry in zipped.infolist():
                yield entry.filename, _zip_problem(entry), None if entry.is_dir() else partial(zipped.open, entry)
    elif kind in _READERS:
        headers = _MAX_HEADER + 8 * tarfile.BLOCKSIZE * limit_files
        with cast(IO[bytes], _READERS[kind](archive, "rb")) as file:
            yield from _tar_entries(_Forward(file, limit_bytes + headers))
    else:
        raise _Refused(f"this is {kind or 'no archive of a known kind'}, not a .tar or .zip; download it again")


def _zip_problem(entry: zipfile.ZipInfo) -> str:
    if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "it is a link or device, which is refused"
    if entry.flag_bits & 1:
        return "it is encrypted; unpack it by hand"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # zipfile expands the others unbounded
        return f"its compression (type {entry.compress_type}) is refused; unpack it by hand"
    return ""


def _tar_entries(stream: _Forward) -> Iterator[_Entry]:
    with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:") as tar:
        for entry in tar:
            kind = "" if entry.isfile() or entry.isdir() else _TAR_KINDS.get(entry.type, "member of an unknown kind")
            problem = kind and f"it is a {kind}, which is refused"
            yield entry.name, problem, None if entry.isdir() else partial(_tar_content, tar, entry)
    if stream.last != bytes(tarfile.BLOCKSIZE):  # tarfile takes a damaged header, or none, for the end
        raise _Refused("it breaks off, or is damaged; download it again")
    while stream.read(_CHUNK):  # the checksum of the compressed file comes last
        pass


def _tar_content(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(entry)
    assert content is not None  # only links and folders have none
    return content


class _Forward:
    """A file that can only be read onwards, in small pieces and up to a limit: tarfile would obey any header."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self.file, self.limit, self.last = file, limit, b""

    def read(self, n: int) -> bytes:
        if n > _MAX_HEADER or self.tell() > self.limit:
            raise _Refused("it holds far more data than allowed")
        self.last = self.file.read(n)
        return self.last

    def seek(self, position: int) -> None:
        if not self.tell() <= position <= self.limit:
            raise _Refused("its headers point backwards, or beyond the size allowed")
        self.file.seek(position)

    def tell(self) -> int:
        return self.file.tell()


def _checked(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or re.match("[A-Za-z]:", name):
        raise _Refused("its name leads out of the folder, which is refused")
    if len(path.parts) > _MAX_PARTS or "\0" in name:
        raise _Refused("its name is malformed or nested too deeply")
    return path


@contextmanager
def _explained(archive: Path, member: str = "") -> Iterator[None]:
    where = f"{archive}: {shown(member)}" if member else str(archive)
    try:
        yield
    except ArchiveError:
        raise
    except _Refused as error:
        raise ArchiveError(f"{where}: {error}") from None
    except MemoryError as error:
        raise ArchiveError(f"{where}: {UNREADABLE}") from error
    except (*_BROKEN, *_OVERWHELMED) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        raise ArchiveError(f"{where}: cannot be read: {shown(reason)}") from error
