"""ER-DVC: an image and its augmentation agree; replay of those whose last-layer gradient would grow most."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import (
    assert_close,
    assert_same_bits,
    cloned,
    copied,
    everything,
    hidden_layer,
    make,
    normed_net,
    observe_all,
    passes_counted,
    plain_net,
    slopes_of,
    some_batch,
    some_images,
)
from method_helpers import (
    SCOPE,
    SEEN,
    WatchedChoice,
    descended,
    entropies,
    hold_gradient,
    largest,
    layers,
    parameters_of,
    passes_of,
    slots,
    slots_at,
    united,
)
from onepass.learner.augment import AUGMENTATIONS
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net
from onepass.methods import er_dvc as module
from onepass.methods.er import ER
from onepass.methods.er_dvc import ERDVC, ERDVCConfig


class Watched(WatchedChoice, ERDVC):
    """Remembers what it chose, and from what."""


def dvc(net: Net | None = None, stored: int = 20, classes: Sequence[int] = SEEN, **settings: Any) -> Watched:
    """A learner that has met some classes, with some samples of them stored."""
    settings = {"lr": 0.5, "memory": 40, "augment": "digits", **settings}
    learner = make(Watched, plain_net(8, 6) if net is None else net, **settings)
    learner.begin_task(Task(0, tuple(classes)))
    if stored:
        learner.memory.write(learner.memory.reservoir(stored), some_batch(stored, classes, seed=77))
    return learner


def share(row: Tensor, classes: Sequence[int]) -> list[Tensor]:
    weights = [torch.exp(row[c] - max(row[k].item() for k in classes)) for c in classes]
    return [weight / sum(weights) for weight in weights]


def parts(
    net: Net, qnet: nn.Module, pair: tuple[Tensor, Tensor], y: Tensor, classes: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy, minus the mean marginal entropy, and distance of the views, by loops over rows and classes."""
    n, labels = len(y), y.tolist()
    logits = net(torch.cat(pair))
    first, second = logits[:n], logits[n:]
    joint = qnet(torch.cat([first, second], dim=1))
    p, r, q = ([share(row, classes) for row in rows] for rows in (first, second, joint))
    where = [list(classes).index(c) for c in labels]
    ce = -sum((rows[i][where[i]].log() for rows in (p, r) for i in range(n)), torch.zeros(())) / (2 * n)
    entropy, distance = torch.zeros(()), torch.zeros(())
    for rows in (p, r, q):
        for c in range(len(classes)):
            mean = sum((row[c] for row in rows), torch.zeros(())) / n
            entropy = entropy + mean * mean.log() / 3
    for rows in (p, r):
        for i in range(n):
            for c in range(len(classes)):
                distance = distance + (q[i][c] - rows[i][c]).abs() / (2 * n * logits.shape[1])  # all classes
    return ce, entropy, distance


def drawn_pair(learner: ERDVC, batch: Batch, state: Tensor) -> tuple[Tensor, Tensor]:
    """The pair of views that the learner makes from this state of its generator."""
    now = learner.rng.get_state()
    learner.rng.set_state(state)
    [pair] = learner.images_and_views(batch)
    learner.rng.set_state(now)
    return pair


def all_parameters(learner: ERDVC) -> dict[str, Tensor]:
    return parameters_of(net=learner.net, qnet=learner.qnet)


def all_slopes(learner: ERDVC, loss: Tensor) -> dict[str, Tensor]:
    return slopes_of(all_parameters(learner), loss)


def entropy_part(learner: ERDVC, batch: Batch) -> Tensor:
    """What `term` has beside the cross-entropy, without weight on the distance and without views."""
    assert learner.config.dl_weight == 0
    logits = learner.net(batch.x / 255)
    return learner.batch_loss(batch) - learner.cross_entropy(logits, batch.y)


@torch.no_grad()
def predict_always(layer: nn.Linear, logits: Sequence[float]) -> None:
    layer.weight.zero_()
    layer.bias.copy_(torch.tensor(logits))


