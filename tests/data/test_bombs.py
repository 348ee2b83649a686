"""Small files that ask for much: each is refused or read within bounds, in a process whose peak memory is measured."""

from __future__ import annotations

import io
import json
import socket
import struct
import subprocess
import sys
import threading
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from data_helpers import noise, save, some_classes
from onepass.data import cifar, fetch, parquet
from onepass.data.catalog import Datasets
from onepass.errors import UsageError

LOAD = """
import json, resource, sys
import torch
from onepass.data import cache, folder, images, npz
from onepass.data.catalog import Datasets
from onepass.errors import BadData, UsageError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    Datasets(sys.argv[2]).load(sys.argv[1])
    said = ""
except (UsageError, BadData) as error:
    said = str(error)
print(json.dumps([said, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024]))
"""


def loaded(path: Path, data: Path) -> tuple[str, int]:
    """What loading says, and the megabytes it takes."""
    done = subprocess.run([sys.executable, "-c", LOAD, str(path), str(data)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said, megabytes = json.loads(done.stdout)
    return said, megabytes


def header(shape: tuple[int, ...], descr: str, fortran: bool) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": fortran, "shape": shape})
    return file.getvalue()


def npz(path: Path, *members: tuple[str, bytes, int]) -> Path:
    """An archive of arrays that are all zeros: a header and a number of bytes each."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as zipped:
        for name, head, size in members:
            with zipped.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(head)
                for start in range(0, size, 1 << 24):
                    member.write(bytes(min(1 << 24, size - start)))
    return path


def test_an_array_in_fortran_order_is_not_read_whole(tmp_path: Path) -> None:
    n = 120_000
    file = npz(
        tmp_path / "bomb.npz",
        ("x", header((n, 32, 32, 3), "|u1", True), n * 3072),
        ("y", header((n,), "<i8", False), 8 * n),
    )
    assert file.stat().st_size < 2_000_000
    said, megabytes = loaded(file, tmp_path / "data")
    assert "x is in Fortran order, and too large to be read whole" in said
    assert megabytes < 100


def test_labels_of_endless_names_are_refused(tmp_path: Path) -> None:
    file = npz(
        tmp_path / "bomb.npz",
        ("x", header((4, 8, 8), "|u1", False), 4 * 64),
        ("y", header((4,), "<U20000000", False), 4 * 80_000_000),
    )
    said, megabytes = loaded(file, tmp_path / "data")
    assert "1000 letters are allowed" in said
    assert megabytes < 100


def png(path: Path, side: int) -> Path:
    """A black image of a few kilobytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = zlib.compressobj(9)
    body = b"".join([*(rows.compress(bytes(1 + 4 * side)) for _ in range(side)), rows.flush()])
    size = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", body) + chunk(b"IEND", b""))
    return path


@pytest.mark.system
def test_images_of_many_pixels_are_skipped_or_decoded_one_at_a_time(tmp_path: Path) -> None:
    root = some_classes(tmp_path / "photos", n=30)
    png(root / "cat" / "huge.png", 9400)
    for number in range(4):
        png(root / "dog" / f"large{number}.png", 5000)
    said, megabytes = loaded(root, tmp_path / "data")
    assert said == ""
    assert megabytes < 700
    notes = json.loads(next((tmp_path / "data").rglob("meta.json")).read_text())["notes"]
    assert any("9400 x 9400 pixels are more than" in note for note in notes)


def test_a_download_that_drips_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_GRACE", 0.3)

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(10_000)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            try:
                while True:
                    connection.sendall(b"x" * 20)
                    time.sleep(0.05)
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=drip, args=(server,), daemon=True).start()
        with pytest.raises(fetch.DownloadError, match=r"the server sends \d+ bytes a second; run again to continue"):
            fetch.download(f"http://127.0.0.1:{server.getsockname()[1]}/file", tmp_path / "file")


def test_headers_that_drip_end_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_GRACE", 0.3)

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(10_000)
            try:
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                while True:
                    connection.sendall(b"A")
                    time.sleep(0.05)
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=drip, args=(server,), daemon=True).start()
        with pytest.raises(fetch.DownloadError, match=r"no answer within 0\.3 seconds"):
            fetch.download(f"http://127.0.0.1:{server.getsockname()[1]}/file", tmp_path / "file", attempts=1)


@pytest.mark.parametrize("url", ["http://[::1/", "http://[", "//x", "file:///etc/passwd", "ftp://x/y"])
def test_addresses_that_are_none_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(fetch.DownloadError, match="is no http or https address"):
        fetch.download(url, tmp_path / "file")


# Odd words in files of known forms


@pytest.mark.parametrize("label", ["1" * 900, "\ud800", "\x1b[2J", "名前"])
def test_odd_labels_are_names_like_others(label: str, tmp_path: Path) -> None:
    x = np.zeros((8, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=np.array([label, "b"] * 4))
    assert label in Datasets(tmp_path / "data").load(str(tmp_path / "a.npz")).classes


def test_letters_that_do_not_exist_are_damage(tmp_path: Path) -> None:
    letters = np.array([0x110000, 98] * 4, dtype="<u4").view("<U1")
    np.savez(tmp_path / "a.npz", x=np.zeros((8, 8, 8), dtype=np.uint8), y=letters)
    with pytest.raises(UsageError, match=r"damaged, or no \.npz file"):
        Datasets(tmp_path / "data").load(str(tmp_path / "a.npz"))


def test_names_and_labels_of_cifar_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = cifar.CIFAR10[0]
    monkeypatch.setattr(cifar, "_dict", lambda content, name: {"label_names": 5})
    assert cifar._names(layout, b"") == tuple("0123456789")
    pixels = np.zeros((1, 3072), dtype=np.uint8)
    monkeypatch.setattr(cifar, "_dict", lambda content, name: {"data": pixels, layout.label: [2**63]})
    with pytest.raises(UsageError, match="are no list of whole numbers"):
        cifar._pickled(layout, b"", "batch")


def test_metadata_of_endless_brackets_names_no_class() -> None:
    assert parquet._names({b"huggingface": b"[" * 100_000}, "label") == ()


def test_one_image_of_a_folder_that_is_none_stops_no_other(tmp_path: Path) -> None:
    root = some_classes(tmp_path / "photos")
    (root / "cat" / "odd.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 40)
    save(root / "cat" / "fine.png", noise(9))
    assert len(Datasets(tmp_path / "data").load(str(root)).y) == 9
