"""Fault injection: each call of a run, a save, a cache build and a download that touches the disk or asks for memory
fails once.

    python tests/faults.py FOLDER [--minutes 60] [--every 1]

For each scenario and each n, the n-th call below FOLDER fails with ENOSPC, EIO or EINTR, or the process is killed at
it; and the n-th call that asks for 64 KiB or more gets none (tests/faults.c does it, below Python). The command may
fail then, with a message and no traceback; without memory, the process may also end. The same command without a fault
must end in the same bits as one that nothing disturbed, and leave nothing beside what it leaves.

When each call has failed, faults at random calls follow, two in a row, until the minutes are over. With --every, every
so many calls fail, and nothing follows. Counts so far are in FOLDER/counts.json.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import hashlib
import http.server
import importlib
import io
import itertools
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from onepass.errors import lacks_memory

KILLED = 0  # instead of an error
DISK, MEMORY = "disk", "memory"
ERRORS = {DISK: (errno.ENOSPC, errno.EIO, errno.EINTR, KILLED), MEMORY: (errno.ENOMEM,)}
LEAST = {DISK: 0, MEMORY: 1 << 16}  # bytes: Python and its libraries are not made for a failure of every small one
PATIENCE = 600  # seconds, after which a process counts as stuck
SHIM = Path(__file__).with_suffix(".c")
ORDERLY = ("RunError", "UsageError", "BadCheckpoint", "BadData", "DownloadError", "SystemExit")
NO_MEMORY = "no memory"


def build(folder: Path) -> Path:
    """The shim as a library to preload."""
    library = folder / "faults.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SHIM), "-ldl"], check=True)
    return library


def scenarios(root: Path, url: str) -> dict[str, Callable[[], str | Path]]:
    """What is disturbed; each gives the file, or a word for the bits, that it ends in."""
    import torch

    import onepass
    from onepass.cli.main import main
    from onepass.data import fetch
    from onepass.data.catalog import Datasets
    from onepass.store import load_all

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
        return Datasets(root / "data").load(str(sources(root) / "images.npz")).digest

    def photos() -> str:
        return Datasets(root / "data").load(str(sources(root) / "photos")).digest

    def download() -> Path:
        return fetch.download(url, root / "file", attempts=1)

    def command() -> str:
        said, out = io.StringIO(), str(root / "commanded")
        words = shlex.split("run er --batch 50 --fraction 0.2 --memory 20 --checkpoint-seconds 0 --out")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            code = main([*words, out])
        if code:
            assert "Traceback" not in said.getvalue(), said.getvalue()
            raise SystemExit(said.getvalue())
        [result] = load_all(Path(out))
        return result.fingerprint

    found: dict[str, Callable[[], str | Path]] = {"save": save, "run": run, "command": command, "cache": cache}
    return {**found, "photos": photos, "download": download, "served": lambda: served(root)}


def served(root: Path) -> str:
    """A served learner is taught, saves and forgets. What it said is saved must be there when it starts again."""
    import torch

    from onepass.errors import RunError
    from onepass.live.autosave import Autosave
    from onepass.live.claim import claimed
    from onepass.live.journal import digest_of
    from onepass.live.model import Model
    from onepass.live.serving import commands
    from onepass.live.serving.bodies import Items, Refused
    from onepass.live.serving.keys import request_digest
    from onepass.live.serving.service import Service
    from onepass.live.state import load_model

    path, notes = root / "served" / "m.onepass", root.with_name("said")  # notes lie where nothing fails
    if not path.parent.exists():
        notes.unlink(missing_ok=True)

    def say(what: str) -> None:
        with notes.open("a") as file:
            file.write(f"{what}\n")

    with claimed(path):
        model = load_model(path) if path.exists() else Model.create((1, 8, 8), method="er", net="small-cnn", memory=20)
        autosave = Autosave(model, path, 1e6, held=path.exists())
        service = Service(model, autosave)
        try:
            said = set(notes.read_text().split() if notes.exists() else ())
            for key in said - {"forgotten"}:
                assert service.keys.find(request_digest(key.encode())), f"{key} was said to be saved, and is lost"
            assert "forgotten" not in said or model.journal.find(digest_of("batch-0/0")) is None, "not forgotten"
            for n in range(3):
                key, x = f"batch-{n}", torch.full((4, 1, 8, 8), 20 * n, dtype=torch.uint8)
                x[:, 0, 0, 0] = torch.arange(4, dtype=torch.uint8)
                items = Items(x, [f"class {n % 2}"] * 4, [f"{key}/{row}" for row in range(4)])
                batch = service.batch(commands.learn(service, items, key, key.encode(), "")[0])
                while batch is not None and batch.state == "queued" and service.healthy:
                    time.sleep(0.001)
                if batch is None or batch.state != "learned" or not autosave.save():
                    raise RunError(f"{key}: {batch and batch.error} {autosave.failure}")
                say(key)
            with contextlib.suppress(Refused):  # it was forgotten before
                call = service.in_turn(lambda: commands.forget(service, "batch-0/0", None, False))
                if not call.result()["erased_from_file"]:
                    raise RunError(autosave.failure)
            say("forgotten")
        finally:
            service.close(PATIENCE)
            autosave.close()
    kept = load_model(path)
    known = [
        f"{n}/{row}"
        for n in range(3)
        for row in range(4)
        if kept.journal.find(digest_of(f"batch-{n}/{row}")) is not None
    ]
    return f"{kept.class_counts()} {kept.journal.known} {' '.join(known)}"


def sources(root: Path) -> Path:
    """What scenarios read: beside their folder, under a name that begins as it does, so that reading fails too."""
    return root.with_name(f"{root.name}-sources")


def write_sources(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    shutil.rmtree(folder, ignore_errors=True)
    x = np.random.default_rng(0).integers(0, 256, (2000, 8, 8), dtype=np.uint8)
    folder.mkdir()
    np.savez(folder / "images.npz", x=x, y=np.arange(2000) % 4)
    for number in range(8):  # each larger than the least memory that fails
        place = folder / "photos" / f"{number % 2}" / f"{number}.{'png' if number < 4 else 'jpeg'}"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[250 * number : 250 * number + 250].reshape(160, 100)).resize((200, 200)).save(place)
    (folder / "served").write_bytes(bytes(range(256)) * 2000)


def _word(bits: str | Path) -> str:
    return hashlib.sha256(bits.read_bytes()).hexdigest() if isinstance(bits, Path) else bits


@dataclass(frozen=True)
class Fault:
    """The n-th call of a kind fails with this error."""

    kind: str
    n: int
    code: int

    def __str__(self) -> str:
        return f"{self.kind}, call {self.n}, {errno.errorcode.get(self.code, 'killed')}"


@dataclass
class Target:
    """A scenario, the word for the bits it ends in when nothing disturbs it, what it leaves, its calls of each kind."""

    name: str
    scenario: Callable[[], str | Path]
    word: str
    left: set[str]
    calls: dict[str, int]


class Soak:
    """Disturbs scenarios and counts what was tried."""

    def __init__(self, root: Path) -> None:
        self.library = ctypes.CDLL(None)
        self.library.fault_count.restype = ctypes.c_long
        self.library.fault_set.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_long)
        self.root, self.counts = root, Counter[str]()

    def target(self, name: str, scenario: Callable[[], str | Path]) -> Target:
        target = Target(name, scenario, "", set(), {})
        _empty(self.root)
        for module in self.in_child(lambda: str(scenario() and " ".join(sys.modules))).split():
            with contextlib.suppress(Exception):  # modules that only stand there under a name
                importlib.import_module(module)  # here, so that children import nothing: faults are to meet our code
        for kind in (DISK, MEMORY):
            _empty(self.root)
            said = self.in_child(lambda: self.counted(scenario, kind))  # noqa: B023  # called at once
            calls, _, target.word = said.partition(" ")
            assert calls.isdigit(), f"{name}, undisturbed: {said}"
            target.left, target.calls[kind] = _names(self.root), int(calls)
            self.counts[f"{kind} calls of {name}"] = int(calls)
        return target

    def counted(self, scenario: Callable[[], str | Path], kind: str) -> str:
        self.library.fault_set(0, 0, LEAST[kind])
        bits = scenario()
        return f"{self.library.fault_count()} {_word(bits)}"

    def disturbed(self, target: Target, fault: Fault) -> str:
        self.library.fault_set(fault.n, fault.code, LEAST[fault.kind])
        try:
            bits = target.scenario()
        finally:
            self.library.fault_set(0, 0, 0)
        return _word(bits)

    def check(self, target: Target, *faults: Fault) -> None:
        """The scenario with each of the faults in turn, then without."""
        where = f"{target.name}: {'; '.join(map(str, faults))}"
        _empty(self.root)
        for fault in faults:
            said = self.in_child(lambda: self.disturbed(target, fault))  # noqa: B023
            kind = "kills" if fault.code == KILLED else f"{fault.kind} faults"
            how = _how(said, target.word, fault)
            assert how, f"{where}: {said}"
            self.counts[kind] += 1
            self.counts[f"{kind}: {how}"] += 1
        again = self.in_child(lambda: _word(target.scenario()))
        assert again == target.word, f"{where}; then {again}"
        more = _names(self.root) - target.left
        assert not more, f"{where}; left {sorted(more)}"

    def in_child(self, function: Callable[[], str]) -> str:
        """In a process of its own, which has imported everything already; its answer, or its error's name and words."""
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            signal.alarm(PATIENCE)
            with (self.root.parent / "stderr").open("wb") as file:
                os.dup2(file.fileno(), 2)  # what C++ says when it ends the process
            try:
                with contextlib.redirect_stderr(io.StringIO()):
                    said = function()
            except BaseException as error:
                name = NO_MEMORY if lacks_memory(error) else type(error).__name__
                said = f"{name}: {error}"
                if name not in (*ORDERLY, NO_MEMORY):
                    said += "\n" + "".join(traceback.format_exception(error))
            os.write(writer, said.encode()[:60_000])
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            said = pipe.read().decode(errors="replace")
        _, status = os.waitpid(child, 0)
        return f"ended by {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else said