# The loss of a batch.


@pytest.mark.parametrize("scope", ["seen", "all"])
@pytest.mark.parametrize("weight", [0.0, 2.0, 7.0])
def test_the_loss_is_cross_entropy_less_the_marginal_entropy_plus_the_distance_of_views(
    weight: float, scope: str
) -> None:
    """With its gradient: through both logits into the network, and into the joint classifier."""
    learner = dvc(dl_weight=weight, scope=scope)
    batch, state = some_batch(5, SEEN), learner.rng.get_state()
    loss = learner.batch_loss(batch)
    pair = drawn_pair(learner, batch, state)
    assert not torch.equal(*pair)
    ce, entropy, distance = parts(learner.net, learner.qnet, pair, batch.y, SCOPE[scope])
    expected = ce + entropy + weight * distance
    torch.testing.assert_close(loss, expected)
    assert_close(all_slopes(learner, loss), all_slopes(learner, expected), rtol=1e-3, atol=1e-6)
    assert -math.log(len(SCOPE[scope])) < entropy.item() < 0
    assert distance.item() > 0.01


def test_marginals_are_those_of_each_view_and_of_the_joint_classifier_apart() -> None:
    """One marginal over both views would have another entropy."""
    learner, differs = dvc(plain_net(8, 4), dl_weight=0.0), []
    with torch.no_grad():
        learner.net.head.weight.mul_(5)
    for trial in range(6):
        batch, state = some_batch(1, SEEN, seed=trial), learner.rng.get_state()
        loss = learner.batch_loss(batch)
        x, z = pair = drawn_pair(learner, batch, state)
        ce, entropy, _ = parts(learner.net, learner.qnet, pair, batch.y, SEEN)
        torch.testing.assert_close(loss - ce, entropy, rtol=1e-4, atol=1e-5)
        both = F.softmax(learner.net(torch.cat(pair)), dim=1).mean(dim=0)
        joint = F.softmax(learner.qnet(torch.cat([learner.net(x), learner.net(z)], dim=1)), dim=1).mean(dim=0)
        pooled = (2 * (both * both.log()).sum() + (joint * joint.log()).sum()) / 3
        differs.append((pooled - entropy).abs().item())
    assert max(differs) > 0.01


@pytest.mark.parametrize(("scope", "n"), [("seen", 4), ("all", 6)])
def test_uniform_predictions_have_the_largest_marginal_entropy(scope: str, n: int) -> None:
    """L_ent = -log C; the views agree, so their distance is 0 whatever its weight."""
    for weight in (0.0, 100.0):
        learner = dvc(scope=scope, dl_weight=weight)
        for layer in (learner.net.head, layers(learner.qnet)[1]):
            predict_always(layer, [0.3] * 6)
        batch = some_batch(5, SEEN)
        ce = F.cross_entropy(torch.zeros(5, n), batch.y)
        assert (learner.batch_loss(batch) - ce).item() == pytest.approx(-math.log(n), abs=1e-5)


def test_equal_one_hot_predictions_have_no_marginal_entropy() -> None:
    """Shares that are exactly zero: neither the loss nor its gradient is NaN."""
    learner = dvc(dl_weight=100.0)
    hot = [0.0, 0.0, 500.0, 0.0, 0.0, 0.0]
    for layer in (learner.net.head, layers(learner.qnet)[1]):
        predict_always(layer, hot)
    batch = Batch(some_images(5), torch.full((5,), 2))
    loss = learner.batch_loss(batch)
    assert loss.item() == pytest.approx(0.0, abs=1e-4)
    assert all(slope.isfinite().all() for slope in all_slopes(learner, loss).values())


