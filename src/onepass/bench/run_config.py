"""What a run is asked to do, as plain data that survives JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from onepass.bench.presets import preset
from onepass.bench.stream import StreamConfig, check_scenario
from onepass.config import LearnerConfig, unknown
from onepass.data.catalog import canonical, find_stream
from onepass.errors import UsageError
from onepass.learner.net import NETS
from onepass.methods.registry import METHODS, method_class
from onepass.methods.registry import canonical as canonical_method


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
