"""Mutated files of every form that onepass reads: each is read, or refused with an error of ours.

    python tests/fuzz.py [--seconds 60] [--seed 0] [--keep FOLDER]

Starts from small whole files, and from tests/corpus, where files lie that once did harm. What raises something else is
kept in FOLDER, with its traceback on stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import io
import json
import random
import resource
import struct
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from onepass.errors import BadCheckpoint, BadData, RunError, UsageError

CORPUS = Path(__file__).parent / "corpus"
SAMPLES = Path(__file__).parent / "samples" / "0.1.0"
ORDERLY = (BadCheckpoint, BadData, RunError, UsageError)
ODD: list[Any] = [None, True, -1, 0, 2**63, 1e308, "", "x" * 5000, "\ud800", [], {}, [[]], {"": None}, "helper:Learner"]
Read = Callable[[Path], object]


def forms(folder: Path) -> dict[str, tuple[bytes, Read]]:
    """A small whole file of each form, and who reads it."""
    import torch

    import onepass
    from onepass.bench.presets import read_presets
    from onepass.bench.run_config import RunConfig
    from onepass.bench.stream import make_tasks
    from onepass.data import cache, safe_pickle
    from onepass.data.catalog import Datasets
    from onepass.learner.checkpoint import load_tree
    from onepass.live.describe import describe
    from onepass.live.folder import Files
    from onepass.live.model import Model
    from onepass.live.program import save_program
    from onepass.live.state import load_model, open_snapshot, save_model
    from onepass.store import load_all

    problem = onepass.Problem(n_classes=2, shape=(1, 4, 4))
    learner = onepass.build("finetune", problem, net="small-cnn")
    learner.observe(onepass.Batch(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1])))
    onepass.save(learner, folder / "model")
    [result, *_] = sorted((SAMPLES / "runs").rglob("result.json"))
    x, y = np.arange(12 * 16, dtype=np.uint8).reshape(12, 4, 4), np.arange(12) % 2
    np.savez_compressed(folder / "a.npz", x=x, y=y)
    picture = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(picture, "PNG")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in ("data_batch_1.bin", "test_batch.bin"):
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = 3073
            archive.addfile(entry, io.BytesIO(bytes(3073)))
    Datasets(folder / "data").load(str(folder / "a.npz"))
    [meta] = (folder / "data").rglob("meta.json")

    def stored(path: Path) -> object:
        place = folder / "store" / "digits-er-76d6d36ae9" / "seed-0"
        place.mkdir(parents=True, exist_ok=True)
        (place / "result.json").write_bytes(path.read_bytes())
        return load_all(folder / "store")

    def photographs(path: Path) -> object:
        root = folder / "photos"
        for name in ("a", "b"):
            (root / name).mkdir(parents=True, exist_ok=True)
            for number in range(3):
                (root / name / f"{number}.png").write_bytes(picture.getvalue())
        (root / "a" / "odd.png").write_bytes(path.read_bytes())
        return Datasets(folder / "photographed").load(str(root))

    def cached(path: Path) -> object:
        meta.write_bytes(path.read_bytes())
        return cache.open_cache(meta.parent)

    def packaged(path: Path) -> object:
        place = folder / "packed"
        place.mkdir(exist_ok=True)
        (place / "cifar-10-binary.tar.gz").write_bytes(path.read_bytes())
        return Datasets(place).load("cifar10")

    def own(suffix: str) -> Read:
        file = folder / f"own{suffix}"

        def read(path: Path) -> object:
            file.write_bytes(path.read_bytes())
            return Datasets(folder / "arrays").load(str(file))

        return read

    rows = np.linspace(-3, 3, 48).reshape(12, 4)
    np.savez_compressed(folder / "vectors.npz", x=rows, y=y)
    np.save(folder / "rows.npy", rows)
    np.save(folder / "own_labels.npy", y)
    lines = ['a;b;"c";d;split;label', *(";".join([*map(repr, row.tolist()), "train", "cat"]) for row in rows)]
    for number in range(1, 13):
        lines[number] = lines[number].replace("cat", f'"{"cd"[number % 2]}at"')
        lines[number] = lines[number].replace("train", "test") if number > 8 else lines[number]
    text = "\n".join(lines).replace(";", ",").encode()

    def digits(path: Path) -> object:
        place = folder / "idx" / "mnist"
        place.mkdir(parents=True, exist_ok=True)
        for name in ("train", "t10k"):
            (place / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
            (place / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 4) + b"\0\1\0\1")
        (place / "t10k-images-idx3-ubyte.gz").write_bytes(path.read_bytes())
        return Datasets(place.parent).load("mnist")

    def listed(path: Path) -> object:
        (folder / "tasks.json").write_bytes(path.read_bytes())
        config = RunConfig("er", class_order=str(folder / "tasks.json"))
        return make_tasks(Datasets(folder / "data").load("digits"), config.stream_config, seed=0)

    images = struct.pack(">4I", 0x803, 4, 28, 28) + bytes(4 * 784)
    array_of = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x02K\x02\x86"
    bytes_of = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    pickled = b"\x80\x02}(U\x04data" + array_of + bytes_of + b"\x89U\x04\x00\x01\x02\x03tbU\x06labels](K\x00K\x01eu."
    kept = Model.create((6,))
    kept.learn(torch.eye(6), [*"abcabc"], [*"123456"])
    kept.cursor.tree = {"features": [*"abcdef"], "quarantine": [["x.png", 1, 2, "no image"]], **Files({}).to_tree()}
    save_model(kept, folder / "kept")
    save_program(kept.snapshot(), folder / "prediction")

    def told(path: Path) -> object:
        return describe(load_model(path)), open_snapshot(path).top(torch.eye(6), 2)

    preset = json.dumps({"method": "er", "stream": "digits", "settings": {"lr": 0.1}}).encode()
    return {
        "result": (result.read_bytes(), stored),
        "model": ((folder / "model").read_bytes(), onepass.load),
        "kept": ((folder / "kept").read_bytes(), told),
        "prediction": ((folder / "prediction").read_bytes(), lambda path: open_snapshot(path).top(torch.eye(6), 2)),
        "tree": ((folder / "model").read_bytes(), load_tree),
        "preset": (preset, lambda path: read_presets([path], ["er"], "digits")),
        "tasks": (b'[["0", 1], [2, "3"], [9]]', listed),
        "idx": (gzip.compress(images), digits),
        "npz": ((folder / "a.npz").read_bytes(), own(".npz")),
        "vectors": ((folder / "vectors.npz").read_bytes(), own(".npz")),
        "npy": ((folder / "rows.npy").read_bytes(), own(".npy")),
        "csv": (text, own(".csv")),
        **_parquet(folder, rows, y, own(".parquet")),
        "pickle": (pickled, lambda path: safe_pickle.load(path)),
        "png": (picture.getvalue(), photographs),
        "archive": (packed.getvalue(), packaged),
        "cache": (meta.read_bytes(), cached),
    }


def _parquet(folder: Path, rows: Any, y: Any, read: Read) -> dict[str, tuple[bytes, Read]]:
    """A table of columns and one of lists, if pyarrow is there."""
    try:
        pa, pq = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        return {}
    columns = {f"c{number}": rows[:, number] for number in range(4)}
    lists = {"words": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 4)}
    found = {}
    for form, numbers in (("parquet", columns), ("parquet-lists", lists)):
        labels = y if form == "parquet" else [f"class {number}" for number in y]
        pq.write_table(pa.table({**numbers, "label": labels}), folder / form, row_group_size=5)
        found[form] = (folder / form).read_bytes(), read
    return found


def _signed(folder: Path, rng: random.Random) -> dict[str, Callable[[], bytes]]:
    """Files of odd contents whose hash is theirs."""
    from onepass.bench import store
    from onepass.learner.checkpoint import load_tree, save_tree

    trees = {form: load_tree(folder / form) for form in ("model", "kept", "prediction")}
    [result, *_] = sorted((SAMPLES / "runs").rglob("result.json"))
    values = json.loads(result.read_text())

    def saved(form: str) -> bytes:
        while True:
            with contextlib.suppress(TypeError, ValueError, RunError):  # what save_tree itself refuses
                save_tree(folder / "odd", _mutated_value(trees[form], rng))
                return (folder / "odd").read_bytes()

    def stored() -> bytes:
        odd = _mutated_value(values, rng)
        return store.sign(odd if isinstance(odd, dict) else values).encode("utf-8", "surrogatepass")

    return {**{form: partial(saved, form) for form in trees}, "result": stored}


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, cut, doubled or moved; JSON also by its structure."""
    if content[:1] in (b"{", b"[") and rng.random() < 0.6:
        with contextlib.suppress(ValueError, RecursionError):
            return json.dumps(_mutated_value(json.loads(content), rng)).encode("utf-8", "surrogatepass")
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        if not data:
            break
        at, kind = rng.randrange(len(data)), rng.randrange(6)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 2:
            del data[at : at + rng.choice((1, 2, 8, 100, len(data)))]
        elif kind == 3:
            data[at:at] = data[at : at + rng.choice((1, 8, 64))] * rng.choice((1, 2, 50))
        elif kind == 4:
            data[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, rng.randrange(2**32))))
        else:
            data[at : at + 8] = struct.pack(">Q", rng.choice((0, 2**31, 2**32, 2**63, 2**64 - 1)))
    return bytes(data)