def test_one_hot_predictions_of_two_classes_have_the_entropy_of_their_shares() -> None:
    """Samples are sure, their average is not: the marginal's entropy is meant and not the samples'."""
    learner = dvc(plain_net(2, 4), stored=0, augment="none", dl_weight=0.0)
    body = hidden_layer(learner.net)
    with torch.no_grad():  # feature 0 is on for white images, feature 1 for black ones
        body.weight[0], body.bias[0], body.weight[1], body.bias[1] = 1.0, 0.0, -1.0, 16.0
        learner.net.head.weight.copy_(torch.tensor([[9.0, 0.0], [0.0, 9.0], [0.0, 0.0], [0.0, 0.0]]))
        learner.net.head.bias.zero_()
    predict_always(layers(learner.qnet)[1], [200.0, 0.0, 0.0, 0.0])  # no entropy from here
    images = torch.zeros(5, 1, 4, 4, dtype=torch.uint8)
    images[:2] = 255
    batch = Batch(images, torch.tensor([0, 0, 1, 1, 1]))
    expected = 2 / 3 * (0.4 * math.log(0.4) + 0.6 * math.log(0.6))
    assert entropy_part(learner, batch).item() == pytest.approx(expected, abs=1e-4)


def test_the_distance_is_a_mean_over_rows_and_classes_and_vanishes_only_in_agreement() -> None:
    found = []
    for q in ([200.0, 0, 0, 0], [0, 200.0, 0, 0]):
        losses = []
        for weight in (0.0, 1.0):
            learner = dvc(plain_net(8, 4), dl_weight=weight)
            predict_always(learner.net.head, [200.0, 0, 0, 0])
            predict_always(layers(learner.qnet)[1], q)
            losses.append(learner.batch_loss(Batch(some_images(5), torch.zeros(5, dtype=torch.int64))).item())
        found.append(losses[1] - losses[0])
    assert found == pytest.approx([0.0, 2 / 4], abs=1e-5)  # two of four classes differ by 1, in all rows


def test_without_views_the_image_is_its_own_second_view() -> None:
    learner = dvc(augment="none")
    batch = some_batch(5, SEEN)
    x = batch.x / 255
    ce, entropy, distance = parts(learner.net, learner.qnet, (x, x), batch.y, SEEN)
    torch.testing.assert_close(learner.batch_loss(batch), ce + entropy + 2 * distance)


def test_both_views_share_one_pass() -> None:
    learner = dvc(normed_net(8, 6))
    twin, qnet = copy.deepcopy(learner.net), copy.deepcopy(learner.qnet)
    batch, state = some_batch(5, SEEN), learner.rng.get_state()
    loss = learner.batch_loss(batch)
    ce, entropy, distance = parts(twin, qnet, drawn_pair(learner, batch, state), batch.y, SEEN)
    torch.testing.assert_close(loss, ce + entropy + 2 * distance)
    assert_same_bits(copied(learner.net), copied(twin))
    assert passes_counted(learner.net) == 1


def test_the_joint_classifier_is_fed_the_logits_of_all_outputs() -> None:
    learner = dvc()
    assert [type(layer) for layer in learner.qnet] == [nn.Linear, nn.ReLU, nn.Linear]
    assert [layer.weight.shape for layer in layers(learner.qnet)] == [(128, 12), (6, 128)]
    batch, state = some_batch(5, SEEN), learner.rng.get_state()
    before = learner.batch_loss(batch)
    with torch.no_grad():
        layers(learner.qnet)[0].weight[:, [4, 5, 10, 11]] *= -3  # unseen outputs: no share of a softmax, but an input
    learner.rng.set_state(state)
    assert (learner.batch_loss(batch) - before).abs() > 1e-5


# The choice.


def norms(net: Net, pool: Batch, classes: Sequence[int]) -> Tensor:
    """For each candidate the L1 norm of its own loss's gradient for the last weights, by autograd."""
    logits = net(pool.x / 255)
    losses = entropies(logits, pool.y, classes)
    return torch.stack(
        [torch.autograd.grad(loss, net.head.weight, retain_graph=True)[0].abs().sum() for loss in losses]
    )