def _how(said: str, word: str, fault: Fault) -> str:
    """How a disturbed scenario ended; "" if it must not end like that."""
    first = said.partition(":")[0]
    if said == word:
        return "done all the same"
    if fault.code == KILLED:
        return "killed" if said == "ended by SIGKILL" else ""
    if first in ORDERLY:
        return "refused with an error of ours"
    if fault.kind == MEMORY and said.startswith("ended by ") and said != "ended by SIGALRM":
        return said
    return first if fault.kind == MEMORY and first == NO_MEMORY else ""


def soak(end: float, every: int = 0) -> Counter[str]:
    """Disturb each scenario at each of its calls, in any order, and then twice at random calls until the end; or once
    at every so many calls."""
    import torch

    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # so that a command takes one thread too
    root, rng = Path(os.environ["FAULT_ROOT"]), random.Random(0)
    write_sources(sources(root))
    work = Soak(root)
    with _served(sources(root) / "served") as url:
        targets = [work.target(name, scenario) for name, scenario in scenarios(root, url).items()]
        single = [
            (target, (Fault(kind, n, code),))
            for target, kind in itertools.product(targets, (DISK, MEMORY))
            for n in range(1, target.calls[kind] + 1, every or 1)
            for code in ((ERRORS[kind][n % len(ERRORS[kind])],) if every else ERRORS[kind])
        ]
        rng.shuffle(single)  # whenever it ends, all of them had their share
        for target, faults in itertools.chain(single, () if every else _pairs(targets, rng)):
            if time.monotonic() > end:
                break
            try:
                work.check(target, *faults)
            except AssertionError as error:
                work.counts["found"] += 1
                print(error, file=sys.stderr, flush=True)
            work.counts["done"] += 1
            (root.parent / "counts.json").write_text(json.dumps(work.counts, indent=1))
        work.counts["planned"] = len(single)
    return work.counts


def _pairs(targets: list[Target], rng: random.Random) -> Iterator[tuple[Target, tuple[Fault, Fault]]]:
    while True:
        target = rng.choice(targets)
        first, second = (
            Fault(kind, rng.randint(1, target.calls[kind]), rng.choice(ERRORS[kind]))
            for kind in rng.choices((DISK, MEMORY), k=2)
        )
        yield target, (first, second)


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=int, default=0, help="one round, over every so many calls")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if "FAULT_ROOT" not in os.environ:
        folder.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "LD_PRELOAD": str(build(folder)), "FAULT_ROOT": str(folder / "root")}
        os.execve(sys.executable, [sys.executable, *sys.argv], env)
    counts = soak(time.monotonic() + 60 * options.minutes, options.every)
    print(json.dumps(counts, indent=1))
    return int(bool(counts["found"]))


if __name__ == "__main__":
    sys.exit(main())
