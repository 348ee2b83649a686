"""Stored runs: one folder each, under a key of its config; a result appears whole or not at all.

`result.json` is all that was measured; `evaluations.jsonl` grows by a line with each evaluation while a run goes on.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from onepass.bench.metrics import mean
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.bench.schema import check_depth
from onepass.bench.upgrade import upgraded
from onepass.errors import RunError, UsageError
from onepass.files import write_text
from onepass.methods.registry import METHODS

DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, UsageError, RecursionError)
UNSIGNED = "0" * 64
LARGEST = 64 << 20  # bytes of a result
LEARNER = "learner.safetensors"  # a run's learner, and what a model of it needs to know
MODEL = "model.onepass"  # made from it by onepass.live.kept
INTEGERS = re.compile(r"\[\n *-?\d+(?:,\n *-?\d+)*\n *\]")  # a list of them: no line ends inside of a JSON string


def folder(out: Path, config: RunConfig) -> Path:
    method = config.method.replace(":", ".")
    return out / f"{config.stream_label}-{method}-{config.key}" / f"seed-{config.seed}"


def is_kept(path: Path) -> bool:
    """Whether the learner of the run in this folder is there."""
    return (path / MODEL).exists() or (path / LEARNER).exists()


@contextlib.contextmanager
def claim(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Only one process at a time trains a run; the others wait for it, calling `waiting` now and then.

    The lock is the folder's own and ends with its process, however that ends. Where folders cannot be locked (Windows,
    some network drives) two processes may train the same run: both write the same bits, and each file at once.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = None if sys.platform == "win32" else os.open(path, os.O_RDONLY)
    except OSError as error:
        raise RunError(f"cannot write to {path}: {error}") from error
    try:
        announced = False
        while (lock := _lock(handle)) == "taken":
            if not announced:
                print(f"{path} is being trained by another process; waiting for its result", file=sys.stderr)
            announced = True
            waiting()
            time.sleep(0.2)
        if lock == "held":
            for left in path.glob(".checkpoint.*"):  # of a process that was killed while it wrote
                left.unlink(missing_ok=True)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _lock(handle: int | None) -> Literal["held", "taken", "impossible"]:
    if handle is None:
        return "impossible"
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return "taken" if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN) else "impossible"
    return "held"


def save_evaluations(path: Path, lines: list[dict[str, Any]]) -> None:
    write_text(path / "evaluations.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def save_result(path: Path, result: Result) -> None:
    write_text(path / "result.json", sign(result.to_json()))


def sign(values: dict[str, Any]) -> str:
    """A result as text with a hash of itself, in which zeros stand for the hash."""
    text = json.dumps({"sha256": UNSIGNED} | {k: v for k, v in values.items() if k != "sha256"}, indent=1) + "\n"
    text = INTEGERS.sub(lambda found: "".join(found[0].split()), text)  # a row of counts is one line
    return text.replace(UNSIGNED, _hash(text), 1)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def load_result(
    path: Path, config: RunConfig, quiet: bool = False, digest: str = "", code: str | None = None
) -> Result | None:
    """The stored result, or None if there is none that can be trusted; a damaged one is named on stderr, and so is one
    of other data than those with the `digest`, or of a method of one's own whose code was another than `code`."""
    file = path / "result.json"
    try:
        result, _ = _read(file)
        if result.config.to_json() != config.to_json():
            raise ValueError("it belongs to another config")
        result = replace(result, config=config)
        problem = "is of other data than are there now" if digest not in ("", result.data.get("sha256")) else ""
        if code not in (None, result.protocol.get("code", "")):
            problem = f"was made by another {config.method.partition(':')[0]} than is there now"
    except FileNotFoundError:
        return None
    except DAMAGE as error:
        problem = _said(error)
    if problem and not quiet:
        print(f"{file} {problem}; it does not count", file=sys.stderr)
    return None if problem else result


def load_all(out: Path, allow: Collection[str] = ()) -> list[Result]:
    """Every result below a folder, in the order of methods and seeds; a damaged one is named on stderr and left out.

    Nothing that a file names is imported, but for the methods that are allowed, as MODULE:CLASS.
    """
    results = []
    for file in sorted(out.rglob("result.json")):
        try:
            result, renamed = _read(file, allow)
            renamed = renamed or result.config.learner_config.foreign  # what its key leaves out is not known here
            if not renamed and folder(Path(), result.config) != Path(*file.resolve().parts[-3:-1]):
                raise ValueError("it belongs to another config")
            results.append(result)
        except DAMAGE as error:
            print(f"{file} {_said(error)}; it is left out", file=sys.stderr)
    order = {name: place for place, name in enumerate(METHODS)}
    return sorted(results, key=lambda r: (order.get(r.config.method, len(order)), r.config.key, r.config.seed))


def _said(error: Exception) -> str:
    """A method or setting that is not known here is no damage."""
    return f"cannot be used here ({error})" if isinstance(error, UsageError) else f"is damaged ({error})"


def _read(file: Path, allow: Collection[str] = ()) -> tuple[Result, bool]:
    """A result, and whether its settings had other names when it was stored, and so it has another key."""
    if file.stat().st_size > LARGEST:
        raise ValueError(f"it is larger than the {LARGEST >> 20} MiB that a result may have")
    text = file.read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(text)
    if "format" in values and "sha256" not in values:
        raise ValueError("it has no hash of itself")
    if "sha256" in values and _hash(text.replace(values["sha256"], UNSIGNED, 1)) != values["sha256"]:
        raise ValueError("its text does not give its hash")
    check_depth(values)
    result = Result.from_json(values, allow)
    if abs(mean(values["accuracy_matrix"][-1]) - values["final_accuracy"]) > 1e-9:
        raise ValueError("its accuracy matrix does not give its final accuracy")
    return result, upgraded(values)["config"] != values["config"]
