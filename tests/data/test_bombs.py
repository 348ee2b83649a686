"""Small files that ask for much: each is refused or read within bounds, in a process whose peak memory is measured."""

from __future__ import annotations

import functools
import gzip
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

LOADER = """
import json, os, resource, sys
import torch
from onepass.data import cache, csv_table, folder, images, npy, npz, parquet_table
from onepass.data.catalog import Datasets
from onepass.errors import BadData, UsageError
for line in sys.stdin:
    path, data = json.loads(line)
    if os.fork():
        if os.wait()[1]:
            print(json.dumps(["it died", 0]), flush=True)
        continue
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        Datasets(data).load(path)
        said = ""
    except (UsageError, BadData) as error:
        said = str(error)
    print(json.dumps([said, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024]), flush=True)
    os._exit(0)
"""


@functools.cache
def loader() -> subprocess.Popen[str]:
    """Forks a process for each file, as to import torch takes longer than to load one; ends with its input, and so with
    this process."""
    return subprocess.Popen([sys.executable, "-c", LOADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def loaded(path: Path, data: Path) -> tuple[str, int]:
    """What loading says, and the megabytes it takes."""
    asked, answers = loader().stdin, loader().stdout
    assert asked is not None
    assert answers is not None
    print(json.dumps([str(path), str(data)]), file=asked, flush=True)
    said, megabytes = json.loads(answers.readline())
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


@pytest.mark.system
def test_an_idx_file_is_read_as_far_as_its_header_says(tmp_path: Path) -> None:
    """A megabyte that unpacks to a gigabyte; the header says that it is ten images, or four billion."""
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for name, dims in (("train", 10), ("t10k", 10)):
        (folder / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, dims, 28, 28) + bytes(dims * 784))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, dims) + bytes(dims))
    (folder / "train-images-idx3-ubyte").unlink()
    for n, said in (
        (10, "it holds more than it says"),
        (2**32 - 1, "with n from 1 to 100,000, got 4294967295 x 28 x 28"),
    ):
        with gzip.open(folder / "train-images-idx3-ubyte.gz", "wb") as file:
            file.write(struct.pack(">4I", 0x803, n, 28, 28))
            for _ in range(64):
                file.write(bytes(1 << 24))
        assert (folder / "train-images-idx3-ubyte.gz").stat().st_size < 2_000_000
        message, megabytes = loaded(Path("mnist"), tmp_path / "data")
        assert said in message
        assert megabytes < 100


@pytest.mark.system
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


@pytest.mark.system
def test_labels_of_endless_names_are_refused(tmp_path: Path) -> None:
    file = npz(
        tmp_path / "bomb.npz",
        ("x", header((4, 8, 8), "|u1", False), 4 * 64),
        ("y", header((4,), "<U20000000", False), 4 * 80_000_000),
    )
    said, megabytes = loaded(file, tmp_path / "data")
    assert "1000 letters are allowed" in said
    assert megabytes < 100


@pytest.mark.parametrize(("shape", "kind"), [((2, 10_000_000), "<f8"), ((2, 8_000, 10_000), "|u1")])
def test_samples_of_endless_size_are_refused(tmp_path: Path, shape: tuple[int, ...], kind: str) -> None:
    file = npz(
        tmp_path / "bomb.npz",
        ("x", header(shape, kind, False), 2 * 80_000_000),
        ("y", header((2,), "<i8", False), 16),
    )
    said, megabytes = loaded(file, tmp_path / "data")
    assert "x has samples of 80,000,000 bytes; at most 64 MiB are allowed" in said
    assert megabytes < 100


def test_a_line_without_end_is_not_read_whole(tmp_path: Path) -> None:
    for name, start in (("header.csv", b""), ("row.csv", b"a,label\n1,")):
        with (tmp_path / name).open("wb") as file:
            file.write(start)
            file.truncate(4 << 30)  # of zeros, which take no place on the disk
        said, megabytes = loaded(tmp_path / name, tmp_path / "data")
        assert "has more than the 4,194,304 bytes that are read" in said
        assert megabytes < 100


def test_columns_without_end_are_refused(tmp_path: Path) -> None:
    (tmp_path / "header.csv").write_bytes(b"a," * 2_000_000 + b"label\n")
    said, megabytes = loaded(tmp_path / "header.csv", tmp_path / "data")
    assert "expected 2 to 65,536 columns in the header, got 2,000,001" in said
    assert megabytes < 150
    (tmp_path / "row.csv").write_bytes(b"a,label\n" + b"11," * 1_000_000 + b"\n")
    said, megabytes = loaded(tmp_path / "row.csv", tmp_path / "data")
    assert "line 2: expected 2 cells as in the header, got 1000001" in said
    assert megabytes < 150


def test_a_cell_of_endless_digits_takes_no_time(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"a,label\n" + b"".join(b"9" * 100_000 + b",%d\n" % (i % 2) for i in range(20)))
    said, megabytes = loaded(tmp_path / "a.csv", tmp_path / "data")
    assert "column 'a' is inf, which is no number to learn from" in said
    assert megabytes < 150


@pytest.mark.system
def test_parquet_of_few_bytes_and_many_values_is_bounded(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    zeros = pa.table({"a": np.zeros(1_000_000, dtype=np.float32), "label": np.arange(1_000_000) % 2})
    with pq.ParquetWriter(tmp_path / "rows.parquet", zeros.schema, compression="zstd") as writer:
        for _ in range(17):
            writer.write_table(zeros, row_group_size=1_000_000)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(50 * 60_000, dtype=np.float32)), 60_000)
    values = pa.table({"a": lists, "label": np.arange(50) % 2})
    with pq.ParquetWriter(tmp_path / "values.parquet", values.schema, compression="zstd") as writer:
        for _ in range(30):
            writer.write_table(values)
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1] * 2_500), ["x" * 5_000_000, "b"])  # 12 GB if copied
    word = pa.table({"a": np.zeros(5_000), "label": words})
    pq.write_table(word, tmp_path / "word.parquet", compression="zstd", store_schema=False)
    for name, message in (
        ("rows", "expected 1 to 16,777,216 rows, got 17,000,000"),
        ("values", "declares 1,500 rows, 360,000,000 bytes, more than is allowed"),
        ("word", "has a word of 5,000,000 bytes; expected 1 to 1000 letters"),
    ):
        assert (tmp_path / f"{name}.parquet").stat().st_size < 300_000
        said, megabytes = loaded(tmp_path / f"{name}.parquet", tmp_path / "data")
        assert message in said
        assert megabytes < 200


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
    monkeypatch.setattr(fetch, "_within", lambda seconds, function: function())  # a busy machine answers late

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
    assert parquet.class_names({b"huggingface": b"[" * 100_000}, "label") == ()


def test_one_image_of_a_folder_that_is_none_stops_no_other(tmp_path: Path) -> None:
    root = some_classes(tmp_path / "photos")
    (root / "cat" / "odd.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 40)
    save(root / "cat" / "fine.png", noise(9))
    assert len(Datasets(tmp_path / "data").load(str(root)).y) == 9
