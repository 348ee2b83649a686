"""What a run measures on the way: looks every few steps, batches predicted before they are learned, a line for each."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import make, pixel_net, small_settings, some_images
from method_helpers import FewFilters
from onepass.bench import metrics, store
from onepass.bench.evaluate import accuracy_by_task, confusion, predictions, quickly
from onepass.bench.result import Result
from onepass.bench.run import Run
from onepass.bench.run_config import RunConfig
from onepass.bench.runner import Progress, run
from onepass.bench.stream import TaskData, batches, make_tasks, share_classes
from onepass.data import Dataset
from onepass.data.catalog import load
from onepass.errors import UsageError
from onepass.learner.base import Learner
from onepass.learner.batch import Batch, Task
from onepass.learner.checkpoint import fingerprint
from onepass.learner.contract import BaseLearner
from onepass.learner.predictor import Predictor
from onepass.learner.problem import Problem
from onepass.methods.er_fsl import ERFSL
from onepass.methods.factory import build
from onepass.methods.finetune import FineTune
from onepass.methods.patch_lda import PatchLDA
from onepass.methods.registry import METHODS
from onepass.report.grouping import check_one_protocol
from onepass.report.summary import overview

EVERY = 4  # steps 12 and 24 are a task's last as well
TOLD = RunConfig(
    "er-fsl", batch=20, fraction=0.4, anytime=EVERY, prequential=True, settings={"memory": 30, "subspace": 40}
)  # five tasks of six steps
FREE = RunConfig("er", scenario="task-free", fraction=0.2, anytime=3, prequential=True, settings={"memory": 30})
CASES = {
    "subspaces that are reused": TOLD,
    "weights that a task's end changes": RunConfig(
        "er-wa", batch=20, fraction=0.4, anytime=6, prequential=True, seed=1
    ),
    "no boundaries told": FREE,
    "tasks that share classes": RunConfig(
        "er", scenario="i-blurry-50-10", batch=20, fraction=0.4, anytime=7, prequential=True
    ),
    "the task is told": RunConfig(
        "er", scenario="task-incremental", batch=20, fraction=0.4, anytime=7, prequential=True, settings={"memory": 30}
    ),
    "on images held back": RunConfig("finetune", batch=20, fraction=0.2, validate=True, anytime=3, prequential=True),
}


def pairs_of(rows: list[list[int]]) -> Counter[tuple[int, int]]:
    """A stored confusion as counts of class and answer."""
    return Counter({(c, row[place]): row[place + 1] for c, row in enumerate(rows) for place in range(0, len(row), 2)})


@functools.cache
def measured(config: RunConfig) -> Result:
    return run(config)


def timeless(result: Result) -> dict[str, Any]:
    """All of a result but how long it took."""
    return {**result.to_json(), "seconds": 0}


# The same run again, step by step through the learner's verbs, measured by counting.


@dataclass
class ByHand:
    looks: list[dict[str, Any]] = field(default_factory=list)  # accuracy by task met so far, every so many steps
    matrix: list[list[float]] = field(default_factory=list)
    first: list[tuple[int, int]] = field(default_factory=list)  # right and seen of every batch before it is learned
    spaces: list[Tensor] = field(default_factory=list)  # ER-FSL's masks, once in every task
    confusion: Counter[tuple[int, int]] = field(default_factory=Counter)  # of class and answer at the end
    fingerprint: str = ""


def answers_of(learner: BaseLearner, images: Tensor, told: tuple[int, ...] | None) -> list[int]:
    """What is predicted; where the task is told, the highest logit among its classes."""
    if told is None:
        return learner.predict(images).tolist()
    assert isinstance(learner, Learner)
    learner.eval()
    with torch.no_grad():
        found = [max(told, key=lambda c: row[c]) for row in learner.net(images / 255).tolist()]
    learner.train()
    return found


def right(learner: BaseLearner, images: Tensor, labels: Tensor, told: tuple[int, ...] | None = None) -> int:
    return sum(a == b for a, b in zip(answers_of(learner, images, told), labels.tolist(), strict=True))


def counted(learner: BaseLearner, data: Dataset, tasks: list[TaskData], told: bool = False) -> list[float]:
    return [
        right(learner, data.x_test[t.test], data.y_test[t.test], t.info.classes if told else None) / len(t.test)
        for t in tasks
    ]


@functools.cache
def by_hand(config: RunConfig) -> ByHand:
    data, tasks = make_tasks(load("digits"), config.stream_config, seed=config.seed)
    problem = Problem(10, (1, 8, 8), "digits", len(tasks))
    learner = build(config.method, problem, config.learner_config, net="small-cnn", seed=config.seed)
    told, found = config.scenario != "task-free", ByHand()
    masked = config.scenario == "task-incremental"
    for number, task in enumerate(tasks):
        if told:
            learner.begin_task(task.info)
        for rows in task.train.split(config.batch):
            unknown = not told and not found.first  # nothing has been seen: there is nothing to predict among
            among = task.info.classes if masked else None
            found.first.append((0 if unknown else right(learner, data.x[rows], data.y[rows], among), len(rows)))
            learner.observe(Batch(data.x[rows], data.y[rows]))
            step = len(found.first)
            if config.anytime and step % config.anytime == 0:
                accuracy = counted(learner, data, tasks[: number + 1], masked)
                found.looks.append({"step": step, "accuracy": pytest.approx(accuracy)})
        if isinstance(learner, ERFSL):
            found.spaces.append(learner.spaces.clone())
        if told:
            learner.end_task()
        found.matrix.append(counted(learner, data, tasks[: number + 1], masked))
    for task in tasks:
        answers = answers_of(learner, data.x_test[task.test], task.info.classes if masked else None)
        found.confusion.update(zip(data.y_test[task.test].tolist(), answers, strict=True))
    found.fingerprint = fingerprint(learner.state_dict())
    return found


@pytest.mark.system
@pytest.mark.parametrize("case", CASES)
def test_every_k_steps_the_accuracy_on_every_task_met_so_far_is_that_of_counting(case: str) -> None:
    config = CASES[case]
    expected, result = by_hand(config), measured(config)
    assert len(expected.looks) > 3
    assert result.anytime == expected.looks
    assert result.accuracy_matrix == [pytest.approx(row) for row in expected.matrix]
    assert result.fingerprint == expected.fingerprint
    assert pairs_of(result.confusion) == expected.confusion
    assert sum(expected.confusion.values()) == result.data["measured"]


@pytest.mark.system
@pytest.mark.parametrize("case", CASES)
def test_prequential_figures_are_those_of_predicting_each_batch_and_then_learning_it(case: str) -> None:
    first, result = by_hand(CASES[case]).first, measured(CASES[case])
    stretches = [first[start : start + 10] for start in range(0, len(first), 10)]
    assert result.prequential == [[sum(r for r, _ in part), sum(n for _, n in part)] for part in stretches]
    assert sum(n for _, n in result.prequential) == result.data["learned"]
    assert metrics.prequential_accuracy(result.prequential) == sum(r for r, _ in first) / result.data["learned"]


def test_a_class_that_nobody_announced_is_not_predicted_before_it_is_learned() -> None:
    """One class a task, no boundaries, batches as large as tasks: each batch is of a class never seen."""
    config = RunConfig("finetune", scenario="task-free", tasks=10, batch=20, fraction=0.1, prequential=True)
    assert measured(config).prequential == [[0, 143]]


def test_an_announced_class_may_be_predicted_in_its_first_batch() -> None:
    config = RunConfig("finetune", tasks=1, batch=200, fraction=0.1, prequential=True)
    assert measured(config).prequential == [[by_hand(config).first[0][0], 143]]
    assert by_hand(config).first[0][0] > 0


def test_a_look_at_a_tasks_last_step_comes_before_the_task_is_ended() -> None:
    """ER-WA scales weights at a task's end: the look does not know it, the row of the matrix does."""
    result = measured(CASES["weights that a task's end changes"])
    looks = {point["step"]: point["accuracy"] for point in result.anytime}
    ends = [6 * task for task in range(1, 6)]
    assert list(looks) == ends
    assert [looks[end] for end in ends] != result.accuracy_matrix


