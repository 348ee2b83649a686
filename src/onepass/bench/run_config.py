"""What a run is asked to do, as plain data that survives JSON. Importing it does not import torch.

Flags, their help, the store's keys and what a table may not mix all come from the options below: a new one is a line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.bench import task_list
from onepass.bench.presets import configured
from onepass.bench.scenarios import SCENARIOS, check_scenario
from onepass.config import Settings, check_options, foreign_config, option, options, stored_options
from onepass.data.catalog import PATHS, STREAMS, canonical, find_stream, is_path, suited
from onepass.errors import UsageError
from onepass.methods.registry import METHODS, is_reference, method_class
from onepass.methods.registry import canonical as canonical_method
from onepass.names import AUGMENTATION_NAMES, NET_NAMES

if TYPE_CHECKING:
    from onepass.bench.stream import StreamConfig


@dataclass(frozen=True)
class RunConfig:
    """All that decides a run's numbers. `settings` are the method's own: its whole config, or a mapping of those
    that are to differ from the stream's preset and the method's defaults.

    Empty or 0 means the stream's or the method's own: its network, its number of tasks, its scenario, its image size.
    """

    method: str
    stream: str = option("digits", f"{', '.join(STREAMS)}, or a path to {PATHS}")
    seed: int = option(0, "first seed; equal seeds mean equal streams", low=0)
    net: str = option("", f"{', '.join(NET_NAMES)}, or MODULE:FACTORY (default: the stream's)")
    batch: int = option(10, "new samples in each step", low=1)
    tasks: int = option(
        0, "number of tasks (default: the stream's, as in the paper; domain-incremental: one for each domain)", low=1
    )
    scenario: str = option(
        "",
        f"{', '.join(SCENARIOS)}, such as i-blurry-50-10 or gradual-30 (default: the method's, or the stream's)",
    )
    class_order: str = option(
        "shuffled",
        "shuffled (by the seed), fixed, every class as a,b,c, tasks of your own as a,b;c,d, or a .json file of them; "
        "of domains if tasks are made of these",
    )
    fraction: float = option(1.0, "share of every class's training images, above 0", low=0, high=1)
    image_size: int = option(0, "side of the images (default: as they come)", low=1)
    augment: str = option(
        "", f"{', '.join(AUGMENTATION_NAMES)}, or MODULE:FUNCTION (default: the stream's)", since="0.2.0"
    )
    validate: bool = option(False, "measure on a tenth of the training images, held back")
    test_fraction: float = option(
        1.0, "share of every class's test images that is measured, above 0", low=0, high=1, since="0.2.0"
    )
    stream_speed: float = option(
        0.0,
        "batches that come in the time of an ER step, by FLOPs; a slower method misses some (default: it waits)",
        low=0,
        since="0.2.0",
    )
    anytime: int = option(
        0,
        "also measure every so many steps, on the first 100 test images of each class (default: after tasks only)",
        low=1,
        measure=True,
        since="0.1.0",
    )
    prequential: bool = option(False, "also predict each batch before it is learned", measure=True, since="0.1.0")
    settings: Settings | Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from onepass.learner.net import check_net

        check_options(self)
        for name in ("fraction", "test_fraction"):
            if getattr(self, name) == 0:
                raise UsageError(f"{name}=0: must be above 0")
        object.__setattr__(self, "method", canonical_method(self.method))
        object.__setattr__(self, "stream", canonical(self.stream))
        if isinstance(self.settings, Mapping):
            object.__setattr__(self, "settings", configured(self.method, self.stream, self.settings))
        if not isinstance(self.settings, Settings):
            raise UsageError(f"settings: expected a mapping or a Config, got {type(self.settings).__name__}")
        if not self.learner_config.foreign and type(self.settings) is not method_class(self.method).Config:
            raise UsageError(f"settings of {type(self.settings).__name__}: {self.method} needs its own Config")
        self._list_tasks()
        stream = find_stream(self.stream)
        if self.method in METHODS and METHODS[self.method].net and ":" not in self.net:
            object.__setattr__(
                self, "net", METHODS[self.method].net
            )  # ours start untrained: of no use where they stay so
        scenario = METHODS[self.method].scenario if is_reference(self.method) else stream.scenario
        object.__setattr__(self, "scenario", self.scenario or scenario)
        each_domain = self.scenario == "domain-incremental" and is_path(self.stream)  # how many there are, data tell
        net = self.net or suited(self.stream).net  # only where none is named: what is stored names no file to open
        for name, default in (("net", net), ("tasks", 0 if each_domain else stream.n_tasks)):
            object.__setattr__(self, name, getattr(self, name) or default)
        check_net(self.net)
        check_scenario(self.scenario)

    def _list_tasks(self) -> None:
        """Where the class order lists tasks, what it says and not the file that says it: the key comes from this."""
        object.__setattr__(self, "class_order", task_list.canonical(self.class_order))
        listed = task_list.parse(self.class_order)
        if listed is None:
            return
        if self.tasks not in (0, len(listed)):
            raise UsageError(f"tasks={self.tasks}: the class order lists {len(listed)} tasks; leave one of the two out")
        object.__setattr__(self, "tasks", len(listed))

    @classmethod
    def from_stored(cls, values: Mapping[str, Any], allow: Collection[str] = ()) -> RunConfig:
        """As it was stored; of a method of one's own that is not allowed as plain data, for nothing is imported."""
        method, settings = values["method"], values["settings"]
        if str(values.get("class_order", "")).endswith(".json"):  # stored are contents: no file is read for a stranger
            raise ValueError("its class order names a file")
        if ":" in method and method not in allow and not method.startswith("onepass."):
            settings = foreign_config(settings)
        return cls(**{**values, "settings": settings})

    @property
    def stream_label(self) -> str:
        """The stream's name as part of a file's: of a path only its last word."""
        return Path(self.stream).name

    @property
    def learner_config(self) -> Settings:
        assert isinstance(self.settings, Settings)
        return self.settings

    @property
    def code(self) -> tuple[str, ...]:
        """The names of what may be code of one's own."""
        return self.method, self.net, self.augment

    @property
    def average(self) -> float | None:
        """The decay of the average of the weights that predicts; None if none is kept."""
        decay: float | None = getattr(self.learner_config, "average", None)  # statistics have no weights to average
        return decay

    @property
    def stream_config(self) -> StreamConfig:
        from onepass.bench.stream import StreamConfig

        return StreamConfig(
            self.scenario, self.tasks, self.class_order, self.fraction, self.validate, self.test_fraction
        )

    def on(self, device: str) -> RunConfig:
        """The run as it is made on a device: a precision that was left open is decided."""
        if getattr(self.settings, "precision", "") != "auto":
            return self
        from onepass.learner.precision import settled

        return replace(self, settings=settled(self.learner_config, device))

    @property
    def key(self) -> str:
        """A name for everything but the seed: equal settings, equal key."""
        values = {"method": self.method, **stored_options(self), "settings": stored_options(self.settings)}
        del values["seed"]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]

    def to_json(self) -> dict[str, Any]:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {**values, "settings": self.learner_config.to_json()}


MEASURES = tuple(name for name, entry in options(RunConfig).items() if entry.metadata["measure"])
# What must be the same in all rows of a table; references have a scenario of their own.
SHARED = tuple(name for name in options(RunConfig) if name not in ("seed", "scenario", *MEASURES))
