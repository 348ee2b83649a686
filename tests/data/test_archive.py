"""Reading honest archives, and refusing those made to write elsewhere or to fill the memory."""

from __future__ import annotations

import bz2
import gzip
import io
import random
import stat
import struct
import tarfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from onepass.data.archive import ArchiveError, members, sniff

FILES = {"batches/data_1": b"one" * 1000, "batches/deep/er/data_2": b"", "readme.txt": b"hello"}


def tar_bytes(entries: list[tuple[str | tarfile.TarInfo, bytes]], mode: str = "w", **settings: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, **settings) as tar:  # type: ignore[call-overload]  # the mode is a variable
        for entry, content in entries:
            info = tarfile.TarInfo(entry) if isinstance(entry, str) else entry
            if info.isreg():
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zip_bytes(entries: list[tuple[str | zipfile.ZipInfo, bytes]], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as file:
        for entry, content in entries:
            file.writestr(entry, content, compress_type=compression)
    return out.getvalue()


def special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def zip_link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return info


def contents(archive: Path, limit_bytes: int = 10**6, limit_files: int = 100) -> dict[str, bytes | None]:
    """All of an archive; None for a folder."""
    found = members(archive, limit_bytes=limit_bytes, limit_files=limit_files)
    return {str(name): None if pieces is None else b"".join(pieces) for name, pieces in found}


def refused(tmp_path: Path, content: bytes, name: str = "a.tar") -> str:
    """The message for an archive that must not be read; it must not take long."""
    archive = tmp_path / name
    archive.write_bytes(content)
    start = time.process_time()
    with pytest.raises(ArchiveError) as caught:
        contents(archive)
    assert time.process_time() - start < 10  # not minutes
    assert str(archive) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz", "a.tar.bz2", "a.tar.xz", "a.zip", "misnamed.bin"])
def test_what_was_packed_comes_out(name: str, tmp_path: Path) -> None:
    mode = {"gz": "w:gz", "tgz": "w:gz", "bz2": "w:bz2", "xz": "w:xz", "bin": "w:xz"}.get(name.split(".")[-1], "w")
    content = zip_bytes([*FILES.items()]) if name == "a.zip" else tar_bytes([*FILES.items()], mode)
    (tmp_path / name).write_bytes(content)
    assert contents(tmp_path / name, limit_bytes=3005, limit_files=3) == FILES


def test_folders_and_dots_are_fine(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(
        tar_bytes([(special(".", tarfile.DIRTYPE), b""), (special("./x/", tarfile.DIRTYPE), b""), ("./x/y", b"1")])
    )
    assert contents(tmp_path / "a.tar") == {"x": None, "x/y": b"1"}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_one_member_can_be_read_and_others_skipped_without_unpacking(mode: str, tmp_path: Path) -> None:
    archive = tmp_path / "a"
    archive.write_bytes(tar_bytes([("big", b"0" * 900_000), ("meta", b"small"), ("more", b"1" * 700)], mode))
    found = {
        str(name): b"".join(pieces)
        for name, pieces in members(archive, limit_bytes=10**6, limit_files=9)
        if pieces and name.name == "meta"
    }
    assert found == {"meta": b"small"}


@pytest.mark.parametrize(
    "name", ["/etc/onepass", "../outside", "a/../../outside", "a\\..\\..\\outside", "C:outside", "C:/x"]
)
@pytest.mark.parametrize("pack", [tar_bytes, zip_bytes])
def test_names_that_lead_out_are_refused(
    name: str, pack: Callable[[list[tuple[str, bytes]]], bytes], tmp_path: Path
) -> None:
    message = refused(tmp_path, pack([("good", b""), (name, b"evil")]))
    assert name.replace("\\", "\\\\") in message
    assert "leads out of the folder" in message


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (tarfile.SYMTYPE, "symbolic link"),
        (tarfile.LNKTYPE, "hard link"),
        (tarfile.CHRTYPE, "device"),
        (tarfile.BLKTYPE, "device"),
        (tarfile.FIFOTYPE, "pipe"),
        (b"Z", "unknown kind"),
    ],
)
def test_links_devices_and_pipes_are_refused(kind: bytes, said: str, tmp_path: Path) -> None:
    message = refused(tmp_path, tar_bytes([("good", b""), (special("evil", kind, "good"), b"")]))
    assert "evil" in message
    assert said in message


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    assert "x: it is a link" in refused(tmp_path, zip_bytes([("good", b""), (zip_link("x"), b"good")]), "a.zip")


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_bytes_are_counted_as_they_are_read(mode: str, tmp_path: Path) -> None:
    bomb = tar_bytes([(f"zeros{i}", bytes(400_000)) for i in range(4)], mode)
    assert "more than the 1,000,000 bytes allowed" in refused(tmp_path, bomb)
    files = tar_bytes([("a", bytes(600_000)), ("b", bytes(600_000))], mode)
    assert "b: the archive unpacks to more" in refused(tmp_path, files)


def test_a_zip_bomb_is_stopped_whatever_its_headers_say(tmp_path: Path) -> None:
    bomb = zip_bytes([("zeros", bytes(50_000_000))])
    assert len(bomb) < 60_000
    assert "more than the 1,000,000 bytes allowed" in refused(tmp_path, bomb, "a.zip")
    lying = bomb.replace(struct.pack("<I", 50_000_000), struct.pack("<I", 10))
    assert "zeros" in refused(tmp_path, lying, "a.zip")


