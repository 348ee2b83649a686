"""Names that tell groups of stored runs apart: of a method's settings, and of what was done on a stream."""

from __future__ import annotations

import re
from typing import Any

from onepass.bench.result import Result
from onepass.bench.run_config import SHARED, RunConfig
from onepass.data.catalog import find_stream
from onepass.methods.registry import METHODS, is_reference, trains
from onepass.report import summary as report

Group = list[Result]  # runs that differ in their seed alone


def named(groups: list[Group]) -> list[tuple[str, str, Group]]:
    """Groups with the names of their series and stream, which tell apart what must not be taken for one."""
    configs = [group[0].config for group in groups]
    paths = {config.stream: config.stream_label for config in configs}
    found = []
    for config, group in zip(configs, groups, strict=True):
        near = [other for other in configs if other.stream == config.stream]
        nets = {other.net for other in near if trains(other.method)}
        beside_one = nets.pop() if len(nets) == 1 else ""  # what trains no network stands beside the one that there is
        beside = {"average": config.average}  # tells nothing from other panels
        rivals = [
            own(other) | ({} if panel(other) == panel(config) else beside)
            for other in near
            if other.method == config.method
        ]
        label = ", ".join([report.title(config.method), *differing(own(config), rivals)])
        clash = list(paths.values()).count(config.stream_label) > 1
        place = config.stream if clash else config.stream_label
        differs = differing(shared(config, beside_one), [shared(other, beside_one) for other in near])
        found.append((label, ", ".join([place, *differs]), group))
    order = {name: place for place, name in enumerate(METHODS)}
    return sorted(found, key=lambda one: (order.get(one[2][0].config.method, len(order)), by_numbers(one[0])))


def panel(config: RunConfig) -> tuple[dict[str, Any], int]:
    return shared(config), getattr(config.settings, "memory", 0)


def differing(values: dict[str, Any], rivals: list[dict[str, Any]]) -> list[str]:
    return [spelt(name, value) for name, value in values.items() if any(rival[name] != value for rival in rivals)]


def shared(config: RunConfig, net: str = "") -> dict[str, Any]:
    """What must be the same for all that are compared; a method that trains no network has the given one's place."""
    scenario = find_stream(config.stream).scenario if is_reference(config.method) else config.scenario
    facts = {**{name: getattr(config, name) for name in SHARED if name != "stream"}, "scenario": scenario}
    return facts if trains(config.method) or not net else {**facts, "net": net}


def own(config: RunConfig) -> dict[str, Any]:
    """What may be special to a method; its memory has a place of its own, and what is measured changes no row."""
    return {name: value for name, value in config.learner_config.to_json().items() if name != "memory"}


def by_numbers(text: str) -> list[tuple[float, str]]:
    """Sorts gamma 0.5 before gamma 0.75 before gamma 10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(float(part), "") if place % 2 else (0.0, part) for place, part in enumerate(parts)]


def spelt(name: str, value: Any) -> str:
    words = name.replace("_", " ")
    if isinstance(value, bool) or (name == "average" and value is None):
        return words if value else f"no {words}"
    return f"{words} {text(value)}"


def text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(spelt(name, inner) for name, inner in value.items())
    if isinstance(value, list):
        return (" | " if value and isinstance(value[0], list) else ", ").join(map(text, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "default"
    return f"{value:g}" if isinstance(value, float) else str(value)
