"""`onepass learn`: a folder of pictures into a model that is kept."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.cli.flags import Parser, add_settings, count, given
from onepass.cli.signals import handled
from onepass.errors import RunError, UsageError
from onepass.live.claim import claimed
from onepass.methods.registry import canonical, method_class
from onepass.names import NET_NAMES
from onepass.text import printable, warn

if TYPE_CHECKING:
    from onepass.live.folder import Progress
    from onepass.live.model import Model

POLL = 2.0  # seconds between two looks at a folder


def learn(command: str, words: Sequence[str]) -> None:
    first = Parser(prog="onepass learn", add_help=False)
    first.add_argument("--method", default="")
    method = canonical(named) if (named := first.parse_known_args(words)[0].method) else ""
    parser = Parser(
        prog="onepass learn",
        description="Learn the images of a folder, one folder for each class, into a model that is kept in a file.\n"
        "A file is learned once; moved to another class, it is relabelled; what does not decode is listed.",
    )
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help="class folders with images")
    add(
        "--model",
        type=Path,
        required=True,
        metavar="FILE",
        help="the model's file; a new one is made if there is none",
    )
    add("--watch", action="store_true", help="go on, and learn what arrives, until it is stopped")
    add("--method", default="", metavar="METHOD", help="of a new model (default: one that keeps statistics)")
    add("--net", default="", help=f"of a new model: {', '.join(NET_NAMES)}, or MODULE:FACTORY")
    add("--image-size", type=count, default=32, metavar="N", help="side of the images of a new model (default: 32)")
    add("--seed", type=int, default=0, metavar="N", help="of a new model (default: 0)")
    add(
        "--save-seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="save this often; no more is lost (default: 60)",
    )
    add("--allow", action="append", default=[], metavar="MODULE:NAME", help="code of your own that the file may name")
    add("--json", action="store_true", help="print what was done as JSON")
    settings = add_settings(parser, {method: method_class(method).Config} if method else {})
    values = parser.parse(words)
    with claimed(values.model):
        _learn(values, method, given(values, settings))


def _learn(values: argparse.Namespace, method: str, settings: dict[str, Any]) -> None:
    from onepass.cli.live_view import LiveView
    from onepass.live.folder import FolderStream
    from onepass.live.state import save_model

    model = _model(values, method, settings)
    stream = FolderStream(model, values.folder)
    asked: list[bool] = []
    saved, when = model.version if values.model.exists() else -1, time.monotonic()

    def save() -> None:
        nonlocal saved, when
        if saved != model.version:
            saved = save_model(model, values.model)
        when = time.monotonic()

    with LiveView(model, values.model) as view, handled(lambda: asked.append(True)):
        said = ""
        while True:
            try:
                for progress in stream.scan():
                    view.show(progress)
                    if asked:
                        break
                    if progress.read and time.monotonic() - when >= values.save_seconds:
                        save()
                said = ""
            except (OSError, RunError, UsageError) as error:
                if not values.watch:
                    raise
                if not asked and str(error) != said:
                    warn(f"{printable(str(error))}; it is tried again every {POLL:g} s")
                said = str(error)
            try:
                save()
            except RunError as error:
                if asked or not values.watch:
                    raise
                warn(f"{printable(str(error))}; it is tried again")
            if asked:
                raise KeyboardInterrupt
            if not values.watch:
                break
            end = time.monotonic() + POLL
            while not asked and time.monotonic() < end:
                time.sleep(0.05)
    _report(values, model, progress, stream.files.quarantine)


def _model(values: argparse.Namespace, method: str, settings: dict[str, Any]) -> Model:
    from onepass.live.model import Model
    from onepass.live.state import load_model

    if not values.model.exists():
        shape = (3, values.image_size, values.image_size)
        return Model.create(shape, method=method, net=values.net, settings=settings, seed=values.seed)
    model = load_model(values.model, values.allow)
    recipe = model.learner.recipe or {}
    if method and canonical(recipe["method"]) != method:
        raise UsageError(f"{values.model} is a model of {recipe['method']}, not of {method}: name another file.")
    if "memory" in settings:
        model.resize_memory(settings["memory"])
    if "lr" in settings:
        model.set_learning_rate(settings["lr"])
    return model


def _report(values: argparse.Namespace, model: Model, done: Progress, quarantine: dict[str, Any]) -> None:
    reasons = {name: reason for name, (_, reason) in quarantine.items()}
    if values.json:
        facts = {**vars(done), "model": str(values.model), "classes": len(model.labels), "samples": model.learned}
        print(json.dumps({**facts, "accuracy": model.prequential.accuracy, "quarantine": reasons}))
        return
    for name, reason in list(reasons.items())[:10]:
        print(f"not learned: {printable(name)} ({printable(reason)})", file=sys.stderr)
    if len(reasons) > 10:
        print(f"and {len(reasons) - 10} more; onepass inspect {values.model} --json names all", file=sys.stderr)
    parts = [f"{done.learned} images learned", f"{done.relabelled} relabelled" if done.relabelled else ""]
    parts += [f"{done.quarantined} not readable" if done.quarantined else ""]
    print(f"{', '.join(filter(None, parts))}: {printable(str(values.model))} knows {model.learned} images of "
          f"{len(model.labels)} classes")  # fmt: skip
