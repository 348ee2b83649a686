"""The file of a model, `.onepass`: safetensors with a JSON tree, its owner's alone, written in one rename.

It holds the learner with its memory, the names, the journal, the cursor of its stream and what was predicted first.
Two older copies lie beside it: a new one is `m.onepass`, those before it `m.onepass.1` and `m.onepass.2`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from onepass.errors import BadCheckpoint, RunError, lacks_memory
from onepass.learner.checkpoint import load_tree, save_tree
from onepass.learner.net import Factory
from onepass.live import program
from onepass.live.folder import Files
from onepass.live.journal import Journal
from onepass.live.labels import Labels, plain_label
from onepass.live.model import Cursor, Model
from onepass.live.prequential import Prequential
from onepass.live.snapshot import Snapshot
from onepass.methods.factory import learner_from_tree, learner_tree

VERSION = 1
KIND = "onepass model"
OLDER = 2  # copies beside the newest


def model_tree(model: Model) -> dict[str, Any]:
    """A copy of all of it, of one moment."""
    with model.turn():
        tree = {
            "kind": KIND,
            "version": VERSION,
            "learner": learner_tree(model.learner),
            "names": list(model.labels.names),
            "counts": list(model.counts),
            "batch": model.batch,
            "by_content": model.by_content,
            "journal": model.journal.to_tree(),
            "prequential": model.prequential.to_tree(),
            "cursor": model.cursor.tree,
        }
        found: dict[str, Any] = copied(tree)
        return found


def copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [copied(item) for item in value]
    return value


def save_model(model: Model, path: Path | str, *, older: int = OLDER) -> int:
    """Write the file, and keep so many older ones. The version of the model that was written."""
    path = Path(path)
    with model.turn():
        version, tree = model.version, model_tree(model)
    before = _keep(path) if older and path.exists() else None
    save_tree(path, tree)
    if before is not None:
        try:
            for n in range(older, 1, -1):
                if (newer := older_copy(path, n - 1)).exists():
                    os.replace(newer, older_copy(path, n))
            os.replace(before, older_copy(path, 1))
        except OSError as error:
            raise RunError(f"{path} is written, but the one before it cannot be kept: {error}") from error
    return version


def older_copy(path: Path, n: int) -> Path:
    return path.with_name(f"{path.name}.{n}")


def _before(path: Path) -> Path:
    """Where the last file lies while a new one is written; a process that was killed may have left it."""
    return path.with_name(f".{path.name}.before")


def _keep(path: Path) -> Path:
    """The file as it is by another name, until a new one is written."""
    other = _before(path)
    try:
        other.unlink(missing_ok=True)
        try:
            os.link(path, other)
        except OSError:  # a disk without links
            shutil.copy2(path, other)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error}; what was there before is untouched") from error
    return other


def remove_older(path: Path | str) -> None:
    """The older copies: they may hold what was forgotten."""
    path = Path(path)
    for copy in (_before(path), *(older_copy(path, n) for n in range(1, OLDER + 1))):
        copy.unlink(missing_ok=True)


def load_model(path: Path | str, allow: Collection[str] = (), *, net: str | Factory | nn.Module | None = None) -> Model:
    """The model of a file, as it was. Code of one's own that it names is imported only if that is allowed."""
    path = Path(path)
    try:
        return model_from_tree(load_tree(path), path, allow, net=net)
    except BadCheckpoint as error:
        copies = [str(copy) for n in range(1, OLDER + 1) if (copy := older_copy(path, n)).exists()]
        raise BadCheckpoint(f"{error}{'; older copies: ' + ', '.join(copies) if copies else ''}") from error


def model_from_tree(
    tree: Any, path: Path, allow: Collection[str] = (), *, net: str | Factory | nn.Module | None = None
) -> Model:
    """The model of a tree that was read from a path."""
    if not isinstance(tree, dict) or tree.get("kind") != KIND:
        raise BadCheckpoint(f"{path} holds no model that goes on learning: give a file that onepass learn wrote")
    if tree.get("version") != VERSION:
        raise BadCheckpoint(f"{path} has version {tree.get('version')}; this onepass reads version {VERSION}")
    learner = learner_from_tree(tree.get("learner"), path, allow, net=net)
    try:
        model = Model(learner, batch=_whole(tree["batch"], 1), by_content=bool(tree["by_content"]))
        names = [plain_label(name) for name in tree["names"]]
        model.labels = Labels(names)
        model.counts = [_whole(count, 0) for count in tree["counts"]]
        n = len(model.labels)
        if len(names) != n or len(model.counts) != n or n > learner.problem.n_classes:
            raise ValueError("its names of classes do not fit the learner")
        model.journal = Journal.from_tree(tree["journal"], n)
        model.prequential = Prequential.from_tree(tree["prequential"], n)
        model.labels.check(names)
        model.cursor = Cursor(_checked_cursor(tree["cursor"]))
        for memory in learner.memories():
            held = memory.field("number")[: len(memory)]
            if len(held) and not -1 <= int(held.min()) <= int(held.max()) < max(1, len(model.journal)):
                raise ValueError("its memory holds samples that it does not know")
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        if lacks_memory(error):
            raise
        raise BadCheckpoint(f"{path} holds no whole model ({error}): take an older copy") from error
    return model


def _checked_cursor(tree: Any) -> dict[str, Any]:
    features = tree.get("features", [])
    Files(tree)  # which raises what a damaged one makes it raise
    if not isinstance(features, list) or not all(isinstance(name, str) for name in features):
        raise ValueError("its names of features are none")
    found: dict[str, Any] = tree
    return found


def _whole(value: Any, least: int) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{value!r} is no whole number from {least} on")
    return value


def open_snapshot(path: Path | str, allow: Collection[str] = ()) -> Snapshot:
    """What predicts: of a file for prediction, or of a model."""
    path = Path(path)
    tree = load_tree(path)
    if isinstance(tree, dict) and tree.get("kind") == program.KIND:
        return program.program_from_tree(tree, path)
    return model_from_tree(tree, path, allow).snapshot()