def test_overlapping_zip_members_are_counted_each(tmp_path: Path) -> None:
    """Many names for the same compressed megabyte: small on disk, large unpacked."""
    one = zip_bytes([("aaaa", bytes(400_000))])
    end = one.rindex(b"PK\x05\x06")
    entry = one[one.index(b"PK\x01\x02") : end]
    start = len(one) - len(entry) - 22
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 50, 50, len(entry) * 50, start, 0)
    refused(tmp_path, one[:start] + entry * 50 + tail, "a.zip")


@pytest.mark.parametrize("pack", [tar_bytes, zip_bytes])
def test_files_and_folders_are_counted(pack: Callable[[list[tuple[str, bytes]]], bytes], tmp_path: Path) -> None:
    assert "more than the 100 files" in refused(tmp_path, pack([(f"f{i}", b"") for i in range(101)]))
    assert "more than the 100 files" in refused(tmp_path, pack([(f"f{i}/", b"") for i in range(101)]))
    assert "nested too deeply" in refused(tmp_path, pack([("a/" * 2000 + "b", b"")]))


def test_zip_members_that_zipfile_would_expand_in_memory_are_refused(tmp_path: Path) -> None:
    assert "compression (type 12)" in refused(tmp_path, zip_bytes([("x", b"1")], zipfile.ZIP_BZIP2), "a.zip")
    encrypted = bytearray(zip_bytes([("x", b"1")]))
    encrypted[encrypted.index(b"PK\x01\x02") + 8] |= 1
    assert "encrypted" in refused(tmp_path, bytes(encrypted), "a.zip")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_header_of_gigabytes_is_not_read_into_memory(kind: bytes, tmp_path: Path) -> None:
    info = special("long", kind)
    info.size = 2**33
    header = info.tobuf(tarfile.GNU_FORMAT)
    assert "far more data than allowed" in refused(tmp_path, gzip.compress(header + bytes(10**6), 1))


def test_skipping_a_member_of_terabytes_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("zeros")
    info.size = 2**40
    (tmp_path / "a.tgz").write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(10**6), 1))
    with pytest.raises(ArchiveError, match="beyond the size allowed"):
        list(members(tmp_path / "a.tgz", limit_bytes=10**6, limit_files=5))


def test_headers_of_headers_do_not_recurse_for_ever(tmp_path: Path) -> None:
    info = special("long", tarfile.GNUTYPE_LONGNAME)
    info.size = 2
    refused(tmp_path, (info.tobuf(tarfile.GNU_FORMAT) + b"a\0" + bytes(510)) * 5000)


def test_a_negative_size_does_not_loop(tmp_path: Path) -> None:
    for size in (-512, -1024, -(2**40)):
        info = tarfile.TarInfo("x")
        header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
        header[124:136] = b"\xff" + (256**11 + size).to_bytes(11, "big")
        header[148:156] = b"%06o\0 " % (sum(header[:148] + header[156:]) + 8 * 32)
        refused(tmp_path, bytes(header) + bytes(2048))


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz", "zip"])
def test_an_archive_cut_anywhere_is_refused(mode: str, tmp_path: Path) -> None:
    noise = random.Random(0).randbytes(1500)
    entries: list[tuple[str | tarfile.TarInfo, bytes]] = [("a", noise), ("b/c", b"2" * 600)]
    whole = zip_bytes([("a", noise), ("b/c", b"2" * 600)]) if mode == "zip" else tar_bytes(entries, mode)
    whole = whole[:4096] if mode == "w" else whole  # tar pads with zeros, which may be missing
    for end in range(0, len(whole), 61):
        refused(tmp_path, whole[:end], "a.tar.gz")
    refused(tmp_path, whole[:-1], "a.tar.gz")


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz", "zip"])
def test_damaged_archives_are_read_or_refused(mode: str, tmp_path: Path) -> None:
    chance = random.Random(1)
    noise = chance.randbytes(1500)
    whole = zip_bytes([("a", noise)]) if mode == "zip" else tar_bytes([("a", noise)], mode)
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[chance.randrange(len(whole))] = chance.randrange(256)
        (tmp_path / "a").write_bytes(damaged)
        with suppress(ArchiveError):  # any other exception is a failure
            contents(tmp_path / "a", limit_bytes=10**4, limit_files=5)


def test_other_files_are_called_what_they_are(tmp_path: Path) -> None:
    assert "this is an HTML page" in refused(tmp_path, b"<!DOCTYPE html>\n<html>", "a.tar.gz")
    assert "no archive of a known kind" in refused(tmp_path, b"", "a.tar.gz")
    assert "7z" in refused(tmp_path, b"7z\xbc\xaf\x27\x1c", "a.7z")
    refused(tmp_path, gzip.compress(b"only a file"), "a.gz")
    refused(tmp_path, bz2.compress(b""), "a.bz2")
    with pytest.raises(ArchiveError, match="No such file"):
        contents(tmp_path / "missing.zip")


def test_html_is_told_by_its_beginning() -> None:
    assert sniff(b"  <!doctype HTML public>") == sniff(b"<html>") == sniff(b"<!-- x --><head>") == "an HTML page"
    assert sniff(b"<xml>") == sniff(b"htmlhtml") == sniff(b"") == ""
