"""Names that tell groups of stored runs apart: what differs from the defaults, in short words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from onepass.bench.presets import configured
from onepass.bench.result import Result
from onepass.bench.run_config import SHARED, RunConfig
from onepass.config import options
from onepass.data.catalog import find_stream, is_path
from onepass.methods.registry import METHODS, is_reference, trains

Group = list[Result]  # runs that differ in their seed alone
ALIASES = {"average": "avg", "new_weight": "new w", "replay_weight": "replay w", "subspace": "k"}
LONGEST_ORDER = 40  # letters of a class order that stand in a title


def title(method: str) -> str:
    return METHODS[method].title if method in METHODS else method


def named(groups: list[Group]) -> list[tuple[str, str, Group]]:
    """Groups with the names of their series and stream, which tell apart what must not be taken for one."""
    configs = [group[0].config for group in groups]
    paths = {config.stream: config.stream_label for config in configs}
    everywhere = common(configs)
    found = []
    for config, group in zip(configs, groups, strict=True):
        near = [other for other in configs if other.stream == config.stream]
        nets = {other.net for other in near if trains(other.method)}
        beside_one = nets.pop() if len(nets) == 1 else ""  # what trains no network stands beside the one that there is
        label = row_label(config, everywhere, [other for other in near if other.method == config.method])
        clash = list(paths.values()).count(config.stream_label) > 1
        place = config.stream if clash else config.stream_label
        found.append((label, ", ".join([place, *_conditions(config, beside_one, near)]), group))
    order = {name: place for place, name in enumerate(METHODS)}
    return sorted(found, key=lambda one: (order.get(one[2][0].config.method, len(order)), by_numbers(one[0])))


def _conditions(config: RunConfig, net: str, near: Sequence[RunConfig]) -> list[str]:
    """Network and share of the stream, and what else differs from the usual protocol or from runs nearby."""
    facts = shared(config, net)
    network = facts["net"] if net or trains(config.method) else "no network trained"
    others = [*protocol_words(config, net), *differing(facts, [shared(other, net) for other in near])]
    words = [network, spelt("fraction", config.fraction), *(word for word in others if word != facts["net"])]
    return list(dict.fromkeys(words))


def row_label(config: RunConfig, everywhere: dict[str, Any], rivals: Sequence[RunConfig] = ()) -> str:
    """A method with those of its settings that are not the defaults and not the same `everywhere`."""
    if config.learner_config.foreign:  # its defaults are in code that is not imported
        words = differing(own(config), [own(other) for other in rivals])
    else:
        words = [spelt(name, value) for name, value in changed(config).items() if everywhere.get(name) != value]
    return ", ".join([title(config.method), *words])


def changed(config: RunConfig) -> dict[str, Any]:
    """The settings that differ from what they are on this stream when nothing is said."""
    if config.learner_config.foreign:
        return {}
    usual = configured(config.method, config.stream, {}).to_json()
    return {name: value for name, value in own(config).items() if value != usual[name]}


def common(configs: Sequence[RunConfig]) -> dict[str, Any]:
    """The settings that several methods all have otherwise than by default, and alike: they belong into the title."""
    trained = [config for config in configs if trains(config.method)]
    if len({config.method for config in trained}) < 2:
        return {}
    first, *rest = (changed(config) for config in trained)
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in rest)}


def differing(values: dict[str, Any], rivals: list[dict[str, Any]]) -> list[str]:
    return [spelt(name, value) for name, value in values.items() if any(rival[name] != value for rival in rivals)]


def shared(config: RunConfig, net: str = "") -> dict[str, Any]:
    """What must be the same for all that are compared; a method that trains no network has the given one's place."""
    scenario = find_stream(config.stream).scenario if is_reference(config.method) else config.scenario
    facts = {**{name: getattr(config, name) for name in SHARED if name != "stream"}, "scenario": scenario}
    return facts if trains(config.method) or not net else {**facts, "net": net}


def protocol_words(config: RunConfig, net: str = "") -> list[str]:
    """All that was done otherwise than on the whole stream with its own network, as a title says it."""
    stream = find_stream(config.stream)
    usual = {name: entry.default for name, entry in options(RunConfig).items()}
    usual |= {"tasks": stream.n_tasks, "scenario": stream.scenario, "net": stream.net}
    facts = shared(config, net)
    if is_path(config.stream):  # data of one's own have no usual network and tasks
        del facts["net"], facts["tasks"]
    return [spelt(name, value) for name, value in facts.items() if value != usual[name]]


def own(config: RunConfig) -> dict[str, Any]:
    """What may be special to a method; its memory has a place of its own, and what is measured changes no row."""
    return {name: value for name, value in config.learner_config.to_json().items() if name != "memory"}


def by_numbers(text: str) -> list[tuple[float, str]]:
    """Sorts gamma 0.5 before gamma 0.75 before gamma 10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(float(part), "") if place % 2 else (0.0, part) for place, part in enumerate(parts)]


def spelt(name: str, value: Any) -> str:
    words = ALIASES.get(name, name.replace("_", " "))
    if name == "fraction":
        return "whole stream" if value == 1 else f"{100 * value:g} % of the stream"
    if name == "test_fraction":
        return "all test images" if value == 1 else f"{100 * value:g} % of the test images"
    if name == "validate":
        return "measured on held-back training images" if value else "measured on test images"
    if name in ("net", "scenario"):
        return str(value)
    if name == "tasks":
        return f"{value} tasks"
    if name == "class_order" and len(str(value)) > LONGEST_ORDER:
        return "class order of its own"
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
