"""Fault injection: each call of a run, a save, a cache build and a download that touches the disk fails once.

    python tests/faults.py FOLDER [--minutes 60] [--every 1]

For each scenario and each n, the n-th call below FOLDER fails with ENOSPC, EIO or EINTR (tests/faults.c does it, below
Python). The command may fail then, with a message and no traceback. The same command without a fault must end in the
same bits as one that nothing disturbed, and leave nothing beside what it leaves.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import hashlib
import http.server
import io
import os
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ERRORS = (errno.ENOSPC, errno.EIO, errno.EINTR)
SHIM = Path(__file__).with_suffix(".c")
ORDERLY = ("RunError", "UsageError", "BadCheckpoint", "BadData", "DownloadError", "SystemExit")


def build(folder: Path) -> Path:
    """The shim as a library to preload."""
    library = folder / "faults.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SHIM), "-ldl"], check=True)
    return library


def scenarios(root: Path, url: str) -> dict[str, Callable[[], str | Path]]:
    """What is disturbed; each gives the file, or a word for the bits, that it ends in."""
    import torch

    import onepass
    from onepass.data import fetch
    from onepass.data.catalog import Datasets

    def save() -> Path:
        problem = onepass.Problem(n_classes=4, shape=(1, 8, 8), n_tasks=2)
        path = root / "model.safetensors"
        learner = onepass.build("er", problem, {"memory": 20}, net="small-cnn")
        for step in range(2):
            images = torch.full((3, 1, 8, 8), 10 * step, dtype=torch.uint8)
            learner.observe(onepass.Batch(images, torch.tensor([0, 1, 2])))
            onepass.save(learner, path)
        return path

    def run() -> str:
        config = onepass.RunConfig("er", batch=50, fraction=0.2, settings={"memory": 20})
        return onepass.run(config, root / "runs", checkpoint_seconds=0).fingerprint

    def cache() -> str:
        return Datasets(root / "data").load(str(root.parent / "source.npz")).digest

    def download() -> Path:
        return fetch.download(url, root / "file", attempts=1)

    return {"save": save, "run": run, "cache": cache, "download": download}


def _word(bits: str | Path) -> str:
    return hashlib.sha256(bits.read_bytes()).hexdigest() if isinstance(bits, Path) else bits


def soak(folder: Path, seconds: float, every: int = 1) -> dict[str, int]:
    """Disturb each scenario at each of its calls, or at every so many; counts of what was tried."""
    import numpy as np
    import torch

    torch.set_num_threads(1)
    library = ctypes.CDLL(None)
    library.fault_count.restype = ctypes.c_long
    root = Path(os.environ["FAULT_ROOT"])
    np.savez(folder / "source.npz", x=np.zeros((40, 8, 8), dtype=np.uint8), y=np.arange(40) % 4)
    (folder / "served").write_bytes(bytes(range(256)) * 2000)
    counts = {"faults": 0, "failed": 0}
    with _served(folder / "served") as url:
        known = scenarios(root, url)
        for name, scenario in known.items():
            calls, word, left = _undisturbed(library, root, scenario)
            counts[f"calls of {name}"] = calls
            for n in range(1, calls + 1, every):
                if time.monotonic() > seconds:
                    return counts
                error = ERRORS[n % len(ERRORS)] if every > 1 else 0
                for code in [error] if error else ERRORS:
                    _empty(root)
                    said = _in_child(lambda: _disturbed(library, n, code, scenario))  # noqa: B023  # called at once
                    counts["faults"] += 1
                    counts["failed"] += said != word
                    orderly = said == word or said.partition(":")[0] in ORDERLY
                    assert orderly, f"{name}, call {n}, {errno.errorcode[code]}: {said}"
                    again = _in_child(lambda: _word(scenario()))  # noqa: B023
                    assert again == word, f"{name} after call {n}, {errno.errorcode[code]}: {again}"
                    more = _names(root) - left
                    assert not more, f"{name}, call {n}, {errno.errorcode[code]}: left {sorted(more)}"
    return counts


def _undisturbed(library: ctypes.CDLL, root: Path, scenario: Callable[[], str | Path]) -> tuple[int, str, set[str]]:
    def counted() -> str:
        library.fault_set(0, 0)
        bits = scenario()
        return f"{library.fault_count()} {_word(bits)}"

    _empty(root)
    calls, _, word = _in_child(counted).partition(" ")
    return int(calls), word, _names(root)


def _disturbed(library: ctypes.CDLL, n: int, code: int, scenario: Callable[[], str | Path]) -> str:
    library.fault_set(n, code)
    try:
        bits = scenario()
    finally:
        library.fault_set(0, 0)
    return _word(bits)


def _in_child(function: Callable[[], str]) -> str:
    """In a process of its own, which has imported everything already; its answer, or its error's name and words."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                said = function()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
            if type(error).__name__ not in ORDERLY:
                said += "".join(traceback.format_exception(error))
        os.write(writer, said.encode()[:60_000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


def _empty(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)


def _names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@contextlib.contextmanager
def _served(file: Path):  # type: ignore[no-untyped-def]  # a context manager of an address
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = file.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(content)

        def log_message(self, format: str, *words: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/file"
    finally:
        server.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=int, default=1, help="disturb every so many calls, with one of the errors")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if "FAULT_ROOT" not in os.environ:
        folder.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "LD_PRELOAD": str(build(folder)), "FAULT_ROOT": str(folder / "root")}
        os.execve(sys.executable, [sys.executable, *sys.argv], env)
    print(soak(folder, time.monotonic() + 60 * options.minutes, options.every))


if __name__ == "__main__":
    main()
