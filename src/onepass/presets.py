"""Settings that differ between data sets: what the paper's rows run with when nothing else is said.

A method's own defaults are those for CIFAR-10. Where each number comes from stands on the method's page.
"""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "cifar100": {
        "derpp": {"alpha": 0.1, "beta": 1.0},
        "aser": {"per_class": 2},
        "er-dvc": {"dl_weight": 4.0},
        "ocm": {"scale": 1.0},
        "er-lode": {"rho": 0.05},
        "er-cba": {"adaptor_lr": 0.01},
    },
    "mini-imagenet": {
        "derpp": {"alpha": 0.1, "beta": 1.0},
        "aser": {"per_class": 3},
        "er-dvc": {"dl_weight": 4.0},
        "ocm": {"scale": 1.0},
        "er-lode": {"rho": 0.05},
        "er-cba": {"adaptor_lr": 0.01},
    },
}


def preset(stream: str, method: str) -> dict[str, Any]:
    """The settings of a method that are special to a stream; both by their canonical names."""
    return PRESETS.get(stream, {}).get(method, {})
