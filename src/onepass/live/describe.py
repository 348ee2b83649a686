"""What a model knows and keeps, as plain values."""

from __future__ import annotations

from typing import Any

from onepass.live.drift import drift
from onepass.live.model import Model


def describe(model: Model) -> dict[str, Any]:
    """All that a person or a program may ask of a model."""
    recipe, tested = model.learner.recipe or {}, model.prequential.by_class()
    names = model.labels.names
    classes = []
    for c, (name, samples) in enumerate(model.class_counts().items()):
        right, total = tested.get(c, (0, 0))
        classes.append(
            {"name": name, "samples": samples, "accuracy": right / total if total else None, "tested": total}
        )
    held, room = model.memory
    moved = drift(model.prequential)
    confusion = [[names[t], names[p], n] for (t, p), n in model.prequential.confusion().items()]
    return {
        "method": recipe["method"],
        "net": recipe["net"],
        "shape": list(model.shape),
        "settings": model.learner.config.to_json(),
        "samples": model.learned,
        "memory": [held, room],
        "accuracy": model.prequential.accuracy,
        "tested": len(model.prequential.window),
        "drift": None if moved is None else moved.to_json(),
        "calibrated": model.prequential.calibrated,
        "temperature": model.prequential.temperature,
        "takes_back": model.learner.takes_back,
        "classes": classes,
        "confusion": confusion,
        "quarantine": {str(row[0]): str(row[3]) for row in model.cursor.tree.get("quarantine", [])},
    }
