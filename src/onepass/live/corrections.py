"""Forget samples and correct labels: in memories, in the journal and, where a learner can, in what it learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onepass.errors import UsageError
from onepass.learner.batch import Batch
from onepass.learner.contract import BaseLearner
from onepass.live.journal import digest_of
from onepass.live.labels import plain_label
from onepass.live.model import UNNUMBERED, Model, check_ids
from onepass.methods.factory import build
from onepass.seeds import generator

PASSES = 10  # over the memory, to learn anew from it


@dataclass(frozen=True)
class Forgotten:
    """What became of samples that were to be forgotten."""

    forgotten: int  # no longer known, and in no memory
    from_memory: int  # of these were in a memory
    exact: int  # of these nothing is left: the learner is as if it had never seen them, to rounding
    unknown: tuple[str, ...]  # ids that were not known

    @property
    def influenced(self) -> int:
        """Samples that still influence what is predicted, though they are stored nowhere."""
        return self.forgotten - self.exact


def forget(
    model: Model,
    ids: Sequence[str] | None = None,
    x: Tensor | None = None,
    labels: Sequence[Any] | None = None,
    *,
    rebuild: bool = False,
) -> Forgotten:
    """Forget samples by their ids, by giving them again, or both in the same order.

    Learners of statistics need the samples to take them back. Without an id a sample is forgotten by giving it again
    with its label. `rebuild` learns anew from what is left in the memory, so that nothing is influenced any more.
    """
    if ids is None and x is None:
        raise UsageError("Expected ids or samples to forget, got neither.")
    if x is not None:
        check_ids(ids, len(x))
        if labels is not None and len(labels) != len(x):
            raise UsageError(f"Expected a label for each of {len(x)} samples, got {len(labels)}.")
    with model.turn():
        learner = model.learner
        if rebuild and not (len(learner.memory)):
            raise UsageError(f"Expected samples in a memory to learn anew from: {type(learner).__name__} keeps none.")
        digests = [digest_of(str(name)) for name in ids] if ids is not None else model.digests(_given(x), None)
        numbers = [None if digest is None else model.journal.find(digest) for digest in digests]
        if ids is None and labels is not None:  # samples that have no id
            rows = [row for row, number in enumerate(numbers) if number is None]
            exact = _take_back_unnumbered(model, _given(x)[rows], [labels[row] for row in rows])
            missing: list[str] = []
        else:
            exact, rows = 0, []
            missing = [
                str(ids[row]) if ids is not None else "" if digest is None else digest.hex()
                for row, (digest, number) in enumerate(zip(digests, numbers, strict=True))
                if number is None
            ]
        places = {number: row for row, number in enumerate(numbers) if number is not None}
        waiting = _waiting(learner) & places.keys()
        erased = _erase_from_memories(learner, set(places))
        counted = [number for number in places if number not in waiting]
        if x is not None and counted:
            y = torch.tensor([model.journal.class_of(number) for number in counted])
            if _take_back(learner, Batch(x[[places[number] for number in counted]], y, extra=_numbers(counted))):
                exact += sum(number >= learner.foundation for number in counted)
        exact += len(waiting) if learner.takes_back else 0
        for number in places:
            model.counts[model.journal.class_of(number)] -= 1
        _erase_from_cursor(model, {bytes.fromhex(model.journal.id_of(number)) for number in places})
        model.journal.erase(places)
        model.prequential.forget(set(places))
        forgotten = len(places) + len(rows)
        if rebuild:
            relearn(model)
            exact = forgotten
        model.changed()
        model.latest = None  # which might hold what is forgotten
        return Forgotten(forgotten, erased, exact, tuple(missing))


def _given(x: Tensor | None) -> Tensor:
    if x is None:
        raise UsageError("Expected the samples, got ids alone.")
    return x


def _take_back_unnumbered(model: Model, x: Tensor, labels: Sequence[Any]) -> int:
    """Samples that were learned without an id. How many are gone without a trace."""
    if not len(x):
        return 0
    names = [plain_label(name) for name in labels]
    strange = [name for name in names if name not in model.labels]
    if strange:
        raise UsageError(f"Expected labels of classes that are known, got {strange[0]!r}.")
    y = [model.labels.number(name) for name in names]
    learner = model.learner
    _take_back(learner, Batch(x, torch.tensor(y)))
    for memory in learner.memories():
        held = memory.read(torch.arange(len(memory)))
        wanted = learner.encode(x) if learner.encoder is not None else x
        same = (held.x[:, None].flatten(2) == wanted[None].flatten(2)).all(dim=2).any(dim=1)
        memory.forget((same & (held.extra["number"] == UNNUMBERED)).nonzero().flatten())
    for c in y:
        model.counts[c] = max(0, model.counts[c] - 1)
    return len(y) if learner.takes_back and not learner.foundation else 0


def _erase_from_memories(learner: BaseLearner, numbers: set[int]) -> int:
    """How many there were: one may be in the memory and in an expert's."""
    found: set[int] = set()
    for memory in learner.memories():
        held = memory.field("number")[: len(memory)].tolist()
        slots = [slot for slot, number in enumerate(held) if number in numbers]
        memory.forget(torch.tensor(slots, dtype=torch.int64))
        found.update(held[slot] for slot in slots)
    return len(found)


