"""What is stored under results/, by the files themselves: the table of results/README.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cells import rows

DATA = {  # by hash: a stand-in bears the name of what it stands in for
    "9048fcbac9c08a64d57a7c5a5a66750a974ad4eab380914df129f7e223d823df": "CIFAR-10",
    "ed544e85ca3590dbff02f4f0bc15c37c8f28a248b8317030cbeb0700b75f0523": "CIFAR-100",
    "d1dd99d9d748ec35b2e09b4d18154abf7d8241dfe4f9957e5613d0d933148944": "Tiny ImageNet, 100 classes, as `cifar100`",
    "b0b4135d65d0ab7d26f5ba1b00780892fe3453caacbd2f71c6187b080f5cb0ec": "Tiny ImageNet, 84x84, as `mini-imagenet`",
    "37fc712fa9a9cdf355f5eea4e948b5ad4ac8471e6fc6a83868ffc3f4d4a7e335": "Crop of the UCR archive, series of 46 values",
    "9d74032e70292b614fdd6589f166359393d5f48e9c8ea56c414e2442a721d911": "Crop by 500 random convolutions, 1,000 values",
    "53b8d63a7b1e55bfd16fa6504f5fa6ff73c2d8d6ca95b29703b34f104b224f2f": "descriptions of Debian packages, 384 values",
    "75340659457151bcb098dae3cd67f8ea022568c0ffe0d3075fb238b799f944d2": (
        "a fifth of CIFAR-10 by EfficientNet-Lite0, 1,280 values"
    ),
}
HEADS = ["folder", "data", "runs", "share of the stream", "accuracy on", "network", "memory", "seeds"]


def index(root: Path) -> str:
    """A line for each folder and data set, and what all runs were made with."""
    body, hosts = [], []
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        groups: dict[str, list[dict[str, Any]]] = {}
        for run in _runs(folder):
            groups.setdefault(_data(run), []).append(run)
            hosts.append(run["host"])
        body += [[f"`{folder.name}`", name, str(len(group)), *_facts(group)] for name, group in sorted(groups.items())]
    made = [f"{name} {_listed(host[name] for host in hosts)}" for name in ("device", "threads", "torch", "python")]
    return "\n".join([rows(HEADS, body), "", f"All of them: {', '.join(made)}."])


def _runs(folder: Path) -> list[dict[str, Any]]:
    """Stored results, and studies that store a run as a file of its own; measurements of time are no runs."""
    found = [json.loads(path.read_text()) for path in (*folder.rglob("result.json"), *folder.glob("*.json"))]
    return [values for values in found if "config" in values]


def _data(run: dict[str, Any]) -> str:
    return DATA.get(run["data"]["sha256"], str(run["config"]["stream"]))


def _facts(runs: list[dict[str, Any]]) -> list[str]:
    """What follows the data and the number of runs in HEADS."""
    configs = [run["config"] for run in runs]
    memories = {config["settings"].get("memory") for config in configs} - {None}  # fine-tuning and IID have none
    return [
        _listed(f"{100 * config['fraction']:g}%" for config in configs),
        _listed("held-back training samples" if config["validate"] else "test samples" for config in configs),
        _listed(config["net"] for config in configs),
        _listed(memories),
        _listed(config["seed"] for config in configs),
    ]


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, sorted(set(values)))) or "-"