def stepped(learner: ERDVC, lr: float) -> Net:
    """A copy that has really stepped along the gradient held."""
    other = copy.deepcopy(learner.net)
    with torch.no_grad():
        for parameter, original in zip(other.parameters(), learner.net.parameters(), strict=True):
            assert original.grad is not None
            parameter.sub_(lr * original.grad)
    return other


@pytest.mark.parametrize("scope", ["seen", "all"])
def test_the_chosen_are_those_whose_last_gradient_grows_most(scope: str) -> None:
    """The score is the L1 norm of the gradient for the head's weight, found here by autograd."""
    wrong: dict[str, int] = dict.fromkeys(("smallest", "after", "before", "ascent", "other scope", "loss"), 0)
    trials = 4
    for trial in range(trials):
        learner = dvc(plain_net(8, 6, seed=trial), stored=14, replay=5, scope=scope)
        with torch.no_grad():
            learner.net.head.bias[4:] += 2  # what the unseen outputs take away must matter
        pool, classes = everything(learner), SCOPE[scope]
        hold_gradient(learner, some_batch(4, (0, 3), seed=trial))
        now, after, uphill = learner.net, stepped(learner, 0.5), stepped(learner, -0.5)
        growth = norms(after, pool, classes) - norms(now, pool, classes)
        found = slots(learner.choose(pool))
        assert found == largest(growth, 5)
        others = SCOPE["all" if scope == "seen" else "seen"]
        place = torch.tensor([classes.index(c) for c in pool.y.tolist()])
        losses = [F.cross_entropy(net(pool.x / 255)[:, classes], place, reduction="none") for net in (now, after)]
        readings = (
            -growth,
            norms(after, pool, classes),
            norms(now, pool, classes),
            norms(uphill, pool, classes) - norms(now, pool, classes),
            norms(after, pool, others) - norms(now, pool, others),
            losses[1] - losses[0],
        )
        for name, reading in zip(wrong, readings, strict=True):
            wrong[name] += found != set(reading.argsort(descending=True)[:5].tolist())
    assert all(count >= trials / 2 for count in wrong.values()), wrong  # so that a wrong score would have been seen


def test_candidates_are_normalised_by_their_own_batch_as_in_training() -> None:
    differs = 0
    for trial in range(4):
        learner = dvc(normed_net(8, 6, seed=trial), stored=14, replay=5)
        pool = everything(learner)
        hold_gradient(learner, some_batch(4, (0, 3), seed=trial))
        now, after = copy.deepcopy(learner.net), stepped(learner, 0.5)
        growth = norms(after, pool, SEEN) - norms(now, pool, SEEN)
        found = slots(learner.choose(pool))
        assert found == largest(growth, 5)
        still = norms(after.eval(), pool, SEEN) - norms(now.eval(), pool, SEEN)
        differs += found != set(still.argsort(descending=True)[:5].tolist())
    assert differs > 1  # in evaluation mode others would have been chosen


def test_looking_ahead_leaves_no_trace() -> None:
    """Weights, gradients, running statistics, mode, draws and memory are the same bits as before."""
    learner = dvc(normed_net(8, 6), replay=5)
    hold_gradient(learner, some_batch(4, (0, 3)))
    weights = {**copied(learner.net), **{f"q{n}": v for n, v in copied(learner.qnet).items()}}
    slopes = {name: p.grad.clone() for name, p in all_parameters(learner).items() if p.grad is not None}
    drawn, stored = learner.rng.get_state(), learner.memory.field("x")[:20].clone()
    assert len(learner.choose(everything(learner))) == 5
    assert_same_bits({**copied(learner.net), **{f"q{n}": v for n, v in copied(learner.qnet).items()}}, weights)
    assert_same_bits({n: p.grad for n, p in all_parameters(learner).items() if p.grad is not None}, slopes)
    assert torch.equal(learner.rng.get_state(), drawn)
    assert torch.equal(learner.memory.field("x")[:20], stored)
    assert all(module.training for module in learner.modules())


