"""`onepass data get` against a real server, `onepass data check` on what is there and what is wrong with it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from onepass.cli.main import main
from onepass.data import catalog, manage

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def binary_cifar10(path: Path, per_file: int = 20) -> bytes:
    """The binary version's archive, small: six files of records, label then pixels."""
    rng = np.random.default_rng(0)
    with tarfile.open(path, "w:gz") as archive:
        files = {f"data_batch_{i}.bin": None for i in range(1, 6)} | {"test_batch.bin": None}
        for name in files:
            records = rng.integers(0, 256, (per_file, 3073), dtype=np.uint8)
            records[:, 0] = np.arange(per_file) % 10
            _add(archive, f"cifar-10-batches-bin/{name}", records.tobytes())
        _add(archive, "cifar-10-batches-bin/batches.meta.txt", "\n".join(NAMES).encode())
    return path.read_bytes()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_address[1]}", folder
        http.shutdown()


@pytest.mark.system
def test_get_brings_a_data_set_that_then_is_a_stream(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url, folder = server
    content = binary_cifar10(folder / "cifar-10-binary.tar.gz")
    file = manage.Download(f"{url}/cifar-10-binary.tar.gz", hashlib.md5(content).hexdigest(), len(content))
    monkeypatch.setitem(manage.DOWNLOADS, "cifar10", file)
    root = tmp_path / "data"
    assert main(["data", "get", "split-cifar10", "--data-dir", str(root)]) == 0
    assert capsys.readouterr().out.strip() == str(root / "cifar-10-binary.tar.gz")
    assert main(["data", "check", "cifar10", "--data-dir", str(root), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["classes"] == {name: {"train": 10, "test": 2} for name in NAMES}
    assert (facts["image_size"], facts["form"], facts["problems"]) == ([3, 32, 32], "binary version, archive", [])
    words = ["run", "finetune", "--stream", "cifar10", "--net", "small-cnn", "--out", str(tmp_path / "out"), "--json"]
    assert main([*words, "--data-dir", str(root)]) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert [len(row) for row in run["accuracy_matrix"]] == [1, 2, 3, 4, 5]
    assert run["data"] == {**run["data"], "learned": 100, "measured": 20, "shape": [3, 32, 32]}


@pytest.mark.parametrize(
    ("content", "complaint"), [(b"another file", "md5"), (b"<!doctype html><html>sorry</html>", "HTML")]
)
def test_get_refuses_what_is_not_the_file_and_keeps_nothing(
    content: bytes, complaint: str, server: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, folder = server
    (folder / "cifar-100-python.tar.gz").write_bytes(content)
    words = ["data", "get", "cifar100", "--data-dir", str(tmp_path / "d"), "--url", f"{url}/cifar-100-python.tar.gz"]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert complaint in said or "size" in said
    assert "eb9058c3a382ffc7106e4002c42a8d85" in said, "how to get it by hand"
    assert not (tmp_path / "d" / "cifar-100-python.tar.gz").exists()


def test_get_says_how_mini_imagenet_is_had(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "get", "MiniImageNet", "--data-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert str(tmp_path / "mini-imagenet") in said
    assert "mini-imagenet-cache-train.pkl (813 MB)" in said


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "tiny-imagenet", "cub200", "core50"])
def test_get_says_where_the_others_are_had_and_where_they_belong(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "get", name, "--data-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert str(tmp_path) in said
    assert said.endswith(f"Then: onepass data check {name}\n")


def test_check_counts_every_domain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "inverted-digits", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["domains"] == {name: {"train": 1438, "test": 359} for name in ("white on black", "black on white")}
    assert main(["data", "check", "inverted-digits"]) == 0
    assert "white on black (1,438 and 359), black on white (1,438 and 359)" in capsys.readouterr().out


def test_a_folder_with_the_name_of_a_stream_is_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "core50").mkdir()
    assert main(["data", "check", "core50", "--data-dir", str(tmp_path / "data")]) == 2
    assert "the folder of that name here is the stream ./core50" in capsys.readouterr().err


def test_check_of_digits_counts_every_class(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "digits"]) == 0
    said = capsys.readouterr().out
    assert "10 classes" in said
    assert "1,438" in said
    assert "1 x 8 x 8" in said
    assert "nothing is wrong" in said


def test_what_is_not_there_is_said_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "cifar10", "--data-dir", str(tmp_path)]) == 2
    assert f"no cifar10 in {tmp_path}; run: onepass data get cifar10" in capsys.readouterr().err
    assert main(["data", "get", "digits", "--data-dir", str(tmp_path)]) == 2
    assert "digits needs no download" in capsys.readouterr().err


def test_a_damaged_byte_in_the_cache_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary_cifar10(tmp_path / "cifar-10-binary.tar.gz")
    catalog.load("cifar10", root=tmp_path)
    images = tmp_path / "arrays" / "cifar10" / "x.npy"
    content = bytearray(images.read_bytes())
    content[5000] ^= 1
    images.write_bytes(bytes(content))
    assert main(["data", "check", "cifar10", "--data-dir", str(tmp_path)]) == 0
    assert "is damaged, or of other files than are there now: it was made again" in capsys.readouterr().out
    images.write_bytes(bytes(content))
    (tmp_path / "cifar-10-binary.tar.gz").unlink()
    assert main(["data", "check", "cifar10", "--data-dir", str(tmp_path)]) == 1
    assert "is damaged or of another version: delete it, and bring cifar10 again" in capsys.readouterr().err


def test_the_data_folder_comes_from_the_flag_the_environment_or_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEPASS_DATA", str(tmp_path / "env"))
    assert catalog.data_dir("given") == Path("given")
    assert catalog.data_dir() == tmp_path / "env"
    monkeypatch.delenv("ONEPASS_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert catalog.data_dir() == tmp_path / "cache" / "onepass"
