"""The learner of a measured run as a model that goes on."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from onepass.bench.store import LEARNER, MODEL
from onepass.errors import BadCheckpoint
from onepass.learner.checkpoint import load_tree
from onepass.live.model import UNNUMBERED, Model
from onepass.live.state import save_model
from onepass.methods.factory import learner_from_tree


def model_of_run(folder: Path, allow: Collection[str] = ()) -> Path:
    """The model's file in a run's folder, made from the learner that `keep` stored there. Its samples have no ids."""
    path, made = folder / LEARNER, folder / MODEL
    if not path.exists():
        return made
    tree = load_tree(path)
    learner = learner_from_tree(tree, path, allow)
    learner.number_samples()
    for memory in learner.memories():
        memory.field("number").fill_(UNNUMBERED)
    try:
        names, counts, batch = tree["names"], tree["counts"], tree["batch"]
        model = Model(learner, batch=0 if learner.takes_back else batch)
        model.declare(names)
        model.counts = [int(count) for count in counts]
    except (KeyError, TypeError, ValueError) as error:
        raise BadCheckpoint(f"{path} is damaged: {error!r}; remove it, and the run is trained again") from error
    save_model(model, made, older=0)
    path.unlink()
    return made