def test_parameters_without_a_gradient_do_not_step_in_the_look_ahead() -> None:
    learner = dvc(replay=5)
    assert all(p.grad is None for p in learner.net.parameters())
    assert len(slots(learner.choose(everything(learner)))) == 5
    hold_gradient(learner, some_batch(4, (0, 3)))
    for parameter in learner.net.body.parameters():
        parameter.grad = None
    after = copy.deepcopy(learner.net)
    with torch.no_grad():
        for parameter, original in zip(after.head.parameters(), learner.net.head.parameters(), strict=True):
            assert original.grad is not None
            parameter.sub_(0.5 * original.grad)
    pool = everything(learner)
    growth = norms(after, pool, SEEN) - norms(learner.net, pool, SEEN)
    assert slots(learner.choose(pool)) == largest(growth, 5)


def test_as_many_candidates_as_replayed_are_a_random_replay() -> None:
    """The draw is that of every method, and nothing is left to score: no image passes before it is learned."""
    learner, twin = (dvc(candidates=5, replay=5) for _ in range(2))
    expected = twin.memory.sample(5, twin.rng).slots
    passed = passes_of(learner.net.body)
    learner.observe(some_batch(4, (0, 3)))
    assert expected is not None
    assert slots(learner.spied) == set(expected.tolist())
    assert passed == [8, 10]


# The step.


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_a_step_learns_new_and_chosen_by_the_same_loss(combine: str) -> None:
    """Both the network and the joint classifier take a hand-written gradient step."""
    learner = dvc(combine=combine, candidates=12, replay=3)
    learner.observe(some_batch(4, (1, 2), seed=50))  # leaves a gradient behind
    twin = copy.deepcopy(learner)
    batch = some_batch(6, (0, 3))
    loss = learner.observe(batch)
    pool = twin.retrieve(batch)
    before = cloned(all_parameters(twin))

    def whole(part: Batch) -> Tensor:
        ce, entropy, distance = parts(twin.net, twin.qnet, twin.images_and_views(part)[0], part.y, SEEN)
        return ce + entropy + 2 * distance

    new = whole(batch)
    twin.optimizer.zero_grad()
    new.backward(retain_graph=True)
    growth = norms(stepped(twin, 0.5), pool, SEEN) - norms(twin.net, pool, SEEN)
    assert slots(learner.spied) == slots_at(pool, largest(growth, 3))
    assert learner.spied is not None
    old = whole(learner.spied)
    total = united(new, old, (6, 3), combine)
    torch.testing.assert_close(loss, total.detach())
    moved = descended(all_parameters(twin), total, 0.5)
    ours = cloned(all_parameters(learner))
    assert_close(ours, moved, rtol=1e-3, atol=1e-5)
    assert all(not torch.equal(ours[name], before[name]) for name in before)


