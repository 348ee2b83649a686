"""ER-CBA: in training an adaptor adds to the logits; it learns, by a virtual step of the head, what to add."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import (
    assert_close,
    assert_finite,
    assert_same_bits,
    copied,
    gradients,
    labelled,
    make,
    no_replay,
    normed_net,
    observe_all,
    plain_net,
    rng,
    slot_list,
    some_batch,
    some_images,
    state_of,
)
from method_helpers import descend, layers, learn, task_batches
from onepass.errors import Diverged
from onepass.learner.base import SETTLING_STEPS
from onepass.learner.batch import Batch, Task
from onepass.learner.net import Net
from onepass.methods.er import ER, ERConfig
from onepass.methods.er_cba import ERCBA, ERCBAConfig

TASKS = [Task(0, (5, 1)), Task(1, (0, 4)), Task(2, (3,))]
SEEN = [0, 1, 4, 5]  # in the second task; 2, 3 and 6 are to come
N, D, HIDDEN = 7, 6, 3


def cba(net: Net | None = None, **settings: Any) -> ERCBA:
    return make(ERCBA, plain_net(D, N) if net is None else net, **{"hidden": HIDDEN, **settings})


def in_second_task(net: Net | None = None, **settings: Any) -> ERCBA:
    learner = learn(cba(net, **settings), TASKS[:1])
    strengthen(learner)
    learner.begin_task(TASKS[1])
    return learner


def strengthen(learner: ERCBA) -> None:
    """So that the adaptor plainly matters: its input is a few shares and its output moves logits by about one."""
    first, second = layers(learner.adaptor)
    with torch.no_grad():
        first.weight.normal_(0, 2, generator=rng(70))
        first.bias.normal_(0.5, 0.5, generator=rng(71))
        second.weight.normal_(0, 1, generator=rng(72))
        second.bias.normal_(0, 1, generator=rng(73))


def adapted(learner: ERCBA) -> dict[str, Tensor]:
    return copied(learner.adaptor)


Adaptor = Sequence[Tensor]  # weight and bias of its first layer, and of its second


def weights(learner: ERCBA) -> Adaptor:
    first, second = layers(learner.adaptor)
    return [p.detach().clone() for p in (first.weight, first.bias, second.weight, second.bias)]


def moved(logits: Tensor, adaptor: Adaptor, classes: Sequence[int]) -> Tensor:
    """The logits of the classes in scope with what the adaptor adds, which is a constant."""
    columns = list(classes)
    p = torch.zeros_like(logits)
    p[:, columns] = torch.softmax(logits.detach()[:, columns], dim=1)
    a, b, c, d = adaptor
    return (logits + torch.relu(p @ a.T + b) @ c.T + d)[:, columns]


def entropy(logits: Tensor, y: Tensor, classes: Sequence[int]) -> Tensor:
    """Of logits that have the columns of these classes alone."""
    return F.cross_entropy(logits, torch.tensor([list(classes).index(c) for c in y.tolist()]))


def shares(sizes: Sequence[int], combine: str) -> list[float]:
    return [1.0 if combine == "sum" else size / sum(sizes) for size in sizes]


def inner(
    net: Callable[[Tensor], Tensor], adaptor: Adaptor, parts: Sequence[Batch], classes: Sequence[int], combine: str
) -> Tensor:
    losses = [entropy(moved(net(part.x / 255), adaptor, classes), part.y, classes) for part in parts]
    scale = shares([len(part) for part in parts], combine)
    return torch.stack([share * loss for share, loss in zip(scale, losses, strict=True)]).sum()


def test_its_settings_are_those_of_er_with_three_more() -> None:
    assert ERCBA.Config is ERCBAConfig
    assert ERCBAConfig() == ERCBAConfig(adaptor_lr=1e-3, hidden=256, period=5)
    assert issubclass(ERCBAConfig, ERConfig)
    assert issubclass(ERCBA, ER)


# The adaptor.


def test_the_adaptor_is_two_layers_of_xavier_normal_weights_and_no_biases() -> None:
    net, everywhere = plain_net(D, 100), torch.get_rng_state()
    learner = cba(net, hidden=256)
    assert torch.equal(torch.get_rng_state(), everywhere)
    first, second = layers(learner.adaptor)
    assert (first.weight.shape, second.weight.shape) == ((256, 100), (100, 256))
    spread = math.sqrt(2 / 356)
    for layer in (first, second):
        assert (layer.bias == 0).all()
        drawn = layer.weight.detach() / spread
        assert drawn.std().item() == pytest.approx(1, rel=0.02)
        assert drawn.mean().abs() < 0.025
        assert (drawn.abs() > 2).float().mean().item() == pytest.approx(0.0455, rel=0.1)  # as no uniform has
    assert not torch.equal(first.weight, second.weight.T)


def test_the_adaptor_depends_on_the_seed_alone() -> None:
    made = []
    for seed, other in ((0, 1), (0, 2), (1, 1)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(other)
            made.append(state_of(cba(seed=seed).adaptor))
    assert made[0] == made[1]
    assert made[0] != made[2]


def test_the_networks_optimizer_leaves_the_adaptor_out_and_the_adaptors_the_network() -> None:
    learner = cba(adaptor_lr=0.02)
    ours, theirs = (
        {id(p) for group in optimizer.param_groups for p in group["params"]}
        for optimizer in (learner.optimizer, learner.outer)
    )
    assert ours == {id(p) for p in learner.net.parameters()}
    assert theirs == {id(p) for p in learner.adaptor.parameters()}
    assert isinstance(learner.outer, torch.optim.Adam)
    assert learner.outer.param_groups[0]["lr"] == 0.02
    assert learner.outer.param_groups[0]["betas"] == (0.9, 0.999)


# The inner loss.


@pytest.mark.parametrize("scope", ["seen", "all"])
@pytest.mark.parametrize(("combine", "forward"), [("mean", "separate"), ("sum", "joint"), ("sum", "separate")])
def test_the_inner_loss_is_cross_entropy_of_logits_with_a_constant_added(
    combine: str, forward: str, scope: str
) -> None:
    """An old class in the new batch and a replayed one of the running task are among them."""
    learner = in_second_task(combine=combine, forward=forward, scope=scope)
    batch, replay = labelled([0, 4, 4, 5, 0], seed=50), labelled([1, 4, 5], seed=51)
    classes = SEEN if scope == "seen" else list(range(N))
    expected = inner(learner.net, weights(learner), (batch, replay), classes, combine)
    loss = learner.loss(batch, replay)
    torch.testing.assert_close(loss, expected)
    assert_close(gradients(learner, loss), gradients(learner, expected), rtol=1e-4, atol=1e-6)
    plain = make(ER, copy.deepcopy(learner.net), combine=combine, forward=forward, scope=scope)
    for task in TASKS[:2]:
        plain.begin_task(task)
    assert abs(plain.loss(batch, replay).item() - loss.item()) > 0.01  # so that the adaptor can be told


def test_the_inner_loss_has_no_gradient_for_the_adaptor() -> None:
    learner = in_second_task()
    loss = learner.loss(labelled([0, 4, 4]), labelled([1, 5]))
    found = torch.autograd.grad(loss, list(learner.adaptor.parameters()), allow_unused=True)
    assert all(slope is None for slope in found)


def test_classes_out_of_scope_neither_enter_the_adaptor_nor_leave_it() -> None:
    learner = in_second_task()
    batch, replay = labelled([0, 4, 4]), labelled([1, 5])
    before = learner.loss(batch, replay)
    first, second = layers(learner.adaptor)
    unseen = [2, 3, 6]
    with torch.no_grad():
        first.weight[:, unseen] = 1000
        second.weight[unseen], second.bias[unseen] = 1000, 1000
        learner.net.head.weight[unseen], learner.net.head.bias[unseen] = 100, 100
    loss = learner.loss(batch, replay)
    assert torch.equal(loss, before)
    found = gradients(learner, loss)
    assert (found["head.weight"][unseen] == 0).all()
    assert (found["head.bias"][unseen] == 0).all()


def test_views_are_learned_with_their_originals_in_both_terms() -> None:
    learner = in_second_task(augment="digits")
    batch, replay, state = labelled([0, 4, 4]), labelled([1, 5]), learner.rng.get_state()
    loss = learner.loss(batch, replay)
    learner.rng.set_state(state)
    doubled = [Batch(x * 255, y) for x, y in learner.views(batch, replay)]
    assert [len(part) for part in doubled] == [6, 4]
    torch.testing.assert_close(loss, inner(learner.net, weights(learner), doubled, SEEN, "mean"))


def test_the_first_task_uses_the_adaptor_as_it_was_drawn() -> None:
    learner = cba()
    learner.begin_task(TASKS[0])
    strengthen(learner)
    before = adapted(learner)
    batch = labelled([5, 1, 5])
    expected = inner(learner.net, weights(learner), [batch], [1, 5], "mean")
    torch.testing.assert_close(learner.loss(batch, no_replay(learner)), expected)
    observe_all(learner, [some_batch(5, (5, 1), seed) for seed in range(12)])
    assert_same_bits(adapted(learner), before)
    assert not learner.outer.state


# The outer step.


@dataclass
class Watched:
    """Memory batches in the order in which they are drawn."""

    learner: ERCBA

    def __post_init__(self) -> None:
        self.drawn: list[Batch] = []
        self.sample = self.learner.memory.sample
        self.learner.memory.sample = self.spy  # type: ignore[method-assign]  # watched

    def spy(self, n: int, rng: torch.Generator) -> Batch:
        assert n == self.learner.replay
        assert rng is self.learner.rng
        self.drawn.append(self.sample(n, rng))
        return self.drawn[-1]


def outer_loss(
    adaptor: Adaptor,
    head: tuple[Tensor, Tensor],
    features: Sequence[Tensor],
    labels: Sequence[Tensor],
    classes: Sequence[int],
    lr: float,
    combine: str,
) -> float:
    """CE of the memory's second batch after a step of the head on the first and the new one, gradients by formula."""
    columns = list(classes)
    weight, bias = head
    step, shift = torch.zeros_like(weight), torch.zeros_like(bias)
    sizes = [len(y) for y in labels[:2]]
    for z, y, share in zip(features[:2], labels[:2], shares(sizes, combine), strict=True):
        error = torch.zeros(len(y), len(weight), dtype=z.dtype)
        error[:, columns] = torch.softmax(moved(z @ weight.T + bias, adaptor, columns), dim=1)
        error[torch.arange(len(y)), y] -= 1
        step += share / len(y) * error.T @ z
        shift += share / len(y) * error.sum(dim=0)
    logits = features[2] @ (weight - lr * step).T + bias - lr * shift
    return entropy(logits[:, columns], labels[2], columns).item()


