"""What a run measured, as plain data that survives JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onepass.bench import metrics
from onepass.bench.run_config import RunConfig

WINDOW = 10  # batches of which a prequential figure is the sum


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
