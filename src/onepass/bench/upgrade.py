"""Results that version 0.1.0 stored, as they would be stored now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def upgraded(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """In 0.1.0 results had no format number; accuracies were by the last weights, with those of an average beside them
    (ER-FSL+ had an average of its own, and no others); and augmentation was called views."""
    if "format" in values:
        return values
    new, config = dict(values), dict(values["config"])
    if config["method"] == "er-fsl+":
        settings = dict(config["settings"])
        config["settings"] = {**settings, "average": settings.pop("decay", settings.get("average"))}
        config["settings"].pop("decay", None)
    elif values.get("accuracy_matrix_average"):
        new["accuracy_matrix"], new["accuracy_matrix_last"] = (
            values["accuracy_matrix_average"],
            values["accuracy_matrix"],
        )
        new["anytime"] = [
            {"step": line["step"], "accuracy": line["accuracy_average"], "accuracy_last": line["accuracy"]}
            for line in values.get("anytime", [])
        ]
    if "views" in values.get("protocol", {}):
        new["protocol"] = {"augment" if k == "views" else k: v for k, v in values["protocol"].items()}
    return {**new, "config": config}