def slopes(function: Callable[[Adaptor], float], at: Adaptor, h: float = 1e-5) -> list[Tensor]:
    """Central differences."""
    found = []
    for part in range(4):
        slope = torch.zeros_like(at[part])
        for index in range(slope.numel()):
            ends = []
            for sign in (1, -1):
                point = [value.clone() for value in at]
                point[part].view(-1)[index] += sign * h
                ends.append(function(point))
            slope.view(-1)[index] = (ends[0] - ends[1]) / (2 * h)
        found.append(slope)
    return found


@pytest.mark.parametrize("scope", ["seen", "all"])
@pytest.mark.parametrize(("kind", "combine"), [("plain", "mean"), ("normed", "mean"), ("normed", "sum")])
def test_the_outer_gradient_is_that_of_finite_differences(kind: str, combine: str, scope: str) -> None:
    """With batch-norm: features of train mode, and of three batches apart."""
    net = plain_net(D, N) if kind == "plain" else normed_net(D, N)
    learner = in_second_task(net, lr=0.4, combine=combine, scope=scope, memory=20, replay=4, adaptor_lr=0.01)
    batch, watched = labelled([0, 4, 4, 5, 0], seed=50), Watched(learner)
    before, twin = weights(learner), copy.deepcopy(learner.net).train()
    learner.observe(batch)
    assert len(watched.drawn) == 2
    assert slot_list(watched.drawn[0]) != slot_list(watched.drawn[1])
    parts = [batch, *watched.drawn]
    with torch.no_grad():
        features = [twin.features(part.x / 255).double() for part in parts]
        head = (twin.head.weight.double(), twin.head.bias.double())
    labels, classes = [part.y for part in parts], SEEN if scope == "seen" else list(range(N))
    doubled = [value.double() for value in before]
    expected = slopes(lambda at: outer_loss(at, head, features, labels, classes, 0.4, combine), doubled)
    first, second = layers(learner.adaptor)
    after = (first.weight, first.bias, second.weight, second.bias)
    largest = max(slope.abs().max().item() for slope in expected)
    assert largest > 1e-4
    for was, now, slope in zip(before, after, expected, strict=True):
        found = learner.outer.state[now]["exp_avg"] / 0.1  # of Adam's first step
        torch.testing.assert_close(found.double(), slope, rtol=1e-3, atol=1e-3 * largest)
        clear = slope.abs() > 1e-2 * largest
        torch.testing.assert_close((now.detach() - was)[clear].double(), -0.01 * slope[clear].sign(), rtol=1e-2, atol=0)
    if scope == "seen":
        assert torch.equal(first.weight[:, [2, 3, 6]].detach(), before[0][:, [2, 3, 6]])
        assert torch.equal(second.weight[[2, 3, 6]].detach(), before[2][[2, 3, 6]])


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_after_the_outer_step_the_inner_one_is_a_plain_step_with_the_new_adaptor(combine: str) -> None:
    """So the outer step leaves weights and batch-norm statistics alone, and nothing of it is left in gradients."""
    learner = in_second_task(normed_net(D, N), lr=0.3, combine=combine, replay=4, adaptor_lr=0.5)
    batch, watched = labelled([0, 4, 4, 5, 0], seed=50), Watched(learner)
    twin, before = copy.deepcopy(learner.net).train(), weights(learner)
    returned = learner.observe(batch)
    assert not torch.equal(weights(learner)[2], before[2])
    loss = inner(twin, weights(learner), (batch, watched.drawn[0]), SEEN, combine)
    torch.testing.assert_close(returned, loss.detach())
    descend(twin.parameters(), loss, 0.3)
    assert_close(copied(learner.net), copied(twin), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("period", [1, 3])
def test_the_outer_step_is_made_at_a_later_tasks_first_step_and_each_period_after_it(period: int) -> None:
    learner, made = cba(period=period), []
    for task, n in zip(TASKS, (4, 8, 5), strict=True):
        learner.begin_task(task)
        watched = Watched(learner)
        for i in range(n):
            before = state_of(learner.adaptor)
            learner.observe(some_batch(5, task.classes, seed=i))
            made.append(state_of(learner.adaptor) != before)
            assert len(watched.drawn) == i + 1 + sum(made[-i - 1 :])  # a second draw for it alone
        learner.memory.sample = watched.sample  # type: ignore[method-assign]  # watched
        learner.end_task()
    assert made == [t > 0 and i % period == 0 for t, n in enumerate((4, 8, 5)) for i in range(n)]


def test_a_learner_that_was_given_anothers_state_shares_nothing_with_it() -> None:
    learner = in_second_task(period=1)
    learner.observe(some_batch(5, (0, 4)))
    other = cba(plain_net(D, N, seed=1), period=1, seed=1)
    other.load_state_dict(learner.state_dict())
    before = copy.deepcopy(state_of(learner))
    other.observe(some_batch(5, (0, 4), seed=1))
    assert state_of(learner) == before


def test_the_count_starts_anew_in_tasks_that_begin_by_themselves() -> None:
    learner, made = cba(period=6), []
    for step in range(2 * SETTLING_STEPS):
        before = state_of(learner.adaptor)
        learner.observe(labelled([5, 1, 5] if step < SETTLING_STEPS else [0, 4, 0], seed=step))
        made.append(state_of(learner.adaptor) != before)
    assert [step for step, one in enumerate(made) if one] == [
        SETTLING_STEPS,
        SETTLING_STEPS + 6,
        SETTLING_STEPS + 12,
        SETTLING_STEPS + 18,
    ]


# Beside ER, and at prediction.


@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_with_an_adaptor_that_says_nothing_and_stays_so_it_is_er(combine: str) -> None:
    """Everything stored is replayed, so that both replay the same."""
    ours = cba(adaptor_lr=0.0, combine=combine, memory=1000, replay=1000)
    theirs = make(ER, plain_net(D, N), combine=combine, memory=1000, replay=1000)
    silence(ours)
    for task in TASKS:
        for learner in (ours, theirs):
            learner.begin_task(task)
        for batch in task_batches(task, 6):
            torch.testing.assert_close(*(learner.observe(batch) for learner in (ours, theirs)), rtol=1e-4, atol=1e-6)
    assert_close(copied(ours.net), copied(theirs.net), rtol=1e-3, atol=1e-5)


def silence(learner: ERCBA) -> None:
    _, second = layers(learner.adaptor)
    with torch.no_grad():
        second.weight.zero_()
        second.bias.zero_()


def test_the_first_task_with_an_adaptor_that_says_nothing_is_er_with_the_same_draws() -> None:
    ours = cba(normed_net(D, N), augment="digits", replay=4)
    theirs = make(ER, normed_net(D, N), augment="digits", replay=4)
    silence(ours)
    theirs.rng.set_state(ours.rng.get_state())
    for learner in (ours, theirs):
        learner.begin_task(TASKS[0])
        observe_all(learner, [some_batch(5, (5, 1), seed) for seed in range(4)])
    assert_close(copied(ours.net), copied(theirs.net), rtol=1e-4, atol=1e-6)
    assert torch.equal(ours.rng.get_state(), theirs.rng.get_state())


def test_predictions_do_not_depend_on_the_adaptor() -> None:
    learner = learn(cba(), TASKS[:2])
    images = some_images(100, seed=8)
    with torch.no_grad():
        rows = learner.net.eval()(images / 255).tolist()
    expected = [max(SEEN, key=row.__getitem__) for row in rows]
    assert len(set(expected)) > 1
    assert learner.predict(images).tolist() == expected
    strengthen(learner)
    with torch.no_grad():
        layers(learner.adaptor)[1].bias[1] = 1000
    assert learner.predict(images).tolist() == expected


# What may happen on the way.


def test_a_first_task_without_a_sample_leaves_nothing_to_learn_the_adaptor_from() -> None:
    learner = learn(cba(normed_net(D, N), period=1), TASKS[:1], n=0)
    learner.begin_task(TASKS[1])
    before = adapted(learner)
    assert learner.observe(labelled([0, 4, 0])).isfinite()
    assert_same_bits(adapted(learner), before)
    assert learner.observe(labelled([0, 4, 0])).isfinite()
    assert_finite(learner.net, learner.adaptor)


@pytest.mark.parametrize("steps", [0, 1])
def test_a_refused_inner_step_undoes_the_outer_one_before_it(steps: int) -> None:
    learner = in_second_task(normed_net(D, N), period=1)
    observe_all(learner, [some_batch(5, (0, 4), seed=i) for i in range(steps)])
    parts = (learner.net, learner.adaptor, learner.memory, learner.outer.state_dict()["state"])
    before = [copy.deepcopy(state_of(part)) for part in parts]
    learner.outer.param_groups[0]["lr"] = 1e30  # an adaptor of which no sum is a number
    with pytest.raises(Diverged):
        learner.observe(some_batch(5, (0, 4), seed=9))
    learner.outer.param_groups[0]["lr"] = 1e-3
    parts = (learner.net, learner.adaptor, learner.memory, learner.outer.state_dict()["state"])
    assert [state_of(part) for part in parts] == before
    assert learner.observe(some_batch(5, (0, 4), seed=9)).isfinite()


def test_growing_widens_the_adaptor_and_keeps_what_it_and_its_optimizer_know() -> None:
    learner = in_second_task(period=1)
    observe_all(learner, [some_batch(5, (0, 4), seed=i) for i in range(3)])
    batch, replay = labelled([0, 4, 4]), labelled([1, 5])
    loss, before, parameters = (
        learner.loss(batch, replay).detach(),
        weights(learner),
        list(learner.adaptor.parameters()),
    )
    known = [{name: value.clone() for name, value in learner.outer.state[p].items()} for p in parameters]
    learner.grow(N + 2)
    first, second = layers(learner.adaptor)
    assert (first.weight.shape, second.weight.shape) == ((HIDDEN, N + 2), (N + 2, HIDDEN))
    after = weights(learner)
    corners = [(slice(None), slice(N)), (slice(None),), (slice(N),), (slice(N),)]
    for was, now, corner in zip(before, after, corners, strict=True):
        assert torch.equal(now[corner], was)
        assert now.isfinite().all()
    torch.testing.assert_close(learner.loss(batch, replay).detach(), loss)  # nobody has seen the new classes
    assert [id(p) for p in learner.adaptor.parameters()] == [id(p) for p in parameters]
    for p, then, corner in zip(parameters, known, corners, strict=True):
        state = learner.outer.state[p]
        assert state["step"] == then["step"] == 3
        for name in ("exp_avg", "exp_avg_sq"):
            assert state[name].shape == p.shape
            assert torch.equal(state[name][corner], then[name])
            rest = state[name].clone()
            rest[corner] = 0
            assert (rest == 0).all()


def test_a_grown_learner_goes_on_learning_with_its_adaptor() -> None:
    for learner in (in_second_task(period=1), cba(period=1)):  # with an optimizer that has stepped, and without
        if learner.task is None:
            learn(learner, TASKS[:1], n=2)
        else:
            learner.observe(some_batch(5, (0, 4)))
        learner.grow(N + 2)
        learner.begin_task(Task(2, (8, 7)))
        before, rows = weights(learner), learner.net.head.weight.detach().clone()
        for seed in range(3):
            assert learner.observe(labelled([7, 8, 7, 8], seed=seed)).isfinite()
        assert (learner.net.head.weight.detach() != rows)[[7, 8]].any(dim=1).all()
        assert (weights(learner)[3] != before[3])[[7, 8]].all()
        assert_finite(learner.net, learner.adaptor)
