"""What a run is asked to do and what it measured, as plain data that survives JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from onepass.bench import metrics
from onepass.bench.presets import preset
from onepass.bench.stream import StreamConfig, check_scenario
from onepass.config import LearnerConfig, unknown
from onepass.data.catalog import canonical, find_stream
from onepass.errors import UsageError
from onepass.learner.net import NETS
from onepass.methods.registry import METHODS, method_class
from onepass.methods.registry import canonical as canonical_method

WINDOW = 10  # batches of which a prequential figure is the sum


@dataclass(frozen=True)
class RunConfig:
    """All that decides a run's numbers. `settings` are the method's own: its whole config, or a mapping of those
    that are to differ from the stream's preset and the method's defaults.

    Empty or 0 means the stream's or the method's own: its network, its number of tasks, its scenario, its image size.
    `anytime` and `prequential` only measure more: every so many steps, and each batch before it is learned.
    """

    method: str
    stream: str = "digits"
    seed: int = 0
    net: str = ""
    batch: int = 10
    tasks: int = 0
    scenario: str = ""
    class_order: str = "shuffled"
    fraction: float = 1.0
    image_size: int = 0
    validate: bool = False
    anytime: int = 0
    prequential: bool = False
    settings: LearnerConfig | Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", canonical_method(self.method))
        object.__setattr__(self, "stream", canonical(self.stream))
        config_class = method_class(self.method).Config
        if isinstance(self.settings, Mapping):
            settings = {**preset(self.stream, self.method), **self.settings}
            object.__setattr__(self, "settings", config_class.from_json(settings))
        if type(self.settings) is not config_class:
            raise UsageError(f"settings of {type(self.settings).__name__}: {self.method} needs its own Config")
        stream = find_stream(self.stream)
        scenario = METHODS[self.method].scenario if self.method in METHODS else "class-incremental"
        for name, default in (("net", stream.net), ("tasks", stream.n_tasks), ("scenario", scenario)):
            object.__setattr__(self, name, getattr(self, name) or default)
        if self.net not in NETS:
            raise unknown("net", self.net, NETS, "allowed")
        object.__setattr__(self, "fraction", float(self.fraction))  # equal runs, equal keys
        check_scenario(self.scenario)
        for name, low in (("batch", 1), ("tasks", 1), ("seed", 0), ("image_size", 0), ("anytime", 0)):
            if getattr(self, name) < low:
                raise UsageError(f"{name}={getattr(self, name)}: must be at least {low}")
        if not 0 < self.fraction <= 1:
            raise UsageError(f"fraction={self.fraction}: must be above 0 and at most 1")

    @property
    def stream_label(self) -> str:
        """The stream's name as part of a file's: of a path only its last word."""
        return Path(self.stream).name

    @property
    def learner_config(self) -> LearnerConfig:
        assert isinstance(self.settings, LearnerConfig)
        return self.settings

    @property
    def stream_config(self) -> StreamConfig:
        return StreamConfig(self.scenario, self.tasks, self.class_order, self.fraction, self.validate)

    def to_json(self) -> dict[str, Any]:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {**values, "settings": self.learner_config.to_json()}


@dataclass(frozen=True)
class Result:
    """What a run measured. accuracy_matrix[i][j]: accuracy on task j after task i, in [0, 1]."""

    config: RunConfig
    accuracy_matrix: list[list[float]]
    steps: int
    seconds: float
    fingerprint: str  # of the learner's final state: equal bits, equal fingerprints
    data: dict[str, Any]  # how many images, of which size, and a hash of all of them
    host: dict[str, Any]
    protocol: dict[str, Any] = field(default_factory=dict)  # what the stream, the network and the optimizer were
    accuracy_matrix_average: list[list[float]] = field(default_factory=list)  # the same by averaged weights, if kept
    anytime: list[dict[str, Any]] = field(default_factory=list)  # {"step", "accuracy": by task so far}
    prequential: list[list[int]] = field(default_factory=list)  # [right, seen] for each stretch of WINDOW batches
    facts: list[dict[str, Any]] = field(default_factory=list)  # what the learner said of itself after each task
    losses: list[float] = field(default_factory=list)  # of every tenth step

    @property
    def final_accuracy(self) -> float:
        return metrics.final_accuracy(self.accuracy_matrix)

    @property
    def predicted(self) -> list[list[float]]:
        """The accuracies of what `predict` uses: of the average if one was kept."""
        return self.accuracy_matrix_average or self.accuracy_matrix

    @property
    def forgetting(self) -> float | None:
        return metrics.forgetting(self.accuracy_matrix)

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.config.method,
            "stream": self.config.stream,
            "seed": self.config.seed,
            "final_accuracy": self.final_accuracy,
            "forgetting": self.forgetting,
            "forgetting_variant": "chaudhry2018",
            "accuracy_matrix": self.accuracy_matrix,
            "steps": self.steps,
            "seconds": self.seconds,
            "config": self.config.to_json(),
            "fingerprint": self.fingerprint,
            "data": self.data,
            "host": self.host,
            "protocol": self.protocol,
            "accuracy_matrix_average": self.accuracy_matrix_average,
            "anytime": self.anytime,
            "prequential": self.prequential,
            "facts": self.facts,
            "losses": self.losses,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Result:
        config = RunConfig(**values["config"])
        names = ("accuracy_matrix", "steps", "seconds", "fingerprint", "data", "host")
        # Results of older versions have none of these.
        later = ("protocol", "accuracy_matrix_average", "anytime", "prequential", "facts", "losses")
        return cls(
            config, *(values[name] for name in names), **{name: values[name] for name in later if name in values}
        )
