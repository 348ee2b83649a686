"""What predicts, from the learner to its replicas: the bytes of a file, which never touches a disk."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from onepass.learner.checkpoint import tree_bytes, tree_from_bytes
from onepass.live.describe import describe
from onepass.live.model import Model
from onepass.live.serving.service import Published
from onepass.live.snapshot import Snapshot
from onepass.live.state import copied
from onepass.methods.factory import learner_from_tree, learner_tree


def packed(model: Model) -> tuple[int, bytes]:
    """All that replicas need, of one moment, and the version of the model that it is."""
    with model.turn():
        version = model.version
        tree = {
            "learner": copied(learner_tree(model.learner)),
            "names": list(model.labels.names),
            "temperature": model.prequential.temperature,
            "calibrated": model.prequential.calibrated,
            "learned": model.learned,
            "facts": json.dumps(describe(model)),
        }
    return version, tree_bytes(tree)


def unpacked(content: bytes, number: int, allow: Collection[str]) -> Published:
    """What a replica answers by from now on, and its number there."""
    tree = tree_from_bytes(content)
    learner, snapshot = learner_from_tree(tree["learner"], Path("snapshot"), allow), None
    if learner.seen:
        predictor = learner.snapshot()
        names = tuple(tree["names"][c] for c in predictor.seen_classes.tolist())
        kind = tree["temperature"], tree["calibrated"]
        snapshot = Snapshot(names, learner.problem.shape, *kind, predictor, number, tree["learned"])
    return Published(snapshot, json.loads(tree["facts"]), number)
