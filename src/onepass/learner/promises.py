"""The contract checks: each is a function of a `Trial` that fails by AssertionError."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from onepass.config import options
from onepass.errors import Diverged, UsageError
from onepass.learner.batch import Batch, Task
from onepass.learner.checkpoint import fingerprint, load_tree, save_tree
from onepass.learner.contract import SETTLING_STEPS, BaseLearner
from onepass.learner.toy_problem import BATCHES, toy_tasks
from onepass.learner.trial import (
    CAPACITY,
    LEFT_ALONE,
    LOSS,
    NO_REFERENCE,
    SHORT,
    SMALL,
    Trial,
    complaints,
    learn,
    whole_run,
)


def _same_seed_same_bits(trial: Trial) -> None:
    first, _ = trial.once(whole_run)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)  # the global generator must not matter
        again = trial()
        learn(again, toy_tasks(), BATCHES)
    assert first == fingerprint(again.state_dict()), "two learners with one seed end in different states"


def _resumes_in_mid_task(trial: Trial) -> None:
    half = trial()
    tasks, cut = toy_tasks(), BATCHES // 2 + 1
    learn(half, tasks[:1], BATCHES)
    learn(half, tasks[1:2], BATCHES, last=cut)
    resumed = _through_a_file(half, trial(5))
    assert fingerprint(resumed.state_dict()) == fingerprint(half.state_dict()), "what is loaded is not what was saved"
    learn(resumed, tasks[1:], BATCHES, first=cut)
    state, predicted = trial.once(whole_run)
    assert fingerprint(resumed.state_dict()) == state, "saved in mid-task, loaded and continued: another end state"
    assert torch.equal(resumed.predict(trial.images(tasks[:1])), predicted), "a loaded learner predicts otherwise"


def _watched(side: str) -> Callable[[Trial], None]:
    def promise(trial: Trial) -> None:
        complaint = trial.once(complaints).get(side, "")
        assert not complaint, complaint

    return promise


def _one_sample(trial: Trial) -> None:
    learner = trial()
    for task in toy_tasks()[:2]:
        learner.begin_task(task)
        for batch in trial.batches(task, size=1, n=SHORT):
            assert learner.observe(batch).isfinite().all(), "a batch of one sample has a loss that is not finite"
        learner.end_task()


def _memory_smaller_than_replay(trial: Trial) -> None:
    learner = trial(memory=3, replay=10)
    learn(learner, toy_tasks()[:2])
    predicted = learner.predict(next(trial.batches(toy_tasks()[0])).x)
    assert predicted.shape == (4,), "predict returns not one class a sample"


def _grows(trial: Trial) -> None:
    learner = trial.after_two_tasks()
    images = trial.images(toy_tasks())
    rows, known = learner.net.head.weight.detach().clone(), learner.predict(images)
    learner.grow(8)
    assert torch.equal(learner.net.head.weight.detach()[:6], rows), "growing changed the rows of known classes"
    assert torch.equal(learner.predict(images), known), "growing changed predictions"
    learner.begin_task(Task(2, (7, 6)))
    for batch in trial.batches(toy_tasks()[0], n=SHORT):
        learner.observe(Batch(batch.x, torch.where(batch.y == 4, 7, 6)))
    learner.end_task()
    assert fingerprint(_through_a_file(learner, trial(5)).state_dict()) == fingerprint(learner.state_dict()), (
        "a grown learner cannot be loaded"
    )


def _predicts_seen_classes(trial: Trial) -> None:
    images, (first, second, _) = trial.images(toy_tasks()), toy_tasks()
    learner = trial()
    learner.begin_task(first)
    early = set(learner.predict(images).tolist())
    assert early <= set(first.classes), "at first, predict returned a class that has not been seen"
    learn(learner, [first])
    for learned, seen in ((learner, first.classes), (trial.after_two_tasks(), first.classes + second.classes)):
        assert set(learned.predict(images).tolist()) <= set(seen), "predict returned a class that has not been seen"


def _average_is_beside(trial: Trial) -> None:
    """Kept, saved in mid-task, grown and predicted by, an average leaves training as it was, and is itself the same."""
    if "average" not in options(trial.settings):
        return
    plain, straight, averaged = trial(average=None), trial(average=0.8), trial(average=0.8)
    tasks, half = toy_tasks(), SHORT // 2
    for learner in (plain, straight, averaged):
        learn(learner, tasks[:1], n=3)
        learn(learner, tasks[1:2], last=half)
    averaged = _through_a_file(averaged, trial(5, average=0.8))
    for learner in (plain, straight, averaged):
        learn(learner, tasks[1:2], first=half)
        learner.grow(trial.problem.n_classes + 2)
    images = trial.images(tasks)
    before = fingerprint(averaged.state_dict())
    averaged.predict(images)
    assert fingerprint(averaged.state_dict()) == before, "predicting by the average changed the learner's state"
    for learner in (plain, straight, averaged):
        learn(learner, tasks[2:], n=3)
    same = fingerprint(averaged.state_dict()) == fingerprint(straight.state_dict())
    assert same, "saved in mid-task and loaded, the average goes on otherwise"
    state = {name: value for name, value in averaged.state_dict().items() if not name.startswith("average.")}
    assert fingerprint(state) == fingerprint(plain.state_dict()), "an average beside it changed what was learned"
    with averaged.predicting() as predict:
        known = predict.scores(images)
    with torch.no_grad():
        for name, value in averaged.named_parameters():
            if not name.startswith("average."):
                value.zero_()
    with averaged.predicting() as predict:
        same = torch.equal(predict.scores(images), known)
    assert same, "prediction by the average uses last weights: predictors() must name every module that scorer uses"
    follows = trial(average=0.0)
    learn(follows, tasks[:1])
    with follows.predicting(last=True) as predict:
        assert torch.equal(predict(images), follows.predict(images)), "an average with decay 0 is not the last weights"


def _learns(trial: Trial) -> None:
    learner = trial(small={name: value for name, value in SMALL.items() if name != "epochs"})
    task = toy_tasks()[0]
    learn(learner, [task], n=60)
    asked = list(trial.batches(task, n=20))
    hits = learner.predict(torch.cat([batch.x for batch in asked])) == torch.cat([batch.y for batch in asked])
    assert hits.float().mean() > 0.75, f"{hits.float().mean():.0%} right on two classes that differ plainly"


def _another_seed_differs(trial: Trial) -> None:
    learners = [trial(seed) for seed in (0, 1)]
    if not learners[0].optimizers():  # statistics need not draw anything
        return
    learners[1].net.load_state_dict(learners[0].net.state_dict())
    for learner in learners:
        learn(learner, toy_tasks()[:1], n=3)
    states = [torch.cat([p.detach().flatten() for p in learner.net.parameters()]) for learner in learners]
    assert not torch.equal(*states), "the seed changes nothing, though augmentations are drawn from it"


def _predict_is_pure(trial: Trial) -> None:
    learner = trial.after_two_tasks()
    for training in (True, False):
        learner.train(training)
        images = next(trial.batches(toy_tasks()[0])).x
        before, modes = fingerprint(learner.state_dict()), [module.training for module in learner.modules()]
        chance = torch.get_rng_state()
        given = images.clone()
        first, second = learner.predict(images), learner.predict(images)
        assert torch.equal(first, second), "two predictions of one image differ"
        assert torch.equal(given, images), "predict changed the images"
        assert fingerprint(learner.state_dict()) == before, "predict changed the learner's state"
        assert [module.training for module in learner.modules()] == modes, "predict left another train/eval mode"
        assert torch.equal(chance, torch.get_rng_state()), "predict drew from the global generator"


def _through_a_file(learner: BaseLearner, fresh: BaseLearner) -> BaseLearner:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learner.safetensors"
        save_tree(path, learner.state_dict())
        fresh.load_state_dict(load_tree(path))
    return fresh


def _empty_memory(trial: Trial) -> None:
    learner = trial()
    learner.begin_task(toy_tasks()[0])
    assert len(learner.memory) == 0, "a new learner's memory is not empty"
    loss = learner.observe(next(trial.batches(toy_tasks()[0])))
    assert loss.isfinite().all(), f"the first step, with an empty memory, has a loss of {loss}"
    assert all(p.isfinite().all() for p in learner.parameters()), "the first step leaves weights that are not finite"


def _refuses_bad_input(trial: Trial) -> None:
    learner = trial()
    learner.begin_task(toy_tasks()[0])
    good = next(trial.batches(toy_tasks()[0]))
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


def _refused_step(trial: Trial) -> None:
    learner = trial.after_two_tasks()
    if not learner.optimizers():
        return
    for _, optimizer in learner.optimizers():
        for group in optimizer.param_groups:
            group["lr"] = math.inf  # no step of any length is finite
    weights = [p.detach().clone() for p in learner.parameters()]
    for what, task in (("known", toy_tasks()[1]), ("new", toy_tasks()[2])):
        before = fingerprint(learner.state_dict())
        try:
            learner.observe(next(trial.batches(task)))
        except Diverged:
            same = fingerprint(learner.state_dict()) == before
            assert same, f"a step on {what} classes was refused, and changed the learner"
        else:  # a learner may only store, and train when a task ends
            same = all(map(torch.equal, weights, learner.parameters()))
            assert same, "a step of infinite length was made: call step() or update(), which refuse it"


def _snapshot(trial: Trial) -> None:
    learner, images = trial.after_two_tasks(), trial.images(toy_tasks())
    before, state = learner.predict(images), fingerprint(learner.state_dict())
    snapshot = learner.snapshot()
    assert fingerprint(learner.state_dict()) == state, "taking a snapshot changed the learner's state"
    learn(learner, toy_tasks()[2:])
    assert torch.equal(snapshot.predict(images), before), (
        "a snapshot changed with its learner: scorer() must prepare what it needs of the memory"
    )


def _class_lost(trial: Trial) -> None:
    learner, tasks = trial.after_two_tasks(), toy_tasks()
    memory = learner.memory
    labels = memory.field("y")[: len(memory)]
    lost, kept = ((labels == 4) == wanted for wanted in (True, False))
    if lost.any() and kept.any():
        memory.write(lost.nonzero().flatten(), memory.read(kept.nonzero()[0].expand(int(lost.sum()))))
    again = Task(3, tasks[0].classes)  # brings no new class, but the lost one
    learn(learner, [tasks[2], again])
    assert all(value.isfinite().all() for value in (*learner.parameters(), *learner.net.buffers())), (
        "weights or statistics are not finite"
    )
    predicted = learner.predict(torch.cat([batch.x for batch in trial.batches(tasks[2])]))
    assert set(predicted.tolist()) <= learner.seen, "predict returned a class that has not been seen"


def _without_boundaries(trial: Trial) -> None:
    learner = trial()
    for index, task in enumerate(toy_tasks()[:2]):
        for batch in trial.batches(task, n=SHORT if index else SETTLING_STEPS + 1):
            loss = learner.observe(batch)
            assert loss.isfinite().all(), f"on a stream without boundaries, a loss of {loss}"
        begun = -1 if learner.task is None else learner.task.index
        assert begun == index, f"classes never seen began task {begun}; it is number {index}"
    first, last = toy_tasks()[:2]
    old, new = next(trial.batches(first)), next(trial.batches(last))
    mixed = Batch(torch.cat([old.x, new.x]), torch.cat([old.y, new.y]))
    for batch in (mixed, old):
        assert learner.observe(batch).isfinite().all(), "old classes in a later task: a loss that is not finite"


PROMISES: dict[str, Callable[[Trial], None]] = {
    "same seed, same bits": _same_seed_same_bits,
    "another seed differs": _another_seed_differs,
    "predict is pure": _predict_is_pure,
    "save in mid-task and load: identical": _resumes_in_mid_task,
    "batch left alone": _watched(LEFT_ALONE),
    "no reference to a batch survives": _watched(NO_REFERENCE),
    "memory within capacity": _watched(CAPACITY),
    "finite loss": _watched(LOSS),
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
