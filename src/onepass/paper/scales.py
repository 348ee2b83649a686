"""How much of the paper's protocol is kept, and which part of a table is wanted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from onepass.bench.run_config import RunConfig
from onepass.config import ReplayConfig, unknown
from onepass.data.catalog import canonical as stream_name
from onepass.data.catalog import suited
from onepass.errors import UsageError
from onepass.methods.registry import canonical, method_class


@dataclass(frozen=True)
class Scale:
    """How much of the paper's protocol is kept."""

    runs: int
    net: str = ""  # the stream's
    fraction: float = 1.0
    stream: str = ""  # in place of every data set
    memory: float = 1.0  # share of the paper's


SCALES = {
    "paper": Scale(10),
    "slim": Scale(3, "slim-resnet18"),
    "small": Scale(3, "slim-resnet18", 0.2),
    "digits": Scale(3, "", 1.0, "digits", 0.1),
    "tiny": Scale(2, "", 0.2, "digits", 0.1),
}


@dataclass(frozen=True)
class Selection:
    """The scale, and what of an experiment is wanted; empty means all."""

    scale: str = "paper"
    stream: str = ""
    only: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    memory: tuple[int, ...] = ()
    runs: int = 0

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise unknown("scale", self.scale, SCALES, "allowed")
        if self.runs < 0:
            raise UsageError(f"--runs {self.runs}: give at least 1")
        object.__setattr__(self, "methods", tuple(map(canonical, self.methods)))
        object.__setattr__(self, "stream", stream_name(self.stream) if self.stream else "")

    def streams(self, named: Iterable[str]) -> list[tuple[str, str]]:
        """Pairs of the paper's data set and the stream that stands for it here."""
        stand_in, names = self.stream or SCALES[self.scale].stream, list(named)
        if not stand_in:
            return [(name, name) for name in names]
        return [(stand_in if stand_in in names else names[0], stand_in)]  # one stream stands for all: each run once

    def faithful(self, named: Iterable[str]) -> bool:
        """Whether data sets and memories are the paper's: only then may its figures stand beside ours."""
        return SCALES[self.scale].memory == 1 and all(paper == stream for paper, stream in self.streams(named))

    @property
    def judged(self) -> bool:
        """Whether the paper's claims can be tested: on the digits commands are seen to work."""
        return not SCALES[self.scale].stream

    def about(self, named: Iterable[str], memory: int = 0) -> str:
        """What stands for what, and how much of the paper's protocol is kept: part of a table's title."""
        pairs, scale = self.streams(named), SCALES[self.scale]
        said = [stream if stream == paper else f"{stream} in place of {paper}" for paper, stream in pairs]
        said += dict.fromkeys(scale.net or suited(stream).net for _, stream in pairs)
        said.append("whole stream" if scale.fraction == 1 else f"{100 * scale.fraction:g} % of the stream")
        if memory:
            said.append(f"memory {self.size(memory)}")
        elif scale.memory < 1:
            said.append(f"memories of {100 * scale.memory:g} %")
        return ", ".join(said)

    def configs(self, method: str, stream: str, memory: int, **more: Any) -> tuple[RunConfig, ...]:
        """The runs of one cell, a seed each."""
        scale = SCALES[self.scale]
        has_memory = issubclass(method_class(method).Config, ReplayConfig)
        settings = {**({"memory": self.size(memory)} if has_memory else {}), **more.pop("settings", {})}
        first = RunConfig(method, stream, net=scale.net, fraction=scale.fraction, settings=settings, **more)
        return tuple(replace(first, seed=seed) for seed in range(self.runs or scale.runs))

    def size(self, memory: int) -> int:
        return max(1, round(memory * SCALES[self.scale].memory))

    def wants(self, method: str, memory: int) -> bool:
        return (not self.methods or method in self.methods) and (not self.memory or memory in self.memory)
