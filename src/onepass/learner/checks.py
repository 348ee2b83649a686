"""The contract, executable: throw any learner at it.

    from onepass import check_learner
    check_learner(MyLearner)

Each promise is a function of a `make` that builds fresh learners on a toy problem; it fails by AssertionError.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from onepass.config import Settings, options
from onepass.errors import Diverged, UsageError
from onepass.learner.batch import Batch, Task
from onepass.learner.checkpoint import fingerprint, load_tree, save_tree
from onepass.learner.contract import SETTLING_STEPS, BaseLearner
from onepass.learner.net import Factory, network_and_encoder
from onepass.learner.problem import Problem
from onepass.learner.toy_problem import BATCHES, IMAGES, toy_batches, toy_body, toy_tasks

SHORT = 5  # batches of a task where nothing depends on their number: as many as fill the memory


class ContractError(AssertionError):
    """A learner breaks a promise."""


@dataclasses.dataclass(frozen=True)
class Make:
    """Builds fresh learners of a class, and gives the batches that they learn."""

    cls: type[BaseLearner]
    settings: Settings
    problem: Problem = IMAGES
    net: str | Factory = ""

    def __call__(self, seed: int = 0, **changes: Any) -> BaseLearner:
        wanted = {name: value for name, value in {"memory": 20, **changes}.items() if name in options(self.settings)}
        shape, n_classes = self.problem.shape, self.problem.n_classes
        body = self.net or ("linear" if self.cls.frozen_net else toy_body)
        net, encoder = network_and_encoder(body, shape, n_classes, seed=seed, frozen=self.cls.frozen_net)
        more = {} if encoder is None else {"encoder": encoder}
        return self.cls(net, self.problem, dataclasses.replace(self.settings, **wanted), seed=seed, **more)

    def batches(self, task: Task, size: int = 4, n: int = BATCHES) -> Iterator[Batch]:
        return toy_batches(task, size, n, self.problem.shape)


def check_learner(
    cls: type[BaseLearner],
    config: Settings | None = None,
    *,
    problem: Problem = IMAGES,
    net: str | Factory = "",
) -> None:
    """Raise ContractError if the learner breaks a promise of the contract; all broken ones are named.

    It learns six classes of images, or of vectors with `problem=onepass.learner.toy_problem.VECTORS`.
    """
    broken = [f"{promise}: {what}" for promise, what in failures(cls, config, problem=problem, net=net) if what]
    if broken:
        raise ContractError(f"{cls.__name__} breaks {len(broken)} of {len(PROMISES)} promises\n" + "\n".join(broken))


def failures(
    cls: type[BaseLearner],
    config: Settings | None = None,
    only: Iterable[str] = (),
    *,
    problem: Problem = IMAGES,
    net: str | Factory = "",
) -> Iterator[tuple[str, str]]:
    """Each promise (or only those named) with what broke it, or with an empty string."""
    if not (isinstance(cls, type) and issubclass(cls, BaseLearner)):
        raise UsageError(f"expected a subclass of onepass.Learner, got {cls!r}")
    make = Make(cls, cls.Config() if config is None else config, problem, net)
    for promise in only or PROMISES:
        try:
            PROMISES[promise](make)
        except Exception as error:  # whatever a learner under test raises is its failure to keep the promise
            yield promise, str(error) or type(error).__name__
        else:
            yield promise, ""


def _learn(learner: BaseLearner, tasks: list[Task], n: int = SHORT, first: int = 0) -> None:
    """Tasks of n batches; of the first of them only the batches from `first` on (it has begun if that is not 0)."""
    for position, task in enumerate(tasks):
        skip = first if position == 0 else 0
        if not skip:
            learner.begin_task(task)
        for index, batch in enumerate(toy_batches(task, n=n, shape=learner.problem.shape)):
            if index >= skip:
                learner.observe(batch)
        learner.end_task()


def _same_seed_same_bits(make: Make) -> None:
    prints = []
    for other in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(other)  # the global generator must not matter
            learner = make()
            _learn(learner, toy_tasks(), BATCHES)
        prints.append(fingerprint(learner.state_dict()))
    assert prints[0] == prints[1], "two learners with one seed end in different states"


def _another_seed_differs(make: Make) -> None:
    learners = [make(seed) for seed in (0, 1)]
    if not learners[0].optimizers():  # statistics need not draw anything
        return
    learners[1].net.load_state_dict(learners[0].net.state_dict())
    for learner in learners:
        _learn(learner, toy_tasks()[:1])
    states = [torch.cat([p.detach().flatten() for p in learner.net.parameters()]) for learner in learners]
    assert not torch.equal(*states), "the seed changes nothing, though augmentations are drawn from it"


def _predict_is_pure(make: Make) -> None:
    learner = make()
    _learn(learner, toy_tasks()[:2])
    for training in (True, False):
        learner.train(training)
        images = next(make.batches(toy_tasks()[0])).x
        before, modes = fingerprint(learner.state_dict()), [module.training for module in learner.modules()]
        chance = torch.get_rng_state()
        given = images.clone()
        first, second = learner.predict(images), learner.predict(images)
        assert torch.equal(first, second), "two predictions of one image differ"
        assert torch.equal(given, images), "predict changed the images"
        assert fingerprint(learner.state_dict()) == before, "predict changed the learner's state"
        assert [module.training for module in learner.modules()] == modes, "predict left another train/eval mode"
        assert torch.equal(chance, torch.get_rng_state()), "predict drew from the global generator"


def _resumes_in_mid_task(make: Make) -> None:
    whole, half = make(), make()
    tasks, cut = toy_tasks(), BATCHES // 2 + 1
    _learn(whole, tasks, BATCHES)
    _learn(half, tasks[:1], BATCHES)
    half.begin_task(tasks[1])
    for batch in list(make.batches(tasks[1]))[:cut]:
        half.observe(batch)
    resumed = _through_a_file(half, make(5))
    assert fingerprint(resumed.state_dict()) == fingerprint(half.state_dict()), "what is loaded is not what was saved"
    _learn(resumed, tasks[1:], BATCHES, first=cut)
    assert fingerprint(resumed.state_dict()) == fingerprint(whole.state_dict()), (
        "saved in mid-task, loaded and continued: another end state"
    )
    images = next(make.batches(tasks[0])).x
    assert torch.equal(resumed.predict(images), whole.predict(images)), "a loaded learner predicts otherwise"


def _through_a_file(learner: BaseLearner, fresh: BaseLearner) -> BaseLearner:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learner.safetensors"
        save_tree(path, learner.state_dict())
        fresh.load_state_dict(load_tree(path))
    return fresh


def _leaves_the_batch_alone(make: Make) -> None:
    learner = make()
    learner.begin_task(toy_tasks()[0])
    for batch in make.batches(toy_tasks()[0]):
        x, y = batch.x.clone(), batch.y.clone()
        learner.observe(batch)
        assert torch.equal(x, batch.x), "observe changed the batch's images"
        assert torch.equal(y, batch.y), "observe changed the batch's labels"
        assert batch.slots is None, "observe added slots to the batch"
        assert not batch.extra, "observe added rows to the batch"


def _keeps_no_reference(make: Make) -> None:
    learner = make()
    learner.begin_task(toy_tasks()[0])
    for batch in make.batches(toy_tasks()[0]):
        learner.observe(batch)
        before = fingerprint(learner.state_dict())
        batch.x.zero_()
        batch.y.zero_()
        assert fingerprint(learner.state_dict()) == before, "overwriting a batch after observe changed the learner"


def _memory_within_capacity(make: Make) -> None:
    learner = make(memory=7)
    for task in toy_tasks()[:2]:
        learner.begin_task(task)
        for batch in make.batches(task, n=SHORT):
            learner.observe(batch)
            held, capacity = len(learner.memory), learner.memory.capacity
            assert held <= capacity, f"{held} samples in a memory of {capacity}"
            rows = {name: len(learner.memory.field(name)) for name in learner.memory.fields}
            assert set(rows.values()) == {capacity}, f"fields of {rows} rows in a memory of {capacity}"
        learner.end_task()


def _finite_loss(make: Make) -> None:
    learner = make()
    learner.begin_task(toy_tasks()[0])
    for batch in make.batches(toy_tasks()[0], n=SHORT):
        loss = learner.observe(batch)
        assert loss.numel() == 1, f"observe returned a loss of shape {tuple(loss.shape)}"
        assert loss.isfinite().all(), f"observe returned a loss of {loss}"
        assert not loss.requires_grad, "the returned loss keeps the whole graph alive: detach it"


def _empty_memory(make: Make) -> None:
    learner = make()
    learner.begin_task(toy_tasks()[0])
    assert len(learner.memory) == 0, "a new learner's memory is not empty"
    loss = learner.observe(next(make.batches(toy_tasks()[0])))
    assert loss.isfinite().all(), f"the first step, with an empty memory, has a loss of {loss}"
    assert all(p.isfinite().all() for p in learner.parameters()), "the first step leaves weights that are not finite"


def _one_sample(make: Make) -> None:
    learner = make()
    for task in toy_tasks()[:2]:
        learner.begin_task(task)
        for batch in make.batches(task, size=1):
            assert learner.observe(batch).isfinite().all(), "a batch of one sample has a loss that is not finite"
        learner.end_task()


def _memory_smaller_than_replay(make: Make) -> None:
    learner = make(memory=3, replay=10)
    _learn(learner, toy_tasks()[:2], BATCHES)
    assert learner.predict(next(make.batches(toy_tasks()[0])).x).shape == (4,), "predict returns not one class a sample"


def _grows(make: Make) -> None:
    learner = make()
    _learn(learner, toy_tasks())
    images = torch.cat([batch.x for task in toy_tasks() for batch in make.batches(task, n=SHORT)])
    rows, known = learner.net.head.weight.detach().clone(), learner.predict(images)
    learner.grow(8)
    assert torch.equal(learner.net.head.weight.detach()[:6], rows), "growing changed the rows of known classes"
    assert torch.equal(learner.predict(images), known), "growing changed predictions"
    task = Task(3, (7, 6))
    learner.begin_task(task)
    for batch in make.batches(toy_tasks()[0], n=SHORT):
        learner.observe(Batch(batch.x, torch.where(batch.y == 4, 7, 6)))
    learner.end_task()
    assert fingerprint(_through_a_file(learner, make(5)).state_dict()) == fingerprint(learner.state_dict()), (
        "a grown learner cannot be loaded"
    )


def _predicts_seen_classes(make: Make) -> None:
    learner = make()
    images = torch.cat([batch.x for task in toy_tasks() for batch in make.batches(task, n=SHORT)])
    fresh = make()
    fresh.begin_task(toy_tasks()[0])
    early = set(fresh.predict(images).tolist())
    assert early <= set(toy_tasks()[0].classes), "at first, predict returned a class that has not been seen"
    for index, task in enumerate(toy_tasks()[:2]):
        _learn(learner, [task])
        seen = {c for earlier in toy_tasks()[: index + 1] for c in earlier.classes}
        assert set(learner.predict(images).tolist()) <= seen, "predict returned a class that has not been seen"


def _refuses_bad_input(make: Make) -> None:
    learner = make()
    learner.begin_task(toy_tasks()[0])
    good = next(make.batches(toy_tasks()[0]))
    learner.observe(good)
    before = fingerprint(learner.state_dict())
    bad = {
        "a label out of range": Batch(good.x, good.y + 100),
        "labels that are no integers": Batch(good.x, good.y.float()),
        "images of another shape": Batch(good.x[:, :2], good.y),
        "NaN pixels": Batch(torch.full(good.x.shape, torch.nan), good.y),
        "an empty batch": Batch(good.x[:0], good.y[:0]),
    }
    for what, batch in bad.items():
        try:
            learner.observe(batch)
        except UsageError:
            assert fingerprint(learner.state_dict()) == before, f"{what} changed the learner before it was refused"
        else:
            raise AssertionError(f"{what} was accepted")


def _refused_step(make: Make) -> None:
    learner = make()
    if not learner.optimizers():
        return
    _learn(learner, toy_tasks()[:2])
    for _, optimizer in learner.optimizers():
        for group in optimizer.param_groups:
            group["lr"] = math.inf  # no step of any length is finite
    weights = [p.detach().clone() for p in learner.parameters()]
    for what, task in (("known", toy_tasks()[1]), ("new", toy_tasks()[2])):
        before = fingerprint(learner.state_dict())
        try:
            learner.observe(next(make.batches(task)))
        except Diverged:
            same = fingerprint(learner.state_dict()) == before
            assert same, f"a step on {what} classes was refused, and changed the learner"
        else:  # a learner may only store, and train when a task ends
            same = all(map(torch.equal, weights, learner.parameters()))
            assert same, "a step of infinite length was made: call step() or update(), which refuse it"


def _snapshot(make: Make) -> None:
    learner = make()
    _learn(learner, toy_tasks()[:2])
    images = torch.cat([batch.x for task in toy_tasks() for batch in make.batches(task, n=SHORT)])
    before, state = learner.predict(images), fingerprint(learner.state_dict())
    snapshot = learner.snapshot()
    assert fingerprint(learner.state_dict()) == state, "taking a snapshot changed the learner's state"
    _learn(learner, toy_tasks()[2:], BATCHES)
    assert torch.equal(snapshot.predict(images), before), (
        "a snapshot changed with its learner: scorer() must prepare what it needs of the memory"
    )


def _class_lost(make: Make) -> None:
    learner = make()
    tasks = toy_tasks()
    _learn(learner, tasks[:2])
    memory = learner.memory
    labels = memory.field("y")[: len(memory)]
    lost, kept = ((labels == 4) == wanted for wanted in (True, False))
    if lost.any() and kept.any():
        memory.write(lost.nonzero().flatten(), memory.read(kept.nonzero()[0].expand(int(lost.sum()))))
    again = Task(3, tasks[0].classes)  # brings no new class, but the lost one
    _learn(learner, [tasks[2], again])
    assert all(value.isfinite().all() for value in (*learner.parameters(), *learner.net.buffers())), (
        "weights or statistics are not finite"
    )
    predicted = learner.predict(torch.cat([batch.x for batch in make.batches(tasks[2])]))
    assert set(predicted.tolist()) <= learner.seen, "predict returned a class that has not been seen"


def _without_boundaries(make: Make) -> None:
    learner = make()
    for index, task in enumerate(toy_tasks()[:2]):
        for batch in make.batches(task, n=SHORT if index else SETTLING_STEPS + SHORT):
            loss = learner.observe(batch)
            assert loss.isfinite().all(), f"on a stream without boundaries, a loss of {loss}"
        begun = -1 if learner.task is None else learner.task.index
        assert begun == index, f"classes never seen began task {begun}; it is number {index}"
    first, last = toy_tasks()[:2]
    old, new = next(make.batches(first)), next(make.batches(last))
    mixed = Batch(torch.cat([old.x, new.x]), torch.cat([old.y, new.y]))
    for batch in (mixed, old):
        assert learner.observe(batch).isfinite().all(), "old classes in a later task: a loss that is not finite"


def _average_is_beside(make: Make) -> None:
    """Kept, saved in mid-task, grown and predicted by, an average leaves training as it was, and is itself the same."""
    if "average" not in options(make.settings):
        return
    plain, straight, averaged = make(average=None), make(average=0.8), make(average=0.8)
    tasks, half = toy_tasks(), BATCHES // 2
    for learner in (plain, straight, averaged):
        _learn(learner, tasks[:1], BATCHES)
        learner.begin_task(tasks[1])
        for batch in list(make.batches(tasks[1], n=BATCHES))[:half]:
            learner.observe(batch)
    averaged = _through_a_file(averaged, make(5, average=0.8))
    for learner in (plain, straight, averaged):
        _learn(learner, tasks[1:2], BATCHES, first=half)
        learner.grow(make.problem.n_classes + 2)
    images = torch.cat([batch.x for batch in make.batches(tasks[0])])
    before = fingerprint(averaged.state_dict())
    averaged.predict(images)
    assert fingerprint(averaged.state_dict()) == before, "predicting by the average changed the learner's state"
    for learner in (plain, straight, averaged):
        _learn(learner, tasks[2:])
    same = fingerprint(averaged.state_dict()) == fingerprint(straight.state_dict())
    assert same, "saved in mid-task and loaded, the average goes on otherwise"
    state = {name: value for name, value in averaged.state_dict().items() if not name.startswith("average.")}
    assert fingerprint(state) == fingerprint(plain.state_dict()), "an average beside it changed what was learned"
    known = averaged.predict(images)
    with torch.no_grad():
        for name, value in averaged.named_parameters():
            if not name.startswith("average."):
                value.zero_()
    assert torch.equal(averaged.predict(images), known), (
        "prediction by the average uses last weights: predictors() must name every module that scorer uses"
    )
    follows = make(average=0.0)
    _learn(follows, tasks[:1])
    with follows.predicting(last=True) as predict:
        assert torch.equal(predict(images), follows.predict(images)), "an average with decay 0 is not the last weights"


def _learns(make: Make) -> None:
    learner = make()
    task = toy_tasks()[0]
    learner.begin_task(task)
    for batch in make.batches(task, n=60):
        learner.observe(batch)
    learner.end_task()
    asked = list(make.batches(task, n=20))
    hits = learner.predict(torch.cat([batch.x for batch in asked])) == torch.cat([batch.y for batch in asked])
    assert hits.float().mean() > 0.75, f"{hits.float().mean():.0%} right on two classes that differ plainly"


PROMISES: dict[str, Callable[[Make], None]] = {
    "same seed, same bits": _same_seed_same_bits,
    "another seed differs": _another_seed_differs,
    "predict is pure": _predict_is_pure,
    "save in mid-task and load: identical": _resumes_in_mid_task,
    "batch left alone": _leaves_the_batch_alone,
    "no reference to a batch survives": _keeps_no_reference,
    "memory within capacity": _memory_within_capacity,
    "finite loss": _finite_loss,
    "empty memory": _empty_memory,
    "one-sample batch": _one_sample,
    "memory smaller than the replay batch": _memory_smaller_than_replay,
    "grows to more classes": _grows,
    "a class that the memory has lost": _class_lost,
    "streams without boundaries": _without_boundaries,
    "an average changes nothing in training": _average_is_beside,
    "predicts seen classes only": _predicts_seen_classes,
    "bad input is refused and changes nothing": _refuses_bad_input,
    "a refused step changes nothing": _refused_step,
    "a snapshot stays as it is": _snapshot,
    "learns": _learns,
}