@pytest.mark.parametrize("combine", ["sum", "mean"])
def test_without_its_own_terms_and_with_a_random_replay_it_is_er(combine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views need no draw here: ER draws those of new and replayed images together."""
    monkeypatch.setitem(AUGMENTATIONS, "digits", lambda images, rng: images.flip(3))
    settings: dict[str, Any] = {"lr": 0.5, "memory": 40, "replay": 5, "combine": combine, "augment": "digits"}

    def learned(**own: Any) -> tuple[ERDVC, ER]:
        ours = make(ERDVC, normed_net(8, 6), candidates=5, **own, **settings)
        er = make(ER, normed_net(8, 6), **settings)
        er.rng.set_state(ours.rng.get_state())  # the joint classifier was drawn from it
        for learner in (ours, er):
            learner.begin_task(Task(0, SEEN))
            observe_all(learner, [some_batch(4, SEEN, seed=i) for i in range(6)])
        return ours, er

    with monkeypatch.context() as without:
        without.setattr(module, "negentropy", lambda p: torch.zeros(()))
        ours, er = learned(dl_weight=0.0)
    assert_close(copied(ours.net), copied(er.net), rtol=1e-3, atol=1e-5)
    assert torch.equal(everything(ours).x, everything(er).x)
    assert_same_bits(copied(ours.qnet), copied(make(ERDVC, normed_net(8, 6)).qnet))
    whole, _ = learned()
    assert not torch.allclose(whole.net.head.weight, er.net.head.weight, atol=1e-2)  # the terms would have been seen


def test_new_and_chosen_are_normalised_apart() -> None:
    learner = dvc(normed_net(8, 6), candidates=12, replay=3)
    learner.observe(some_batch(6, (0, 3)))
    assert passes_counted(learner.net) == 2


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_an_empty_memory_leaves_the_loss_of_the_new_batch_whole(combine: str) -> None:
    learner, twin = (dvc(stored=0, combine=combine) for _ in range(2))
    batch = some_batch(6, (0, 3))
    expected = twin.batch_loss(batch)
    torch.testing.assert_close(learner.observe(batch), expected.detach())
    moved = descended(all_parameters(twin), expected, 0.5)
    assert_close(cloned(all_parameters(learner)), moved)
    assert len(learner.memory) == 6


def test_predictions_are_those_of_the_plain_logits() -> None:
    learner = dvc()
    observe_all(learner, [some_batch(6, SEEN, seed=i) for i in range(3)])
    images = some_images(100, seed=8)
    expected = learner.net(images / 255)[:, :4].argmax(dim=1)
    assert torch.equal(learner.predict(images), expected)
    with torch.no_grad():
        for parameter in learner.qnet.parameters():
            parameter.fill_(3.0)
    assert torch.equal(learner.predict(images), expected)


def test_the_joint_classifier_comes_from_the_learners_own_seed() -> None:
    made = [make(ERDVC, plain_net(8, 6), seed=seed).qnet for seed in (1, 1, 2)]
    first, again, other = (layers(qnet)[0].weight for qnet in made)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_published_values_are_the_defaults() -> None:
    config = ERDVCConfig()
    assert (config.dl_weight, config.candidates, config.replay, config.combine) == (2.0, 50, 10, "mean")


# Streams that are not as one would like.


def test_a_single_class_and_a_single_sample_give_finite_losses() -> None:
    learner = dvc(stored=0, classes=(2,))
    for i in range(3):
        assert learner.observe(some_batch(1, (2,), seed=i)).isfinite()
    assert all(p.isfinite().all() for p in all_parameters(learner).values())


def test_growing_keeps_what_the_joint_classifier_knows_of_the_old_classes() -> None:
    """Its inputs are two rows of logits: each of them grows at its own end."""
    learner = make(ERDVC, plain_net(8, 3))
    before = copied(learner.qnet)
    for n in (4, 6):
        learner.grow(n)
    first, last = layers(learner.qnet)
    assert first.weight.shape == (128, 12)
    assert last.weight.shape == (6, 128)
    assert torch.equal(first.weight[:, [0, 1, 2, 6, 7, 8]], before["0.weight"])
    assert torch.equal(first.bias, before["0.bias"])
    assert torch.equal(last.weight[:3], before["2.weight"])
    assert torch.equal(last.bias[:3], before["2.bias"])


def test_growing_in_mid_stream_goes_on_learning() -> None:
    learner = make(ERDVC, plain_net(8, 4), replay=3, candidates=10, augment="digits")
    observe_all(learner, [some_batch(4, SEEN, seed=i) for i in range(5)])
    learner.grow(6)
    before = cloned(all_parameters(learner))
    batch = some_batch(6, (4, 5))
    losses = [learner.observe(batch).item() for _ in range(40)]
    assert losses[-1] < losses[0]
    for name in ("net.head.weight", "qnet.2.weight"):
        assert (all_parameters(learner)[name].detach() != before[name]).any(dim=1).all()
    assert (all_parameters(learner)["qnet.0.weight"].detach() != before["qnet.0.weight"]).any(dim=0).all()
    assert (learner.predict(batch.x) == batch.y).float().mean() > 0.6
