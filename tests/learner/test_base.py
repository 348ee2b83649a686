"""What every learner gets from the contract: predictions, refusals, steps, scopes, passes and views."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import (
    PIXELS,
    SHAPE,
    assert_same_bits,
    copied,
    everything,
    gradients,
    hidden_layer,
    make,
    no_replay,
    normed_net,
    observe_all,
    passes_counted,
    pixel_net,
    plain_net,
    some_batch,
    some_images,
    state_of,
)
from onepass.config import LearnerConfig, ReplayConfig
from onepass.errors import Diverged, UsageError
from onepass.learner.augment import AUGMENTATIONS, decode
from onepass.learner.base import Learner
from onepass.learner.batch import Batch, Task
from onepass.learner.memory import Memory
from onepass.learner.net import Net
from onepass.learner.problem import Problem
from onepass.methods.er import ER
from onepass.methods.er_fsl import ERFSL
from onepass.methods.factory import build
from onepass.methods.finetune import FineTune

# Predictions.


def eager_for(net: Net, c: int) -> Net:
    """A network that scores class c above all others, whatever it sees."""
    with torch.no_grad():
        net.head.bias[c] = 1e6
    return net


def test_only_seen_classes_are_predicted() -> None:
    learner = make(FineTune, eager_for(plain_net(8, 6), 5))
    images = some_images(50)
    learner.begin_task(Task(0, (4, 1)))
    assert set(learner.predict(images).tolist()) <= {1, 4}
    learner.begin_task(Task(1, (5, 0)))
    assert set(learner.predict(images).tolist()) == {5}


def test_a_prediction_is_the_seen_class_with_the_highest_logit() -> None:
    learner = make(FineTune, normed_net(8, 6))
    learner.begin_task(Task(0, (5, 0, 3)))
    observe_all(learner, [some_batch(10, (0, 3, 5), seed) for seed in range(3)])
    images = some_images(40, seed=9)
    predicted = learner.predict(images)
    learner.eval()
    logits = learner.net(images / 255)
    expected = [max((0, 3, 5), key=lambda c: row[c]) for row in logits.tolist()]
    assert predicted.tolist() == expected
    assert len(set(expected)) > 1


def test_a_prediction_among_some_classes_is_the_one_of_them_with_the_highest_logit() -> None:
    learner = make(FineTune, normed_net(8, 6))
    learner.begin_task(Task(0, (5, 0, 3, 2)))
    observe_all(learner, [some_batch(10, (0, 2, 3, 5), seed) for seed in range(3)])
    images = some_images(40, seed=9)
    learner.eval()
    logits = learner.net(images / 255).tolist()
    for among in ([0, 5], (3,), {5, 2, 0}, iter([2, 3])):
        classes = list(among)
        expected = [max(classes, key=lambda c: row[c]) for row in logits]
        assert learner.predict(images, among=classes).tolist() == expected
        assert learner.snapshot().predict(images, classes).tolist() == expected
    assert learner.predict(images, among=[5, 3, 2, 0]).tolist() == learner.predict(images).tolist()


@pytest.mark.parametrize(("among", "said"), [([0, 4], "got 4, which has not been"), ([], "got none"), ([-1], "got -1")])
def test_among_classes_that_were_not_seen_nothing_is_predicted(among: list[int], said: str) -> None:
    learner = make(FineTune, pixel_net(6))
    learner.begin_task(Task(0, (0, 1)))
    with pytest.raises(UsageError, match=f"among: expected classes that have been seen, {said}"):
        learner.predict(some_images(3), among=among)


def test_classes_met_in_a_batch_count_as_seen_without_a_task() -> None:
    learner = make(FineTune, eager_for(plain_net(8, 6), 5))
    learner.observe(some_batch(4, (2,)))
    assert set(learner.predict(some_images(9)).tolist()) == {2}
    learner.observe(some_batch(4, (5,)))
    assert set(learner.predict(some_images(9)).tolist()) == {5}


def test_chunks_do_not_change_predictions() -> None:
    learner = make(FineTune, normed_net(8, 6))
    learner.begin_task(Task(0, tuple(range(6))))
    observe_all(learner, [some_batch(10, range(6), seed) for seed in range(3)])
    images = some_images(129, seed=5)
    learner.eval()
    with torch.no_grad():
        at_once = learner.net(images / 255).argmax(dim=1)
    assert learner.chunk == 64
    assert learner.predict(images).tolist() == at_once.tolist()
    assert learner.predict(images[128:]).tolist() == at_once[128:].tolist()
    assert len(set(at_once.tolist())) > 1
    assert learner.predict(images[:0]).tolist() == []


class Scores(FineTune):
    """Notes when a scorer is made and what it is given; scores by the first pixel."""

    def setup(self) -> None:
        self.made = 0
        self.given: list[Tensor] = []

    def scorer(self) -> Callable[[Tensor], Tensor]:
        self.made += 1

        def score(x: Tensor) -> Tensor:
            assert not self.training
            assert not torch.is_grad_enabled()
            self.given.append(x)
            return F.one_hot((x[:, 0, 0, 0] * 255).round().long(), 6)

        return score


def test_images_are_scored_as_floats_in_order_and_never_more_than_a_chunk_at_once() -> None:
    learner = make(Scores, pixel_net(6))
    learner.begin_task(Task(0, tuple(range(6))))
    images = torch.zeros(150, *SHAPE, dtype=torch.uint8)
    images[:, 0, 0, 0] = torch.arange(150) % 6
    assert learner.predict(images).tolist() == (torch.arange(150) % 6).tolist()
    assert [len(x) for x in learner.given] == [64, 64, 22]
    assert {x.dtype for x in learner.given} == {torch.float32}


def test_a_scorer_is_made_once_for_many_predictions_in_a_row() -> None:
    learner = make(Scores, pixel_net(6))
    learner.begin_task(Task(0, tuple(range(6))))
    with learner.predicting() as predict:
        for _ in range(3):
            predict(torch.zeros(2, *SHAPE, dtype=torch.uint8))
    assert (learner.made, len(learner.given)) == (1, 3)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_put_back_even_when_a_prediction_fails(training: bool) -> None:
    learner = make(Scores, pixel_net(6))
    learner.begin_task(Task(0, (0, 1)))
    learner.train(training)
    with pytest.raises(UsageError):
        learner.predict(torch.zeros(2, 3, 4, 4))
    assert learner.training is training


def test_predicting_before_any_class_was_seen_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="no class has been seen; call begin_task and observe first"):
        make(FineTune, pixel_net(6)).predict(some_images(1))


# Refusals.

X, Y = some_images(4), torch.tensor([0, 1, 1, 0])
REFUSED = {
    "one image alone": (X[0], Y, "expected images of shape (n, 1, 4, 4), got (1, 4, 4)"),
    "another size": (X[:, :, :3], Y, "expected images of shape (n, 1, 4, 4), got (4, 1, 3, 4)"),
    "double": (
        X.double() / 255,
        Y,
        "images of dtype torch.float64: allowed are torch.uint8 and torch.float32 in [0, 1]",
    ),
    "integers": (X.long(), Y, "images of dtype torch.int64: allowed are torch.uint8 and torch.float32 in [0, 1]"),
    "0..255 as floats": (X.float(), Y, "pixels must lie in [0, 1] and be no NaN"),
    "below zero": (X / 255 - 0.5, Y, "pixels must lie in [0, 1] and be no NaN"),
    "NaN": (X / torch.nan, Y, "float images from nan to nan: pixels must lie in [0, 1] and be no NaN"),
    "labels of int32": (
        X,
        Y.int(),
        "at least one sample; got (4,) of torch.int32 for 4 samples",
    ),
    "float labels": (
        X,
        Y.float(),
        "at least one sample; got (4,) of torch.float32 for 4 samples",
    ),
    "too few labels": (
        X,
        Y[:3],
        "expected one torch.int64 label for each sample, and at least one sample; got (3,) of",
    ),
    "a column of labels": (X, Y[:, None], "at least one sample; got (4, 1) of torch.int64 for 4 samples"),
    "no images": (
        X[:0],
        Y[:0],
        "at least one sample; got (0,) of torch.int64 for 0 samples",
    ),
    "a label too high": (X, Y + 6, "label 6: allowed are 0 to 5; grow(8) makes room for more"),
    "a label below zero": (X, Y - 1, "label -1: allowed are 0 to 5"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_bad_batch_is_refused_by_name_and_changes_nothing(what: str) -> None:
    x, y, message = REFUSED[what]
    learner = make(ER, normed_net(8, 6), memory=9)
    learner.begin_task(Task(0, (2,)))
    learner.observe(some_batch(3, (2,)))
    before, seen = state_of(learner), set(learner.seen)
    with pytest.raises(UsageError, match=re.escape(message)):
        learner.observe(Batch(x, y))
    assert state_of(learner) == before
    assert (learner.seen, learner.steps, learner.memory.seen) == (seen, 1, 3)


def test_one_nan_among_good_pixels_is_found() -> None:
    learner = make(FineTune, pixel_net(6))
    images = torch.rand(4, *SHAPE)
    images[2, 0, 1, 1] = torch.nan
    with pytest.raises(UsageError, match="no NaN"):
        learner.observe(Batch(images, Y))
    learner.begin_task(Task(0, (0,)))
    with pytest.raises(UsageError, match="no NaN"):
        learner.predict(images)


def test_a_label_too_high_says_how_to_make_room() -> None:
    learner = make(FineTune, pixel_net(6))
    with pytest.raises(UsageError, match=re.escape("label 7: allowed are 0 to 5; grow(10) makes room for more")):
        learner.begin_task(Task(0, (9, 7, 3)))
    assert learner.seen == set()
    learner.grow(10)
    learner.begin_task(Task(0, (9, 7, 3)))
    assert learner.seen == {3, 7, 9}


def test_a_learner_cannot_lose_classes() -> None:
    with pytest.raises(UsageError, match=re.escape("grow(5): the learner has 6 classes and cannot lose any")):
        make(FineTune, pixel_net(6)).grow(5)


# Bytes and floats.


# With views "digits" images are joined: if floats of the stream met bytes of the memory before decode(), the replayed
# pixels would be learned as 0..255.
@pytest.mark.parametrize("views", ["none", "digits"])
@pytest.mark.parametrize("cls", [FineTune, ER, ERFSL])
def test_bytes_and_floats_of_equal_content_give_equal_steps(cls: type[Learner], views: str) -> None:
    learners = [make(cls, normed_net(12, 4), augment=views) for _ in range(2)]
    for seed in range(4):
        batch = some_batch(5, (0, 1, 2, 3), seed)
        for learner, x in zip(learners, (batch.x, decode(batch.x)), strict=True):
            if seed == 0:
                learner.begin_task(Task(0, (0, 1, 2, 3)))
            learner.observe(Batch(x, batch.y))
    assert_same_bits(*(copied(learner.net) for learner in learners))
    first, second = (everything(learner) for learner in learners)
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.y, second.y)
    images = some_images(30, seed=8)
    assert learners[0].predict(images).tolist() == learners[1].predict(decode(images)).tolist()


# Steps.


def test_a_step_returns_the_loss_before_it_and_counts() -> None:
    learner = make(FineTune, pixel_net(4))
    learner.begin_task(Task(0, (0, 1, 2, 3)))
    batch = some_batch(6, (0, 1, 2, 3))
    expected = F.cross_entropy(learner.net(batch.x / 255), batch.y).item()
    loss = learner.observe(batch)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert not loss.requires_grad
    assert learner.steps == 1
    assert F.cross_entropy(learner.net(batch.x / 255), batch.y).item() < expected


def test_a_learner_is_back_in_training_mode_when_it_observes() -> None:
    learner = make(FineTune, normed_net(8, 4))
    learner.eval()
    learner.observe(some_batch(6, (0, 1)))
    assert learner.training
    assert passes_counted(learner.net) == 1


def test_a_batch_is_replayed_only_after_it_was_learned() -> None:
    learner = make(ER, plain_net(8, 4), memory=100, replay=100)
    replayed: list[list[int]] = []
    inner = learner.learn

    def learn(batch: Batch, replay: Batch) -> Tensor:
        replayed.append(sorted(replay.y.tolist()))
        assert len(learner.memory) == len(replay)
        return inner(batch, replay)

    learner.learn = learn  # type: ignore[method-assign]  # watched
    for label in range(3):
        learner.observe(some_batch(2, (label,), seed=label))
    assert replayed == [[], [0, 0], [0, 0, 1, 1]]
    assert sorted(learner.memory.read(torch.arange(6)).y.tolist()) == [0, 0, 1, 1, 2, 2]


def test_the_original_is_stored_and_never_its_view() -> None:
    learner = make(ER, plain_net(8, 4), augment="digits")
    batches = [some_batch(5, (0, 1, 2), seed) for seed in range(4)]
    observe_all(learner, batches)
    stored = learner.memory.read(torch.arange(20))
    assert torch.equal(stored.x, torch.cat([batch.x for batch in batches]))
    assert torch.equal(stored.y, torch.cat([batch.y for batch in batches]))


def test_the_memory_of_a_seed_is_the_same_for_every_method_and_every_replay_size() -> None:
    memories: list[Memory] = []
    for cls, settings in ((ER, {"replay": 3}), (ER, {"replay": 10}), (ERFSL, {})):
        learner = make(cls, plain_net(12, 4), augment="digits", memory=7, **settings)
        learner.begin_task(Task(0, (0, 1, 2, 3)))
        observe_all(learner, [some_batch(5, (0, 1, 2, 3), seed) for seed in range(10)])
        memories.append(learner.memory)
    for memory in memories[1:]:
        assert torch.equal(memory.field("x"), memories[0].field("x"))
        assert torch.equal(memory.field("y"), memories[0].field("y"))


def test_a_replay_is_no_larger_than_asked_for_or_than_the_memory() -> None:
    learner = make(ER, plain_net(8, 4), memory=12, replay=5)
    sizes = []
    for seed in range(4):
        sizes.append(len(learner.retrieve(some_batch(1, (0,)))))
        learner.observe(some_batch(3, (0, 1), seed))
    assert sizes == [0, 3, 5, 5]


def test_growing_in_mid_stream_lets_new_rows_learn() -> None:
    learner = make(FineTune, plain_net(8, 3))
    learner.begin_task(Task(0, (0, 1, 2)))
    learner.observe(some_batch(6, (0, 1, 2)))
    learner.grow(5)
    learner.begin_task(Task(1, (3, 4)))
    before = learner.net.head.weight.detach().clone()
    learner.observe(some_batch(6, (3, 4)))
    changed = (learner.net.head.weight.detach() != before).any(dim=1)
    assert changed.tolist() == [True] * 5
    assert learner.problem.n_classes == 5


# Divergence.


def at_the_edge(net: Net) -> Learner:
    """A learner after one good step, with finite weights so large that the next loss is not finite."""
    learner = make(FineTune, net)
    learner.begin_task(Task(0, (0, 1, 2, 3)))
    learner.observe(some_batch(6, (0, 1, 2, 3)))
    with torch.no_grad():
        hidden_layer(net).weight.fill_(3e38)
    return learner


def test_a_step_whose_loss_is_no_number_is_refused_and_leaves_the_weights_as_they_were() -> None:
    learner = at_the_edge(plain_net(8, 4))
    before = copied(learner.net)
    message = r"at step 1 the loss is (nan|inf) .* lr=0\.1: try a smaller one \(--lr 0\.01\); the learner from before"
    with pytest.raises(Diverged, match=message):
        learner.observe(some_batch(6, (0, 1, 2, 3), seed=1))
    assert_same_bits(copied(learner.net), before)
    assert all(value.isfinite().all() for value in before.values())
    assert learner.steps == 1


# The forward pass that finds the loss to be no number has moved them: kept as NaN, they would leave a learner (the one
# that is saved as diverged.safetensors) that cannot predict.
def test_a_refused_step_leaves_the_batch_norm_statistics_as_they_were() -> None:
    learner = at_the_edge(normed_net(8, 4))
    before = copied(learner.net)
    with pytest.raises(Diverged):
        learner.observe(some_batch(6, (0, 1, 2, 3), seed=1))
    assert_same_bits(copied(learner.net), before)
    assert all(value.isfinite().all() for value in before.values())


class WithASecondNetwork(FineTune):
    def setup(self) -> None:
        self.peer = copy.deepcopy(self.net)

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        self.peer(decode(batch.x))
        return super().loss(batch, replay)


@pytest.mark.parametrize("classes", [(0, 1), (2, 3)], ids=["known classes", "new classes"])
def test_a_refused_step_leaves_the_statistics_of_a_second_network_as_they_were(classes: tuple[int, ...]) -> None:
    learner = make(WithASecondNetwork, normed_net(8, 4))
    learner.begin_task(Task(0, (0, 1)))
    learner.observe(some_batch(6, (0, 1)))
    before = copied(learner.peer)
    with torch.no_grad():
        hidden_layer(learner.net).weight.fill_(3e38)
    with pytest.raises(Diverged):
        learner.observe(some_batch(6, classes, seed=1))
    assert_same_bits(copied(learner.peer), before)


# A check of the loss alone would let the weights become infinite, and the Diverged of the next step would keep those.
def test_a_finite_loss_with_a_gradient_that_overflows_is_refused_and_leaves_the_weights_as_they_were() -> None:
    small, large = nn.Linear(PIXELS, 8, bias=False), nn.Linear(8, 8, bias=False)
    net = Net(nn.Sequential(nn.Flatten(), small, large), 8, 4)
    with torch.no_grad():
        small.weight.fill_(1e-30)
        large.weight.fill_(1e30)
        net.head.weight.copy_(1e30 * torch.tensor([[1.0], [2.0], [3.0], [4.0]]).expand(4, 8))
    learner = make(FineTune, net)
    learner.begin_task(Task(0, (0, 1, 2, 3)))
    before = copied(net)
    with pytest.raises(Diverged):
        learner.observe(some_batch(6, (0, 1)))
    assert_same_bits(copied(net), before)


# Scope.


def test_cross_entropy_over_seen_classes_ignores_the_columns_of_the_others() -> None:
    learner = make(FineTune, pixel_net(6))
    learner.begin_task(Task(0, (4, 1)))
    logits = torch.tensor([[9.0, 1.0, 9.0, 9.0, 3.0, 9.0], [9.0, -1.0, 9.0, 9.0, 0.5, 9.0]])
    y = torch.tensor([4, 1])
    # -log(e^3 / (e^1 + e^3)) and -log(e^-1 / (e^-1 + e^0.5))
    expected = (torch.tensor(1 + torch.e**-2).log() + torch.tensor(1 + torch.e**1.5).log()) / 2
    assert learner.cross_entropy(logits, y).item() == pytest.approx(expected.item(), rel=1e-6)
    assert learner.cross_entropy(-logits, y).item() != pytest.approx(expected.item(), rel=1e-3)


def test_cross_entropy_over_all_classes_is_torchs() -> None:
    learner = make(FineTune, pixel_net(6), scope="all")
    learner.begin_task(Task(0, (4, 1)))
    logits, y = torch.randn(7, 6), torch.tensor([4, 1, 1, 4, 4, 1, 4])
    assert torch.equal(learner.cross_entropy(logits, y), F.cross_entropy(logits, y))


@pytest.mark.parametrize("cls", [FineTune, ER, ERFSL])
@pytest.mark.parametrize("scope", ["seen", "all"])
def test_rows_of_unseen_classes_have_a_gradient_only_if_all_are_in_scope(cls: type[Learner], scope: str) -> None:
    learner = make(cls, plain_net(12, 6), scope=scope)
    learner.begin_task(Task(0, (5, 0)))
    batch = some_batch(8, (0, 5))
    learner.observe(batch)
    found = gradients(learner, learner.loss(some_batch(8, (0, 5), seed=1), learner.retrieve(batch)))
    moves = found["head.weight"].abs().sum(dim=1) > 0
    assert moves.tolist() == ([True, False, False, False, False, True] if scope == "seen" else [True] * 6)


def test_a_task_brings_all_its_classes_into_scope_before_its_first_sample() -> None:
    learner = make(FineTune, plain_net(8, 6))
    learner.begin_task(Task(0, (5, 0, 2)))
    found = gradients(learner, learner.loss(some_batch(8, (5,)), no_replay(learner)))
    assert (found["head.weight"].abs().sum(dim=1) > 0).tolist() == [True, False, True, False, False, True]


# Passes and views.


def test_joint_and_separate_passes_agree_without_batch_norm_and_differ_with_it() -> None:
    first, second = some_batch(6, (0, 1)), some_batch(4, (2, 3), seed=1)
    for net, same in ((plain_net(8, 4), True), (normed_net(8, 4), False)):
        learner = make(ER, net)
        joint, separate = (learner.forward_batches(learner.net, first, second, joint=joint) for joint in (True, False))
        for way in (joint, separate):
            assert [y.tolist() for _, y in way] == [first.y.tolist(), second.y.tolist()]
        for (ours, _), (theirs, _) in zip(joint, separate, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5) is same


def test_separate_passes_are_the_network_on_each_batch_and_a_joint_one_on_both() -> None:
    learner = make(ER, normed_net(8, 4))
    first, second = some_batch(6, (0, 1)), some_batch(4, (2, 3), seed=1)
    x, z = first.x / 255, second.x / 255
    (one, _), (two, _) = learner.forward_batches(learner.net, first, second, joint=False)
    torch.testing.assert_close((one, two), (learner.net(x), learner.net(z)))
    (one, _), (two, _) = learner.forward_batches(learner.net, first, second, joint=True)
    torch.testing.assert_close(torch.cat([one, two]), learner.net(torch.cat([x, z])))


@pytest.mark.parametrize("joint", [True, False])
def test_an_empty_batch_makes_no_pass(joint: bool) -> None:
    learner = make(ER, normed_net(8, 4))
    [(logits, y)] = learner.forward_batches(learner.net, some_batch(6, (0, 1)), no_replay(learner), joint=joint)
    assert (len(logits), len(y)) == (6, 6)
    assert passes_counted(learner.net) == 1


def test_views_are_the_originals_followed_by_one_view_each_with_doubled_labels() -> None:
    learner = make(ER, pixel_net(4), augment="digits")
    first, second = some_batch(6, (0, 1)), some_batch(3, (2, 3), seed=1)
    twin = torch.Generator()
    twin.set_state(learner.rng.get_state())
    (x, y), (z, w) = learner.views(first, second)
    assert (x.shape, z.shape) == ((12, *SHAPE), (6, *SHAPE))
    assert torch.equal(x[:6], first.x / 255)
    assert torch.equal(z[:3], second.x / 255)
    assert y.tolist() == first.y.tolist() * 2
    assert w.tolist() == second.y.tolist() * 2
    augment = AUGMENTATIONS["digits"]
    assert augment is not None
    drawn = augment(torch.cat([first.x, second.x]) / 255, twin)
    assert torch.equal(torch.cat([x[6:], z[3:]]), drawn)
    assert not torch.equal(x[6:], x[:6])


def test_every_replay_draws_new_views() -> None:
    learner = make(ER, pixel_net(4), augment="digits")
    batch = some_batch(6, (0, 1))
    [(x, _)], [(again, _)] = learner.views(batch), learner.views(batch)
    assert torch.equal(x[:6], again[:6])
    assert not torch.equal(x[6:], again[6:])


def test_without_views_a_batch_is_its_images_once() -> None:
    learner = make(ER, pixel_net(4))
    before = learner.rng.get_state()
    batch = some_batch(6, (0, 1))
    [(x, y)] = learner.views(batch)
    assert torch.equal(x, batch.x / 255)
    assert torch.equal(y, batch.y)
    assert torch.equal(learner.rng.get_state(), before)


def test_views_double_what_a_step_learns_from() -> None:
    """The loss is the mean over originals and views: eq. 1 on twice as many rows."""
    learner = make(FineTune, plain_net(8, 4), augment="digits")
    learner.begin_task(Task(0, (0, 1, 2, 3)))
    batch, state = some_batch(6, (0, 1, 2, 3)), learner.rng.get_state()
    loss = learner.loss(batch, no_replay(learner))
    learner.rng.set_state(state)
    augment = AUGMENTATIONS["digits"]
    assert augment is not None
    x = batch.x / 255
    halves = [F.cross_entropy(learner.net(part), batch.y) for part in (x, augment(x, learner.rng))]
    torch.testing.assert_close(loss, (halves[0] + halves[1]) / 2)


# What a method may not forget.


def test_a_learner_without_a_loss_says_so() -> None:
    learner = Learner(pixel_net(4), Problem(4, SHAPE), LearnerConfig(), seed=0)
    with pytest.raises(NotImplementedError, match=r"Learner must define loss\(batch, replay\)"):
        learner.observe(some_batch(3, (0, 1)))


def test_a_method_without_a_memory_stores_nothing() -> None:
    learner = make(FineTune, pixel_net(4))
    observe_all(learner, [some_batch(5, (0, 1), seed) for seed in range(3)])
    assert (len(learner.memory), learner.memory.capacity) == (0, 0)


def test_state_goes_to_a_learner_of_fewer_classes_and_it_goes_on_alike() -> None:
    learner = make(ER, normed_net(8, 3), augment="digits", memory=9)
    learner.begin_task(Task(0, (0, 2)))
    learner.observe(some_batch(5, (0, 2)))
    learner.grow(5)
    learner.begin_task(Task(1, (4,)))
    fresh = make(ER, normed_net(8, 3, seed=7), augment="digits", memory=9, seed=7)
    fresh.load_state_dict(learner.state_dict())
    assert (fresh.seen, fresh.task, fresh.steps, fresh.problem.n_classes) == ({0, 2, 4}, Task(1, (4,)), 1, 5)
    for one in (learner, fresh):
        observe_all(one, [some_batch(5, (4,), seed) for seed in range(1, 4)])
    assert state_of(fresh) == state_of(learner)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"n_classes": 0}, "n_classes=0: must be a whole number of at least 1"),
        ({"n_classes": "2"}, "n_classes='2'"),
        ({"n_classes": None}, "n_classes=None"),
        ({"n_tasks": -1}, "n_tasks=-1"),
        ({"shape": 8}, "shape=8: expected"),
        ({"shape": (1, 8, 0)}, "expected"),
        ({"shape": (1, 1, 8, 8)}, r"expected one to three sides, got 4"),
        ({"shape": (8,), "augment": "colour"}, "augmentation .colour. is of images: vectors have noise or none"),
        ({"augment": "color"}, "unknown augmentation 'color'; did you mean 'colour'"),
    ],
)
def test_a_problem_that_cannot_be_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Problem(**{"n_classes": 4, "shape": (1, 8, 8), **changes})


def test_settings_may_be_a_mapping_and_those_of_another_method_are_refused() -> None:
    problem = Problem(numpy.int64(4), [1, 8, 8], n_tasks=2)  # type: ignore[arg-type]  # understood too
    assert type(problem.n_classes) is int
    learner = build("er-fsl", problem, {"memory": 7, "gamma": 0.5}, net="small-cnn")
    assert learner.memory.capacity == 7
    assert problem.shape == (1, 8, 8)
    with pytest.raises(UsageError, match="config of ReplayConfig: er-fsl needs ERFSLConfig or a mapping"):
        build("er-fsl", problem, ReplayConfig(), net="small-cnn")
    with pytest.raises(UsageError, match="unknown setting 'gama'; did you mean 'gamma'"):
        build("er-fsl", problem, {"gama": 0.5}, net="small-cnn")


def test_what_are_no_tensors_is_said() -> None:
    learner = build("er", Problem(4, (1, 8, 8)), net="small-cnn")
    images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    with pytest.raises(UsageError, match=r"expected images as a torch\.Tensor, got ndarray; torch\.from_numpy"):
        learner.observe(Batch(images.numpy(), torch.tensor([0, 1])))  # type: ignore[arg-type]  # refused
    with pytest.raises(UsageError, match=r"expected labels as a torch\.int64 tensor, got list; use torch\.tensor"):
        learner.observe(Batch(images, [0, 1]))  # type: ignore[arg-type]  # refused
    with pytest.raises(UsageError, match=r"label -1: allowed are 0 to 3$"):
        learner.observe(Batch(images, torch.tensor([0, -1])))
