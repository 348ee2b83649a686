"""What a run measured, as plain data that survives JSON."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from onepass.bench import metrics
from onepass.bench.run_config import RunConfig
from onepass.bench.schema import check_fields, conforms
from onepass.bench.upgrade import upgraded

FORMAT = 2
WINDOW = 10  # batches of which a prequential figure is the sum


@dataclass(kw_only=True)
class Record:
    """What a run has measured so far. A new quantity is a line here: it is saved, continued and stored with the rest.

    Accuracies are those of what `predict` answers: by the average of the weights where one is kept (`average`), else by
    the last weights.
    """

    accuracy_matrix: list[list[float]] = field(default_factory=list)  # [i][j]: on task j after task i, in [0, 1]
    accuracy_matrix_last: list[list[float]] = field(default_factory=list)  # by the last weights, if an average predicts
    accuracy_before: list[float] = field(default_factory=list)  # on each task but the first just before it began
    accuracy_untrained: list[float] = field(default_factory=list)  # on the same before the first step
    confusion: list[list[int]] = field(default_factory=list)  # at the end, by class: predicted class, count, ...
    anytime: list[dict[str, Any]] = field(default_factory=list)  # {"step", "accuracy": by task so far}
    prequential: list[list[int]] = field(default_factory=list)  # [right, seen] for each stretch of WINDOW batches
    facts: list[dict[str, Any]] = field(default_factory=list)  # what the learner said of itself after each task
    losses: list[float] = field(default_factory=list)  # of every tenth step
    steps: int = 0
    seconds: float = 0.0  # of the steps


@dataclass(kw_only=True)
class Result(Record):
    """What a run measured, and all that decided it. accuracy_matrix[i][j]: accuracy on task j after task i."""

    config: RunConfig
    fingerprint: str  # of the learner's final state: equal bits, equal fingerprints
    data: dict[str, Any]  # how many images, of which size, and a hash of all of them
    host: dict[str, Any]
    protocol: dict[str, Any] = field(default_factory=dict)  # what the stream, the network and the optimizer were

    @property
    def final_accuracy(self) -> float:
        """Of what `predict` answers after the last task: by the average of the weights if one is kept."""
        return metrics.final_accuracy(self.accuracy_matrix)

    @property
    def final_accuracy_last(self) -> float | None:
        """By the last weights; None where an average predicts and these were not measured."""
        if self.config.average is None:
            return self.final_accuracy
        return metrics.final_accuracy(self.accuracy_matrix_last) if self.accuracy_matrix_last else None

    @property
    def forgetting(self) -> float | None:
        return metrics.forgetting(self.accuracy_matrix)

    @property
    def backward_transfer(self) -> float | None:
        return metrics.backward_transfer(self.accuracy_matrix)

    @property
    def forward_transfer(self) -> float | None:
        """None unless all tasks have the same classes: what is not seen yet is never predicted."""
        return metrics.forward_transfer(self.accuracy_before, self.accuracy_untrained)

    @property
    def class_accuracies(self) -> list[float | None]:
        """Of each class at the end; None for a class without test images, nothing in results of older versions."""
        return metrics.class_accuracies(self.confusion)

    def by_last_weights(self) -> Result:
        """The same run without its average, which changes nothing of its training."""
        if self.config.average is None:
            return self
        if not self.accuracy_matrix_last:
            raise ValueError(f"{self.config.method} seed {self.config.seed} was not measured by its last weights")
        settings: Any = self.config.learner_config
        return replace(
            self,
            config=replace(self.config, settings=replace(settings, average=None)),
            accuracy_matrix=self.accuracy_matrix_last,
            accuracy_matrix_last=[],
            accuracy_before=[],
            accuracy_untrained=[],
            confusion=[],
            anytime=[{"step": line["step"], "accuracy": line["accuracy_last"]} for line in self.anytime],
            prequential=[],
        )

    def to_json(self) -> dict[str, Any]:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {
            "format": FORMAT,
            "method": self.config.method,
            "stream": self.config.stream,
            "seed": self.config.seed,
            "final_accuracy": self.final_accuracy,
            "forgetting": self.forgetting,
            "forgetting_variant": "chaudhry2018",
            **values,
            "config": self.config.to_json(),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], allow: Collection[str] = ()) -> Result:
        """What `to_json` gave, checked. A method of one's own is imported only if it is allowed."""
        values = upgraded(values)
        names = [entry.name for entry in fields(cls) if entry.name != "config"]
        check_fields(cls, values, names)
        known = {name: values[name] for name in names if name in values}
        _check_measures(known)
        return cls(**known, config=RunConfig.from_stored(values["config"], allow))


def _check_measures(values: Mapping[str, Any]) -> None:
    """Refuse what no run measures; ValueError says what."""
    for name in ("accuracy_matrix", "accuracy_matrix_last"):
        matrix = values.get(name, [])
        if [len(row) for row in matrix] != list(range(1, len(matrix) + 1)):
            raise ValueError("its accuracy matrix is not whole")
        _check_shares(value for row in matrix for value in row)
    if not values.get("accuracy_matrix"):
        raise ValueError("it has no accuracies")
    transfers = [values.get(name, []) for name in ("accuracy_before", "accuracy_untrained")]
    if [len(row) for row in transfers] not in ([0, 0], [len(values["accuracy_matrix"]) - 1] * 2):
        raise ValueError("its accuracies before learning are not of each task but the first")
    _check_shares(value for row in transfers for value in row)
    _check_confusion(values.get("confusion", []))
    for line in values.get("anytime", []):
        rows = [line.get("accuracy"), *([line["accuracy_last"]] if "accuracy_last" in line else [])]
        if not conforms(line.get("step"), int) or not all(row and conforms(row, list[float]) for row in rows):
            raise ValueError("an evaluation on its way has no step or no accuracies")
        _check_shares(value for row in rows for value in row)
    if not all(len(pair) == 2 and 0 <= pair[0] <= pair[1] and pair[1] for pair in values.get("prequential", [])):
        raise ValueError("its prequential counts are not of right and seen")
    if not conforms(values["data"].get("sha256", ""), str):
        raise ValueError("the hash of its data is no text")


def _check_confusion(rows: list[list[int]]) -> None:
    for row in rows:
        answers = row[::2]
        ordered = all(a < b for a, b in itertools.pairwise([-1, *answers, len(rows)]))
        if len(row) % 2 or not ordered or not all(count > 0 for count in row[1::2]):
            raise ValueError("its confusion is not of classes and counts")


def _check_shares(values: Iterable[float]) -> None:
    if not all(0 <= value <= 1 for value in values):
        raise ValueError("an accuracy is not between 0 and 1")