def _mutated_value(value: Any, rng: random.Random) -> Any:
    if rng.random() < 0.08 or not isinstance(value, (dict, list)) or not value:
        return rng.choice(ODD) if rng.random() < 0.8 or not hasattr(value, "flatten") else _mutated_tensor(value, rng)
    if isinstance(value, list):
        place = rng.randrange(len(value))
        return [_mutated_value(item, rng) if number == place else item for number, item in enumerate(value)]
    name = rng.choice(list(value))
    if rng.random() < 0.1:
        return {key: item for key, item in value.items() if key != name}
    return {key: _mutated_value(item, rng) if key == name else item for key, item in value.items()}


def _mutated_tensor(value: Any, rng: random.Random) -> Any:
    kind = rng.randrange(5)
    if kind == 0:
        return value.flatten()[: rng.randrange(1 + value.numel())]
    if kind == 1:
        return value[None]
    if kind == 2:
        return value.double() if value.is_floating_point() else value.float()
    odd = value.clone()
    if odd.numel():
        numbers = (float("nan"), -1.0, 1e30) if odd.is_floating_point() else (0, 1, 2, 100)
        odd.view(-1)[rng.randrange(odd.numel())] = rng.choice(numbers)
    return odd


def fuzz(seconds: float, seed: int = 0, keep: Path | None = None) -> Counter[str]:
    """Read mutated files for so long; how many of each form, and how many of those were read."""
    counts: Counter[str] = Counter()
    rng, end = random.Random(seed), time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        known = forms(folder)
        old = [(form, file.read_bytes()) for form in known for file in sorted((CORPUS / form).glob("*"))]
        old += [(form, b"") for form in known]  # each once, however busy the machine is
        signed = _signed(folder, rng)
        while time.monotonic() < end or old:
            form, content = old.pop() if old else (rng.choice(list(known)), b"")
            if not content:
                again = form in signed and rng.random() < 0.7  # a fitting hash lets odd contents through
                content = signed[form]() if again else mutated(known[form][0], rng)
            file = folder / f"input-{form}"
            file.write_bytes(content)
            counts[form] += 1
            try:
                known[form][1](file)
                counts[f"{form} read"] += 1
            except ORDERLY:
                continue
            except Exception:
                counts["foreign errors"] += 1
                print(f"{form}: {traceback.format_exc()}", file=sys.__stderr__)
                if keep is not None:
                    (keep / form).mkdir(parents=True, exist_ok=True)
                    (keep / form / f"{counts.total()}").write_bytes(content)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # a bomb that goes off is an error, not a dead machine
    counts = fuzz(options.seconds, options.seed, options.keep)
    print(json.dumps(counts, indent=1))
    return int(bool(counts["foreign errors"]))


if __name__ == "__main__":
    sys.exit(main())