def test_facts_are_the_subspaces_of_each_task_reused_ones_too() -> None:
    """Forty of a hundred dimensions and five tasks: two find blank ones, three reuse."""
    facts, spaces = measured(TOLD).facts, by_hand(TOLD).spaces
    assert len(facts) == len(spaces) == 5
    for fact, (own, used, *_) in zip(facts, spaces, strict=True):
        for name, mask in (("learned_in", own), ("replayed_in", used)):
            dims = [dim for first, end in fact[name] for dim in range(first, end)]
            assert dims == mask.nonzero().flatten().tolist()
    assert facts[:2] == [
        {"learned_in": [[0, 40]], "replayed_in": [[0, 40]]},
        {"learned_in": [[40, 80]], "replayed_in": [[0, 80]]},
    ]
    assert all(len(fact["learned_in"]) > 1 and fact["replayed_in"] == [[0, 100]] for fact in facts[2:])


def test_a_learner_with_nothing_to_say_has_an_empty_fact_for_each_task() -> None:
    assert run(RunConfig("er", batch=50, fraction=0.4, settings={"memory": 30})).facts == [{}] * 5


# Measuring more changes nothing else.


@pytest.mark.system
@pytest.mark.parametrize("method", METHODS)
def test_looking_and_predicting_leave_every_bit_of_training_alone(method: str) -> None:
    plain = RunConfig(method, fraction=0.05, settings=small_settings(method))
    less, more = run(plain), run(replace(plain, anytime=2, prequential=True))
    assert (less.anytime, less.prequential) == ([], [])
    assert len(more.anytime) == more.steps // 2
    assert len(more.prequential) == -(-more.steps // 10)
    assert (less.fingerprint, less.accuracy_matrix, less.facts, less.protocol) == (
        more.fingerprint,
        more.accuracy_matrix,
        more.facts,
        more.protocol,
    )


def test_a_negative_number_of_steps_between_looks_is_refused() -> None:
    with pytest.raises(UsageError, match="anytime=-1: must be at least 1"):
        RunConfig("er", anytime=-1)


# A look is at the first hundred test images of each class.


def a_crowd() -> tuple[BaseLearner, Dataset, list[TaskData]]:
    """Classes with 130, 50 and 700 test images in mixed order, in two tasks, and an untrained learner."""
    order = torch.randperm(880, generator=torch.Generator().manual_seed(3))
    labels = torch.tensor([0] * 130 + [1] * 50 + [2] * 700)[order]
    data = Dataset(some_images(3), torch.arange(3), some_images(880, seed=1), labels, ("a", "b", "c"))
    tasks = [
        TaskData(Task(i, classes), torch.tensor(classes), torch.isin(labels, torch.tensor(classes)).nonzero().flatten())
        for i, classes in enumerate([(1, 0), (2,)])
    ]
    learner = make(FineTune, pixel_net(3))
    with torch.no_grad():
        learner.net.head.bias.copy_(-learner.net.head.weight.sum(dim=1) / 2)  # so that every class is predicted
    learner.mark_seen(range(3))
    return learner, data, tasks


def share(learner: BaseLearner, data: Dataset, classes: tuple[int, ...], most: int) -> float:
    hits = []
    for c in classes:
        rows = [row for row, label in enumerate(data.y_test.tolist()) if label == c][:most]
        hits += [right(learner, data.x_test[row : row + 1], data.y_test[row : row + 1]) for row in rows]
    return sum(hits) / len(hits)


def test_a_look_counts_the_first_hundred_images_of_each_class_and_the_matrix_all() -> None:
    learner, data, tasks = a_crowd()
    some = [share(learner, data, task.info.classes, 100) for task in tasks]
    whole = [share(learner, data, task.info.classes, 10_000) for task in tasks]
    assert accuracy_by_task(learner, data, [quickly(data, task) for task in tasks]) == pytest.approx(some)
    assert accuracy_by_task(learner, data, tasks) == pytest.approx(whole)
    assert all(a != b for a, b in zip(some, whole, strict=True))


# Classes: all from the one pass that gives the accuracy by task.


def test_a_confusion_is_what_counting_one_by_one_gives() -> None:
    learner, data, tasks = a_crowd()
    rows = confusion(predictions(learner, data, tasks), 3)
    answers = [int(learner.predict(image[None])) for image in data.x_test]
    counts = Counter(zip(data.y_test.tolist(), answers, strict=True))
    assert pairs_of(rows) == counts
    assert [row[::2] for row in rows] == [sorted(b for a, b in counts if a == c) for c in range(3)]
    accuracy = metrics.class_accuracies(rows)
    assert accuracy == [pytest.approx(share(learner, data, (c,), 10_000)) for c in range(3)]
    assert len({value for value in accuracy if value is not None}) == 3
    [first, _] = tasks
    assert confusion(predictions(learner, data, [first]), 3)[2] == [], "a class that was not measured"


@pytest.mark.parametrize("average", [None, 0.9])
def test_each_test_image_is_read_once_after_a_task_and_predicted_once_more_by_the_last_weights(
    average: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    answered: list[int] = []
    prepared, answers = Predictor.prepared, Predictor.answers

    def reading(self: Predictor, images: Tensor) -> Any:
        read.append(len(images))
        return prepared(self, images)

    def answering(self: Predictor, given: Any, among: Any = None) -> Tensor:
        found = answers(self, given, among)
        answered.append(len(found))
        return found

    monkeypatch.setattr(Predictor, "prepared", reading)
    monkeypatch.setattr(Predictor, "answers", answering)
    state = Run(RunConfig("finetune", batch=200, tasks=2, settings={"average": average}))
    state.advance()
    first, second = (len(task.test) for task in state.tasks)
    assert sum(read) == first + first + second
    assert sum(answered) == sum(read) * (1 if average is None else 2)


@pytest.mark.parametrize(("method", "more"), [("er", {}), ("er", {"expert": True}), ("scr", {}), ("er-fsl+", {})])
def test_one_pass_answers_by_the_average_and_by_the_last_weights_as_each_alone(
    method: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PatchLDA, "Config", FewFilters)
    config = RunConfig(method, batch=50, fraction=0.4, settings={"memory": 30, "average": 0.9, **more})
    state = Run(config)
    state.advance()
    learner, images = state.learner, state.data.x_test[:300]
    before = fingerprint(learner.state_dict())
    with learner.predicting_both() as predict:
        by_average, by_last = predict(images)
        [alone] = predict(images, last=False)
        among = predict(images, (1, 2))
    assert fingerprint(learner.state_dict()) == before
    assert torch.equal(by_average, learner.predict(images))
    assert torch.equal(alone, by_average)
    assert torch.equal(among[0], learner.predict(images, (1, 2)))
    with learner.predicting(last=True) as last:
        assert torch.equal(by_last, last(images))
        assert torch.equal(among[1], last(images, (1, 2)))
    assert more or not torch.equal(by_average, by_last), "an expert may have the last word in both"
    learner.observe(next(batches(state.data, state.tasks[0], 10)))  # nothing is left in inference mode


def test_by_an_average_classes_are_told_apart_as_predict_answers_at_the_end() -> None:
    state = Run(RunConfig("er", batch=50, fraction=0.4, settings={"memory": 30, "average": 0.9}))
    state.advance()
    data, tested = state.data, torch.cat([task.test for task in state.tasks])
    answers = state.learner.predict(data.x_test[tested]).tolist()
    assert pairs_of(state.record.confusion) == Counter(zip(data.y_test[tested].tolist(), answers, strict=True))
    with state.learner.predicting(last=True) as predict:
        assert predict(data.x_test[tested]).tolist() != answers


# Forward transfer: where all tasks have the same classes.


def domains(config: RunConfig, n: int = 3) -> Run:
    """A run whose tasks all have every class, each with a part of the images."""
    state = Run(config)
    everything = torch.arange(len(state.data.y)), torch.arange(len(state.data.y_test))
    rows, tests = (part.chunk(n) for part in everything)
    state.tasks = [TaskData(Task(i, tuple(range(10))), rows[i], tests[i]) for i in range(n)]
    return state


def domains_by_hand(config: RunConfig) -> tuple[list[float], list[float]]:
    """What the untrained learner knows of the later tasks, and what is known of each just before it begins."""
    state = domains(config)
    learner, before, untrained = state.learner, [], []
    for number, task in enumerate(state.tasks):
        learner.begin_task(task.info)
        known = counted(learner, state.data, state.tasks)
        before.append(known[number])
        untrained += known if number == 0 else []
        for rows in task.train.split(config.batch):
            learner.observe(Batch(state.data.x[rows], state.data.y[rows]))
        learner.end_task()
    return before[1:], untrained[1:]


SHARED = RunConfig("er", batch=60, settings={"memory": 30})


def test_where_tasks_share_their_classes_the_next_task_is_measured_before_it_is_learned() -> None:
    state = domains(SHARED)
    state.advance()
    before, untrained = domains_by_hand(SHARED)
    assert state.record.accuracy_before == pytest.approx(before)
    assert state.record.accuracy_untrained == pytest.approx(untrained)
    assert [len(row) for row in state.record.accuracy_matrix] == [1, 2, 3]
    gains = [a - b for a, b in zip(before, untrained, strict=True)]
    assert metrics.forward_transfer(before, untrained) == pytest.approx(sum(gains) / 2)
    assert sum(gains) > 0.2, "what was learned helps"


@pytest.mark.parametrize("scenario", ["class-incremental", "i-blurry-0-10", "iid", "task-free"])
def test_where_tasks_have_classes_of_their_own_there_is_no_forward_transfer(scenario: str) -> None:
    """A class that was never seen is never predicted: 0 before and 0 untrained, whatever was learned."""
    state = Run(RunConfig("finetune", batch=200, scenario=scenario))
    assert not share_classes(state.data, state.tasks)
    state.advance()
    assert (state.record.accuracy_before, state.record.accuracy_untrained) == ([], [])


def test_a_run_that_stops_goes_on_with_its_forward_transfer(tmp_path: Path) -> None:
    whole = domains(SHARED)
    whole.advance()

    def stopping(state: Run, step: int) -> None:
        if state.learner.steps == step:
            raise KeyboardInterrupt

    state = domains(SHARED)
    for step in (3, 9, 16):
        with pytest.raises(KeyboardInterrupt):
            state.advance(functools.partial(stopping, state, step))
        state.save(tmp_path / "checkpoint.safetensors")
        state = domains(SHARED)
        state.restore(tmp_path / "checkpoint.safetensors")
    state.advance()
    assert replace(state.record, seconds=0) == replace(whole.record, seconds=0)
    assert len(whole.record.accuracy_before) == 2


def test_a_told_task_is_predicted_among_its_classes_and_training_is_the_same() -> None:
    told = measured(CASES["the task is told"])
    plain = measured(replace(told.config, scenario="class-incremental"))
    assert told.fingerprint == plain.fingerprint
    assert told.accuracy_matrix[0] == plain.accuracy_matrix[0], "of one task, all classes seen are its own"
    assert all(ours >= theirs for ours, theirs in zip(told.accuracy_matrix[-1], plain.accuracy_matrix[-1], strict=True))
    assert told.final_accuracy > plain.final_accuracy
    assert told.protocol["predicted_among"] == "the classes of the image's task"
    assert "predicted_among" not in plain.protocol
    assert told.config.key != plain.config.key
    with pytest.raises(UsageError, match=r"scenario is task-incremental .* and class-incremental"):
        check_one_protocol([told, plain])
    table = overview([told])
    assert table.title == "digits, 5 tasks, task-incremental, small-cnn, memory 30, batch 20, 40 % of the stream"
    assert "task-incremental: predictions are made among the classes of the image's task, which is told" in table.notes


@pytest.mark.system
@pytest.mark.parametrize("method", METHODS)
def test_every_method_answers_among_the_classes_of_a_told_task(method: str) -> None:
    """Two tasks of five classes each: whatever predicts, no answer is a class of the other task."""
    settings = small_settings(method)
    state = Run(RunConfig(method, tasks=2, fraction=0.05, scenario="task-incremental", settings=settings))
    state.advance()
    for task in state.tasks:
        images = state.data.x_test[:50]
        assert task.among == task.info.classes
        assert set(state.learner.predict(images, among=task.among).tolist()) <= set(task.info.classes)
    assert len(state.record.accuracy_matrix) == 2


def test_images_that_measure_every_task_are_predicted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, data, tasks = a_crowd()
    shared = [replace(task, test=torch.arange(880)) for task in tasks]
    expected = share(learner, data, (0, 1, 2), 10_000)
    asked: list[int] = []
    predict = Predictor.predict

    def counting(self: Predictor, images: Tensor, among: Any = None) -> Tensor:
        asked.append(len(images))
        return predict(self, images, among)

    monkeypatch.setattr(Predictor, "__call__", counting)
    assert accuracy_by_task(learner, data, shared) == [pytest.approx(expected)] * 2
    assert sum(asked) == 880
    told = accuracy_by_task(learner, data, [replace(task, among=task.info.classes) for task in shared])
    assert told[0] != told[1], "the same images among other classes are other predictions"


# Stopped and continued; a line for each evaluation.


def stop(step: int, how: type[BaseException] = KeyboardInterrupt) -> Progress:
    def progress(done: int, total: int) -> None:
        if done == step:
            raise how

    return progress


def lines(out: Path, config: RunConfig) -> list[dict[str, Any]]:
    text = (store.folder(out, config) / "evaluations.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def expected_lines(result: Result) -> Iterator[dict[str, Any]]:
    """Of a run of five tasks of six steps: at each step the look, then what the task's end measured."""
    looks = {point["step"]: point["accuracy"] for point in result.anytime}
    for step in range(1, 31):
        if step % EVERY == 0:
            yield {"step": step, "accuracy": looks[step]}
        if step % 6 == 0:
            yield {"step": step, "accuracy": result.accuracy_matrix[step // 6 - 1], "after_task": step // 6 - 1}


@pytest.mark.system
def test_a_run_that_stops_again_and_again_measures_what_one_go_does(tmp_path: Path) -> None:
    for step in (1, 4, 6, 7, 10, 12, 13, 29, 30):
        with pytest.raises(KeyboardInterrupt):
            run(TOLD, tmp_path, progress=stop(step))
    result = run(TOLD, tmp_path)
    assert timeless(result) == timeless(measured(TOLD))
    assert lines(tmp_path, TOLD) == list(expected_lines(result))
    assert run(TOLD, tmp_path) == result


@pytest.mark.system
def test_what_a_killed_run_measured_beyond_its_checkpoint_is_not_there_twice(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(TOLD, tmp_path, progress=stop(5))
    for step in (13, 8, 24):
        with pytest.raises(SystemExit):  # no chance to save anything
            run(TOLD, tmp_path, progress=stop(step, SystemExit))
    result = run(TOLD, tmp_path)
    assert timeless(result) == timeless(measured(TOLD))
    assert lines(tmp_path, TOLD) == list(expected_lines(result))


@pytest.mark.system
def test_without_boundaries_too_stopping_changes_nothing(tmp_path: Path) -> None:
    for step in (1, 9, 10, 11, 20):
        with pytest.raises(KeyboardInterrupt):
            run(FREE, tmp_path, progress=stop(step))
    assert timeless(run(FREE, tmp_path)) == timeless(measured(FREE))


def test_the_file_has_a_line_for_each_evaluation_as_soon_as_it_is_made(tmp_path: Path) -> None:
    sizes = {}

    def progress(done: int, total: int) -> None:
        file = store.folder(tmp_path, TOLD) / "evaluations.jsonl"
        sizes[done] = len(lines(tmp_path, TOLD)) if file.exists() else 0

    run(TOLD, tmp_path, progress=progress)
    assert sizes == {step: step // EVERY + (step - 1) // 6 for step in range(1, 31)}  # a task's own comes after its end
    assert len(lines(tmp_path, TOLD)) == 7 + 5


def test_without_looks_there_is_a_line_for_each_task(tmp_path: Path) -> None:
    config = RunConfig("finetune", batch=200)
    matrix = run(config, tmp_path).accuracy_matrix
    assert lines(tmp_path, config) == [
        {"step": 2 * task + 2, "accuracy": row, "after_task": task} for task, row in enumerate(matrix)
    ]


MEASURES: dict[str, Callable[[Result], float]] = {
    "average anytime": lambda result: metrics.average_anytime([point["accuracy"] for point in result.anytime]),
    "worst case": lambda r: metrics.worst_case([point["accuracy"] for point in r.anytime], r.accuracy_matrix),
    "prequential": lambda result: metrics.prequential_accuracy(result.prequential),
}


@pytest.mark.parametrize("measure", MEASURES)
def test_measures_of_a_stored_result_are_those_of_the_run(measure: str) -> None:
    result = measured(TOLD)
    again = Result.from_json(json.loads(json.dumps(result.to_json())))
    assert 0 < MEASURES[measure](result) == MEASURES[measure](again) < 1
