"""Which stored runs belong together, and which must not stand in one table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from onepass.bench.result import Record, Result
from onepass.bench.run_config import MEASURES, SHARED, RunConfig
from onepass.errors import UsageError
from onepass.methods.registry import is_reference, trains

BY_SEED = ("seed", "tasks", "class_order", "domains", "bytes")  # of a result's protocol: they may differ


def by_method(results: Iterable[Result]) -> dict[str, list[Result]]:
    """The runs of each method, each once."""
    groups: dict[str, list[Result]] = {}
    for result in deduplicate(results):
        groups.setdefault(result.config.method, []).append(result)
    return groups


def deduplicate(results: Iterable[Result]) -> list[Result]:
    """A run that was made twice, the second time measuring more, counts once."""
    runs: dict[RunConfig, Result] = {}
    for result in results:
        config = unmeasured(result.config)
        runs[config] = _joined(runs[config], result) if config in runs else result
    return list(runs.values())


def unmeasured(config: RunConfig) -> RunConfig:
    """The run whatever was measured on its way, which changes nothing else of it."""
    unset: dict[str, Any] = {name: type(getattr(config, name))() for name in MEASURES}
    return replace(config, **unset)


def _joined(result: Result, other: Result) -> Result:
    """One run, made twice: what the first did not measure is the second's."""
    missing = [entry.name for entry in fields(Record) if not getattr(result, entry.name)]
    asked = {name: getattr(other.config, name) for name in MEASURES if name in missing}
    measured = {name: getattr(other, name) for name in missing}
    return replace(result, config=replace(result.config, **asked), **measured)


def check_one_protocol(results: Sequence[Result]) -> None:
    """Figures of different protocols must not stand in one table: refuse, and say what differs for whom."""
    if not results:
        raise UsageError("no results to show: train some first (onepass compare --help)")
    problems = _differing([(result.config.method, _shared(result)) for result in results])
    for method, group in by_method(results).items():
        own = [(f"seed {result.config.seed}", _own(result)) for result in group]
        problems += [f"for {method}, {problem}" for problem in _differing(own)]
    _refuse(problems)


def check_alike(places: Mapping[str, Sequence[Result]]) -> None:
    """Runs of one place in a table must have one protocol, and all runs on a stream the same data."""
    problems = []
    for place, group in places.items():
        own = [
            (f"seed {one.config.seed}", {k: v for k, v in one.protocol.items() if k not in BY_SEED}) for one in group
        ]
        problems += [f"for {place}, {problem}" for problem in _differing(own)]
    results = [one for group in places.values() for one in group]
    data = [(one.config.method, {f"{k}, {one.config.stream}": v for k, v in _data(one).items()}) for one in results]
    _refuse(problems + _differing(data))


def _data(result: Result) -> dict[str, str]:
    return {"sha256 of the data": result.data["sha256"][:12]} if "sha256" in result.data else {}


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        what = "; ".join(problems)
        raise UsageError(f"runs of several protocols cannot stand in one table: {what}. Give runs of one protocol only")


def _shared(result: Result) -> dict[str, Any]:
    """What must be the same in all rows."""
    config = result.config
    facts = {name: getattr(config, name) for name in SHARED}
    if not is_reference(config.method):
        facts["scenario"] = config.scenario
    if not trains(config.method):
        del facts["net"]
    if hasattr(config.settings, "memory"):
        facts["memory"] = config.settings.memory
    return facts | _data(result)


def _own(result: Result) -> dict[str, Any]:
    """What must be the same in all runs of one method, beside that."""
    config = result.config
    facts = {"scenario": config.scenario, **result.protocol, **config.learner_config.to_json()}
    elsewhere = {*BY_SEED, *_shared(result)} - {"augment"}  # which it was: asked for may be the stream's own
    return {name: value for name, value in facts.items() if name not in elsewhere}


def _differing(facts: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """A phrase for each name that has several values; facts are who and what."""
    problems = []
    for name in dict.fromkeys(name for _, values in facts for name in values):
        holders: dict[str, tuple[str, list[str]]] = {}
        for who, values in facts:
            if name in values:
                text = values[name] if isinstance(values[name], str) else json.dumps(values[name])
                same = json.dumps(json.loads(json.dumps(values[name]), parse_int=float))  # 0 and 0.0 are one
                holders.setdefault(same, (text, []))[1].append(who)
        if len(holders) > 1:
            said = (f"{text} ({', '.join(dict.fromkeys(who))})" for text, who in holders.values())
            problems.append(f"{name} is {' and '.join(said)}")
    return problems


def hosts(results: Sequence[Result]) -> list[str]:
    """What differs between runs of one table though it is no part of their protocol."""
    notes = []
    by = {"torch": "from torch {}", "onepass": "from onepass {}", "device": "on {}", "threads": "on {} threads"}
    for name, what in by.items():
        found = dict.fromkeys(str(result.host[name]) for result in results if name in result.host)
        if len(found) > 1:
            notes.append("runs " + what.format(" and ".join(found)))
    unsaid = sum(not result.protocol for result in results)
    if 0 < unsaid < len(results):
        notes.append(f"{unsaid} of {len(results)} runs are of a version that stored settings, not the whole protocol")
    return notes