def _numbers(numbers: Sequence[int]) -> dict[str, Tensor]:
    return {"number": torch.tensor(numbers)}


def _beside(learner: BaseLearner, batch: Batch) -> Batch:
    """The samples as the expert of a learner has them."""
    assert learner.expert is not None
    return Batch(learner.expert.samples(learner.encoded(batch).x), batch.y, extra=batch.extra)


def _take_back(learner: BaseLearner, batch: Batch) -> bool:
    """Take samples that were counted out of the statistics, and out of those of an expert beside a network. Whether
    nothing of them is left then: weights stay."""
    if learner.takes_back:
        learner.take_back(batch)
    elif learner.expert is not None:
        _take_back(learner.expert, _beside(learner, batch))
    return learner.takes_back


def _erase_from_cursor(model: Model, digests: set[bytes]) -> None:
    if "files" in model.cursor.tree:
        from onepass.live.folder import Files

        files = Files(model.cursor.tree)
        files.forget(digests)
        model.cursor.tree = {**model.cursor.tree, **files.to_tree()}


def relearn(model: Model) -> None:
    """A new learner that has seen nothing but what is in the memory, several times."""
    old = model.learner
    recipe = old.recipe or {}
    new = build(recipe["method"], old.problem, old.config, net=recipe["net"] or old.net.body, seed=recipe["seed"])
    new.number_samples()
    new.to(old.device)
    rng = generator(recipe["seed"], "relearn", model.version)
    for _ in range(PASSES if len(old.memory) else 0):
        for slots in torch.randperm(len(old.memory), generator=rng).split(model.batch):
            new.observe(old.memory.read(slots))
    new.memory.set_extra_state(old.memory.get_extra_state())
    model.learner = new


def relabel(model: Model, ids: Sequence[str], labels: Sequence[Any], x: Tensor | None = None) -> int:
    """Correct the labels of samples. How many there were to correct.

    Learners of statistics need the samples again, and then are as if the right label had come first. Others correct
    their memory, and learn the samples once more if they are given.
    """
    check_ids(ids, len(labels))
    if x is not None:
        check_ids(ids, len(x))
    with model.turn():
        learner = model.learner
        found = [model.journal.find(digest_of(str(name))) for name in ids]
        missing = [str(name) for name, number in zip(ids, found, strict=True) if number is None]
        if missing:
            raise UsageError(f"Expected ids of samples that are known, got {missing[0]!r}. Learn it first.")
        to = model.declare(labels)
        changes = {
            number: (row, model.journal.class_of(number), to[row])
            for row, number in enumerate(found)
            if number is not None and model.journal.class_of(number) != to[row]
        }
        waiting = _waiting(learner) & changes.keys()
        if learner.takes_back and x is None and changes.keys() - waiting:
            raise UsageError(f"{type(learner).__name__} keeps no samples: expected them again, got ids alone. Give X.")
        _relabel_memories(learner, {number: new for number, (_, _, new) in changes.items()})
        for number, (row, old, new) in changes.items():
            if x is not None and not (learner.takes_back and number in waiting):
                _learn_corrected(learner, number, x[row : row + 1], old, new)
            model.journal.relabel(number, new)
            model.prequential.relabel(number, new)
            model.counts[old] -= 1
            model.counts[new] += 1
        if changes:
            model.changed()
        return len(changes)


def _waiting(learner: BaseLearner) -> set[int]:
    """The numbers of samples that a learner of statistics, or one beside a network, keeps until it can count them."""
    if not learner.takes_back:
        return set() if learner.expert is None else _waiting(learner.expert)
    others = [memory for memory in learner.memories() if memory is not learner.memory]
    return {number for memory in others for number in memory.field("number")[: len(memory)].tolist()}


def _relabel_memories(learner: BaseLearner, classes: dict[int, int]) -> None:
    for memory in learner.memories():
        for slot, number in enumerate(memory.field("number")[: len(memory)].tolist()):
            if number in classes:
                memory.field("y")[slot] = classes[number]
                learner.mark_seen([classes[number]])


def _learn_corrected(learner: BaseLearner, number: int, x: Tensor, old: int, new: int) -> None:
    if learner.takes_back:
        learner.take_back(Batch(x, torch.tensor([old])))
    batch = Batch(x, torch.tensor([new]), extra=_numbers([number]))
    learner.observe_again(batch)
    if learner.expert is not None and number not in _waiting(learner.expert):
        _learn_corrected(learner.expert, number, _beside(learner, batch).x, old, new)
