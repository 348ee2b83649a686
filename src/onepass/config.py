"""Options as fields of frozen dataclasses: help, limits and defaults in one line each, for methods and for runs."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeVar

from onepass.errors import UsageError

Optimizer = Literal["sgd", "adam", "adamw"]
C = TypeVar("C", bound="Settings")


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    ablation: bool = False,
    measure: bool = False,
    since: str = "",
    before: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """A dataclass field with its help text and the closed range of its values, in which the default need not lie.

    An ablation makes another method. A measure of a run changes nothing else of it. `since` is the version that brought
    the option, if runs were stored before it: at its default, it leaves their keys as they were. `before` has what
    values were called in 0.1.0, and what they are called now: the old words are still taken, and stand in keys.
    """
    limits = {"low": low, "high": high}
    return field(
        default=default,
        metadata={"help": help, **limits, "ablation": ablation, "measure": measure, "since": since, "before": before},
    )


def options(config: Any) -> dict[str, dataclasses.Field[Any]]:
    """The options of a dataclass or of one of its instances, by name."""
    return {entry.name: entry for entry in dataclasses.fields(config) if "help" in entry.metadata}


def check_options(config: Any) -> None:
    """Refuse values of another type or outside of their limits; 1 and 1.0 become one value, one text."""
    kinds = kinds_of(type(config))  # type: ignore[arg-type]  # dataclasses have a hash here
    for name, entry in options(config).items():
        value = getattr(config, name)
        if isinstance(value, str) and value in entry.metadata["before"]:
            value = entry.metadata["before"][value]
            object.__setattr__(config, name, value)
        _check(entry, kinds[name], value)
        if isinstance(value, int) and plain(kinds[name]) is float:
            object.__setattr__(config, name, float(value))


def stored_options(config: Any) -> dict[str, Any]:
    """The values by which a stored run is known: later options take part once they are set."""
    values = {name: (getattr(config, name), entry) for name, entry in options(config).items()}
    return {
        name: next((old for old, now in entry.metadata["before"].items() if now == value), value)
        for name, (value, entry) in values.items()
        if not (entry.metadata["since"] and value == entry.default)
    }


def unknown(kind: str, given: str, known: Iterable[str], see: str) -> UsageError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = list(known)
    near = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(repr(name) if "," in name else name for name in names)
    return UsageError(f"unknown {kind} {given!r}{hint} ({see}: {listed})")


@dataclass(frozen=True)
class Settings:
    """The settings of a method, of one that makes no gradient steps: those have a LearnerConfig."""

    foreign: ClassVar[bool] = False  # whether they are those of a method that was not imported

    def __post_init__(self) -> None:
        check_options(self)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls: type[C], values: Mapping[str, Any]) -> C:
        names = [entry.name for entry in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise unknown("setting", name, names, "its settings")
        return cls(**values)


@dataclass(frozen=True)
class LearnerConfig(Settings):
    """The settings that every method has that learns by gradient steps; one of your own adds its own in a subclass."""

    lr: float = option(0.1, "learning rate", low=0.0)
    scope: Literal["seen", "all"] = option("seen", "classes in the training softmax: those seen so far or all")
    average: float | None = option(
        None,
        "also keep an average of the weights with this decay a step, and predict by it (0.98 is usual)",
        low=0,
        high=1,
        since="0.1.0",
    )
    optimizer: Optimizer = option("sgd", "how the weights are stepped", since="0.2.0")
    momentum: float = option(0.0, "momentum of sgd", low=0, high=1, since="0.2.0")
    weight_decay: float = option(0.0, "weight decay", low=0, since="0.2.0")
    updates: int = option(1, "gradient steps on each new batch, each with a replay of its own", low=1, since="0.2.0")
    expert: bool = option(
        False, "also count all samples in a Patch-LDA (vectors: SLDA), and add its log-probabilities", since="0.2.0"
    )
    precision: Literal["fp32", "bf16", "auto"] = option(
        "fp32", "in which the network's body computes; auto: bf16 where the device has it", since="0.2.0"
    )
    compile: bool = option(
        False, "pass the network's body through torch.compile; needs a C++ compiler, or a GPU", since="0.2.0"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum and self.optimizer != "sgd":
            raise UsageError(f"momentum={self.momentum:g} is of sgd: {self.optimizer} has moments of its own")


@dataclass(frozen=True)
class ReplayConfig(LearnerConfig):
    """The settings that every method with a memory has."""

    memory: int = option(1000, "samples the memory can hold", low=1)
    replay: int = option(10, "memory samples replayed in each step", low=1)


MOST_SETTINGS = 200
PLAIN = (str, int, float, bool, type(None))


def foreign_config(values: Mapping[str, Any]) -> Settings:
    """The settings of a method whose code is not to be imported, as plain data: they can be read, not built with."""
    bases: list[type[Settings]] = [ReplayConfig, LearnerConfig, Settings]
    base = next(base for base in bases if _always_stored(base) <= values.keys())
    names = tuple(sorted(values.keys() - options(base).keys()))
    wrong = [name for name in names if hasattr(base, name) or name.startswith("_") or not name.isidentifier()]
    wrong += [name for name, value in values.items() if not isinstance(value, PLAIN)]
    if wrong or len(values) > MOST_SETTINGS:
        raise ValueError("its settings are not plain names with numbers, words or truths")
    return _foreign_class(base, names)(**values)  # type: ignore[arg-type]  # classes have a hash


def _always_stored(config: Any) -> set[str]:
    return {name for name, entry in options(config).items() if not entry.metadata["since"]}


@functools.cache
def _foreign_class(base: Any, names: tuple[str, ...]) -> type[Settings]:
    entries = [(name, Any, option(None, "a setting of a method that is not imported here")) for name in names]
    made: type[Settings] = dataclasses.make_dataclass(
        "ForeignConfig", entries, bases=(base,), frozen=True, namespace={"foreign": True}
    )
    return made


@dataclass(frozen=True)
class CombineConfig(ReplayConfig):
    """What methods have that learn new and replayed samples by two losses of one kind."""

    combine: Literal["mean", "sum"] = option(
        "mean", "one mean over new and replayed samples (eq. 2), or the sum of their two means, twice the step"
    )


@functools.cache
def kinds_of(config: Any) -> dict[str, Any]:
    """The type of each setting; worked out once, since tables make thousands of configs."""
    return typing.get_type_hints(config)


def choices(kind: Any) -> tuple[str, ...]:
    """The values of a Literal type; none for other types."""
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def plain(kind: Any) -> type:
    """int for `int | None`, str for a Literal, the type itself else."""
    if choices(kind):
        return str
    inner = [part for part in typing.get_args(kind) if part is not type(None)]
    return inner[0] if inner else kind  # type: ignore[no-any-return]  # typing knows no type for types


def _check(entry: dataclasses.Field[Any], kind: Any, value: Any) -> None:
    name = entry.name
    if kind is Any or (value is None and type(None) in typing.get_args(kind)):
        return
    limits = value != entry.default  # which means what the help text says it means
    if choices(kind):
        if value not in choices(kind):
            raise UsageError(f"{name}={value!r}: allowed are {', '.join(choices(kind))}")
        return
    wanted: Any = plain(kind)
    fits = isinstance(value, (int, float) if wanted is float else wanted)
    if not fits or isinstance(value, bool) != (wanted is bool):
        raise UsageError(f"{name}={value!r}: needs a value of type {wanted.__name__}")
    if wanted is float and not math.isfinite(value):
        raise UsageError(f"{name}={value}: must be a finite number")
    if limits:
        check_limits(entry, value)


def check_limits(entry: dataclasses.Field[Any], value: float) -> None:
    name, low, high = entry.name, entry.metadata["low"], entry.metadata["high"]
    too_low, too_high = low is not None and not value >= low, high is not None and not value <= high
    if too_low or too_high:
        top = "" if high is None else f" and at most {high:g}"
        note = "; finetune is the method without a memory" if name == "memory" else ""
        raise UsageError(f"{name}={value}: must be at least {low:g}{top}{note}")
