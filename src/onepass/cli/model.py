"""`onepass predict`, `inspect`, `forget` and `export`: what is done with a model that is kept."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onepass.cli.flags import Parser, count
from onepass.errors import UsageError
from onepass.live.claim import claimed
from onepass.text import printable

if TYPE_CHECKING:
    from torch import Tensor

    from onepass.live.model import Model

TOGETHER = 64  # files that are read at once


def _parser(command: str, description: str) -> Parser:
    parser = Parser(prog=f"onepass {command}", description=description)
    parser.add_argument("model", type=Path, metavar="FILE", help="a model's file")
    allowed = "code of your own that the file may name"
    parser.add_argument("--allow", action="append", default=[], metavar="MODULE:NAME", help=allowed)
    return parser


def predict(command: str, words: Sequence[str]) -> None:
    parser = _parser(command, "Predict images (or vectors, rows of an .npy file) by a model or a file for prediction.")
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="images, folders of images; .npy files for vectors")
    add("--top", type=count, default=1, metavar="N", help="number of classes to show for each sample (default: 1)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="a line of JSON for each sample")
    form.add_argument("--csv", action="store_true", help="path, class, probability, ...")
    values = parser.parse(words)
    from onepass.live.state import open_snapshot

    snapshot = open_snapshot(values.model, values.allow)
    if not snapshot.calibrated:
        print("probabilities are not calibrated: too few samples were predicted before learning", file=sys.stderr)
    table = csv.writer(sys.stdout)
    if values.csv:
        table.writerow(["path", *(f"{what}_{n + 1}" for n in range(values.top) for what in ("class", "probability"))])
    bad = 0
    for names, x, failed in _samples(values.paths, snapshot.shape):
        answers = snapshot.top(x, values.top) if len(x) else []
        for name, answer in zip(names, answers, strict=True):
            if values.json:
                found = [{"class": c, "probability": p} for c, p in answer]
                print(json.dumps({"path": name, "calibrated": snapshot.calibrated, "classes": found}))
            elif values.csv:
                table.writerow([name, *(part for pair in answer for part in (pair[0], f"{pair[1]:.6f}"))])
            else:
                print(printable(f"{name}: {', '.join(f'{c} {p:.3f}' for c, p in answer)}"))
        for name, reason in failed:
            bad += 1
            if values.json:
                print(json.dumps({"path": name, "error": reason}))
            else:
                print(f"{printable(name)}: {printable(reason)}", file=sys.stderr)
    if bad:
        raise UsageError(f"{bad} of the samples cannot be read; the others are predicted")


def _samples(
    paths: Sequence[Path], shape: tuple[int, ...]
) -> Iterator[tuple[list[str], Tensor, list[tuple[str, str]]]]:
    """Names and samples, some at a time, and what of them cannot be read, and why."""
    import numpy as np
    import torch

    from onepass.data.images import BadImage
    from onepass.live.samples import one_image, vector_tensor

    if len(shape) != 3:
        for path in paths:
            try:
                rows = np.load(path, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError) as error:
                yield [], torch.empty(0), [(str(path), str(error))]
                continue
            for start in range(0, len(rows), 4096):
                x = vector_tensor(np.array(rows[start : start + 4096]), shape[0])
                yield [f"{path}[{start + i}]" for i in range(len(x))], x, []
        return
    files = list(_images(paths))
    for start in range(0, len(files), TOGETHER):
        good, rows, failed = [], [], []
        for path in files[start : start + TOGETHER]:
            try:
                rows.append(one_image(path, shape))
                good.append(str(path))
            except BadImage as error:
                failed.append((str(path), str(error)))
        yield good, torch.from_numpy(np.stack(rows)) if rows else torch.empty(0), failed


def _images(paths: Sequence[Path]) -> Iterator[Path]:
    from onepass.data.folder import list_images

    for path in paths:
        if path.is_dir():
            yield from list_images(path, path.resolve())
        else:
            yield path


def inspect(command: str, words: Sequence[str]) -> None:
    parser = _parser(command, "What a model knows, and what it keeps.")
    parser.add_argument("--json", action="store_true", help="as JSON, with the confusion of classes and the quarantine")
    values = parser.parse(words)
    from onepass.live.describe import describe
    from onepass.live.state import load_model

    found = describe(load_model(values.model, values.allow))
    if values.json:
        print(json.dumps(found))
        return
    accuracy = "-" if found["accuracy"] is None else f"{found['accuracy']:.1%} of {found['tested']} before learning"
    for name in ("method", "net", "shape", "samples", "memory"):
        print(f"{name:12}{printable(str(found[name]))}")
    print(f"{'accuracy':12}{accuracy}, recently")
    print(f"{'probabilities':12} {'calibrated' if found['calibrated'] else 'not calibrated yet'}")
    for row in found["classes"]:
        share = "" if row["accuracy"] is None else f", {row['accuracy']:.0%} right recently"
        print(printable(f"  {row['name']}: {row['samples']} samples{share}"))
    if found["quarantine"]:
        print(f"{len(found['quarantine'])} files are not learned; --json says why")


def forget(command: str, words: Sequence[str]) -> None:
    parser = _parser(command, "Forget samples: their files are given again, or their ids.")
    add = parser.add_argument
    add("paths", nargs="*", type=Path, metavar="PATH", help="images; a learner of statistics then forgets them exactly")
    add("--ids", nargs="+", default=[], metavar="ID", help="ids of samples, as they were given, or as digests")
    add("--rebuild", action="store_true", help="learn anew from the memory, so that nothing is influenced any more")
    add("--json", action="store_true", help="print what was done as JSON")
    values = parser.parse(words)
    if bool(values.paths) == bool(values.ids):
        raise UsageError("Expected paths or --ids, got both or neither.")
    with claimed(values.model):
        _forget(values)


def _forget(values: argparse.Namespace) -> None:
    from onepass.live import corrections
    from onepass.live.state import load_model, remove_older, save_model

    model = load_model(values.model, values.allow)
    if values.ids:
        found = corrections.forget(model, values.ids, rebuild=values.rebuild)
    else:
        found = corrections.forget(model, None, _given(values, model), rebuild=values.rebuild)
    remove_older(values.model)  # first: killed in between, nobody would know what they hold
    save_model(model, values.model, older=0)
    if values.json:
        print(json.dumps({**vars(found), "unknown": list(found.unknown), "influenced": found.influenced}))
        return
    print(f"{found.forgotten} samples forgotten, {found.exact} without a trace; {len(found.unknown)} were not known")
    if found.influenced:
        print(f"{found.influenced} are stored nowhere but still influence what is predicted; --rebuild ends that")
    if values.paths:
        print("remove the files too: onepass learn would learn a copy of them, or a changed one")


def _given(values: argparse.Namespace, model: Model) -> Tensor:
    import torch

    parts = []
    for _, x, failed in _samples(values.paths, model.shape):
        if failed:
            raise UsageError(f"{failed[0][0]}: {failed[0][1]}")
        parts.append(x)
    return torch.cat(parts)


def export(command: str, words: Sequence[str]) -> None:
    parser = _parser(command, "Write what predicts for other programs. Samples come as the model learns them.")
    parser.add_argument(
        "out", type=Path, metavar="OUT", help="*.onnx, *.pt2 (torch.export), *.onepass (prediction alone)"
    )
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    values = parser.parse(words)
    if values.out.resolve() == values.model.resolve():
        raise UsageError(f"Expected another file than the model itself, got {values.out}.")
    from onepass.live.export import export as write
    from onepass.live.export import facts
    from onepass.live.state import open_snapshot

    snapshot = open_snapshot(values.model, values.allow)
    form = write(snapshot, values.out)
    if values.json:
        print(json.dumps({"form": form, "path": str(values.out), **facts(snapshot)}))
    else:
        print(
            f"{form}: {printable(str(values.out))}, {values.out.stat().st_size:,} bytes, {len(snapshot.names)} classes"
        )
