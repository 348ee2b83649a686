"""Looking ahead without a trace, one mean of several, and networks as they were."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import (
    assert_close,
    assert_same_bits,
    copied,
    gradients,
    held_gradients,
    make,
    normed_net,
    passes_counted,
    plain_net,
    some_batch,
    some_images,
    state_of,
)
from onepass.errors import Diverged
from onepass.learner.batch import Task
from onepass.learner.functional import Frozen, all_or_nothing, evaluating, frozen_batchnorm, union_mean, virtual_step
from onepass.learner.net import Net, convolution
from onepass.methods.er import ER


def pictures(n: int = 6, seed: int = 0) -> Tensor:
    return some_images(n, seed=seed) / 255


# frozen_batchnorm


def test_passes_under_frozen_batchnorm_are_those_of_training_and_move_no_statistic() -> None:
    net, twin = normed_net(5, 3).train(), normed_net(5, 3).train()
    for model in (net, twin):
        model(pictures(seed=1))  # so that running statistics are not those of the start
    before = copied(net)
    with frozen_batchnorm(net):
        inside = net(pictures())
    assert_same_bits(copied(net), before)
    assert torch.equal(inside, twin(pictures()))
    assert not torch.equal(copied(twin)["body.2.running_mean"], before["body.2.running_mean"])


def test_gradients_under_frozen_batchnorm_are_those_of_training() -> None:
    net, twin = normed_net(5, 3), normed_net(5, 3)
    with frozen_batchnorm(net):
        net(pictures())[:, 0].sum().backward()
    twin(pictures())[:, 0].sum().backward()
    assert held_gradients(net).keys() == dict(net.named_parameters()).keys()
    assert_same_bits(held_gradients(net), held_gradients(twin))


def test_statistics_move_again_after_frozen_batchnorm_even_if_what_was_inside_failed() -> None:
    for fails in (False, True):
        net, twin = normed_net(5, 3), normed_net(5, 3)
        try:
            with frozen_batchnorm(net):
                net(pictures(seed=1))
                if fails:
                    raise RuntimeError
        except RuntimeError:
            pass
        for model in (net, twin):
            model(pictures())
        assert_same_bits(copied(net), copied(twin))
        assert passes_counted(net) == 1


def test_frozen_batchnorm_in_evaluation_mode_uses_running_statistics_as_ever() -> None:
    net = normed_net(5, 3)
    net(pictures(seed=1))
    net.eval()
    expected = net(pictures())
    with frozen_batchnorm(net):
        assert torch.equal(net(pictures()), expected)


def test_every_batch_norm_inside_is_frozen_and_one_without_statistics_stays_without() -> None:
    alone = nn.BatchNorm2d(4, track_running_stats=False)
    net = nn.Sequential(convolution(1, 4), nn.Sequential(nn.ReLU(), convolution(4, 4)), alone, nn.Flatten())
    before = copied(net)
    with frozen_batchnorm(net):
        net(pictures())
    assert_same_bits(copied(net), before)
    assert not alone.track_running_stats
    net(pictures())
    moved = [name for name, value in copied(net).items() if not torch.equal(value, before[name])]
    assert len([name for name in moved if "running_mean" in name]) == 2


def test_frozen_batchnorm_may_be_nested() -> None:
    net = normed_net(5, 3)
    before = copied(net)
    with frozen_batchnorm(net):
        with frozen_batchnorm(net):
            net(pictures())
        net(pictures())
    assert_same_bits(copied(net), before)
    net(pictures())
    assert passes_counted(net) == 1


# virtual_step


def with_gradients() -> Net:
    net = plain_net(5, 3)
    F.cross_entropy(net(pictures()), torch.tensor([0, 1, 2, 0, 1, 2])).backward()
    return net


def test_inside_a_virtual_step_the_weights_are_those_after_a_step_of_sgd() -> None:
    net, twin = with_gradients(), with_gradients()
    before = copied(net)
    torch.optim.SGD(twin.parameters(), lr=0.7).step()
    with virtual_step(net, 0.7):
        assert_close(copied(net), copied(twin))
        torch.testing.assert_close(net(pictures(seed=1)), twin(pictures(seed=1)))
    assert not torch.equal(copied(twin)["head.weight"], before["head.weight"])


def test_after_a_virtual_step_weights_gradients_and_parameters_are_the_old_ones() -> None:
    for fails in (False, True):
        net = with_gradients()
        before, grads = copied(net), held_gradients(net)
        held = [(id(p), p.data_ptr()) for p in net.parameters()]
        try:
            with virtual_step(net, 0.7):
                net(pictures(seed=1))
                if fails:
                    raise RuntimeError
        except RuntimeError:
            pass
        assert_same_bits(copied(net), before)
        assert_same_bits(held_gradients(net), grads)
        assert [(id(p), p.data_ptr()) for p in net.parameters()] == held


def test_gradients_can_be_taken_inside_a_virtual_step() -> None:
    net, twin = with_gradients(), with_gradients()
    torch.optim.SGD(twin.parameters(), lr=0.7).step()
    with virtual_step(net, 0.7):
        ours = torch.autograd.grad(net(pictures(seed=1)).square().sum(), list(net.parameters()))
    theirs = torch.autograd.grad(twin(pictures(seed=1)).square().sum(), list(twin.parameters()))
    torch.testing.assert_close(ours, theirs)


def test_parameters_without_a_gradient_stay_where_they_are_in_a_virtual_step() -> None:
    net = with_gradients()
    net.head.weight.grad = None
    before = copied(net)
    with virtual_step(net, 0.7):
        inside = copied(net)
    assert [name for name, value in inside.items() if torch.equal(value, before[name])] == ["head.weight"]
    fresh = plain_net(5, 3)
    with virtual_step(fresh, 0.7):
        assert_same_bits(copied(fresh), copied(plain_net(5, 3)))


def test_a_virtual_step_of_length_zero_changes_nothing() -> None:
    net = with_gradients()
    before = copied(net)
    with virtual_step(net, 0.0):
        assert_same_bits(copied(net), before)


# together


def stepped(parts: tuple[nn.Module, torch.optim.Optimizer], seed: int) -> None:
    net, optimizer = parts
    optimizer.zero_grad()
    net(pictures(seed=seed)).square().sum().backward()
    optimizer.step()


def refused(parts: tuple[nn.Module, torch.optim.Optimizer]) -> None:
    before = copied(parts[0])
    with all_or_nothing(*parts):
        stepped(parts, 7)
        assert state_of(copied(parts[0])) != state_of(before)
        raise Diverged("of this kind")


@pytest.mark.parametrize("earlier", [0, 2])
def test_a_refused_second_step_undoes_the_first_and_its_optimizers_count(earlier: int) -> None:
    net = normed_net(5, 3)
    parts = (net, torch.optim.Adam(net.parameters(), lr=0.1))
    twin = normed_net(5, 3)
    theirs = (twin, torch.optim.Adam(twin.parameters(), lr=0.1))
    for pair in (parts, theirs):
        for seed in range(earlier):
            stepped(pair, seed)
    with pytest.raises(Diverged, match="of this kind"):
        refused(parts)
    assert_same_bits(copied(net), copied(twin))
    for pair in (parts, theirs):
        stepped(pair, 8)  # as if nothing had been: also in what Adam remembers
    assert_same_bits(copied(net), copied(twin))


def test_two_steps_that_are_not_refused_stay() -> None:
    net, twin = normed_net(5, 3), normed_net(5, 3)
    parts, theirs = ((one, torch.optim.Adam(one.parameters(), lr=0.1)) for one in (net, twin))
    with all_or_nothing(*parts):
        stepped(parts, 0)
        stepped(parts, 1)
    stepped(theirs, 0)
    stepped(theirs, 1)
    assert_same_bits(copied(net), copied(twin))


# union_mean


@pytest.mark.parametrize("sizes", [(3,), (3, 5), (1, 7, 2)])
def test_the_mean_of_means_by_their_rows_is_the_mean_of_all_rows(sizes: tuple[int, ...]) -> None:
    rows = [(10 * torch.rand(n, generator=torch.Generator().manual_seed(n))).requires_grad_() for n in sizes]
    ours, theirs = union_mean([(part.mean(), len(part)) for part in rows]), torch.cat(rows).mean()
    torch.testing.assert_close(ours, theirs)
    assert ours.shape == ()
    torch.testing.assert_close(torch.autograd.grad(ours, rows), torch.autograd.grad(theirs, rows))


def test_a_single_part_keeps_its_bits_and_a_precision_of_its_own() -> None:
    loss = torch.tensor(1.23456789)
    assert torch.equal(union_mean([(loss, 7)]), loss)
    double = [(torch.tensor(value, dtype=torch.float64), rows) for value, rows in ((1 / 3, 3), (2 / 7, 4))]
    assert union_mean(double).item() == pytest.approx((1 + 8 / 7) / 7, abs=1e-15)


# Frozen


def test_a_frozen_copy_is_a_copy_that_never_trains() -> None:
    net = normed_net(5, 3)
    net(pictures(seed=1)).sum().backward()
    frozen = Frozen(net)
    assert_same_bits(copied(frozen.module), copied(net))
    assert all(not p.requires_grad for p in frozen.parameters())
    assert all(p.requires_grad for p in net.parameters())
    assert net.training
    shared = {p.data_ptr() for p in net.state_dict().values()} & {p.data_ptr() for p in frozen.state_dict().values()}
    assert not shared
    before = copied(frozen)
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    net(pictures())
    assert_same_bits(copied(frozen), before)


def test_a_frozen_copy_stays_in_evaluation_mode_whatever_its_owner_does() -> None:
    net = normed_net(5, 3)
    net(pictures(seed=1))
    owner = nn.ModuleDict({"net": net, "frozen": Frozen(net)})
    frozen = owner["frozen"]
    assert isinstance(frozen, Frozen)
    expected = copy.deepcopy(net).eval()(pictures())
    for mode in (True, False, True):
        owner.train(mode)
        assert net.training == mode
        assert not any(module.training for module in frozen.module.modules())
        before = copied(frozen)
        assert torch.equal(frozen(pictures()), expected)
        assert_same_bits(copied(frozen), before)
    assert frozen.train() is frozen
    assert frozen.eval() is frozen


def test_a_frozen_copy_by_batch_normalises_as_in_training_and_keeps_its_statistics() -> None:
    net = normed_net(5, 3)
    net(pictures(seed=1))
    owner = nn.ModuleDict({"net": net, "frozen": Frozen(net, by_batch=True)})
    expected, before = copy.deepcopy(net).train()(pictures()), copied(owner["frozen"])
    for mode in (True, False):
        owner.train(mode)
        assert torch.equal(owner["frozen"](pictures()), expected)
        assert_same_bits(copied(owner["frozen"]), before)


def test_what_a_frozen_copy_returns_has_no_graph_even_if_its_input_has() -> None:
    images = pictures().requires_grad_()
    assert not Frozen(normed_net(5, 3))(images).requires_grad


def test_following_takes_over_weights_and_statistics_and_nothing_later() -> None:
    net = normed_net(5, 3)
    frozen = Frozen(net)
    held = [id(p) for p in frozen.parameters()]
    net(pictures()).square().sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    assert not torch.equal(frozen.module.head.weight, net.head.weight)
    frozen.follow(net)
    before = copied(net)
    assert_same_bits(copied(frozen.module), before)
    assert [id(p) for p in frozen.parameters()] == held
    assert all(not p.requires_grad for p in frozen.parameters())
    with torch.no_grad():
        net.head.weight.zero_()
    net(pictures())
    assert_same_bits(copied(frozen.module), before)
    assert not frozen.module.training


class Keeper(ER):
    """ER with a frozen copy beside its network."""

    def setup(self) -> None:
        self.copy = Frozen(self.net)

    def end_task(self) -> None:
        self.copy.follow(self.net)


def keeper(seed: int = 0) -> Keeper:
    learner = make(Keeper, normed_net(5, 6, seed=seed), seed=seed)
    assert isinstance(learner, Keeper)
    return learner


def test_a_learners_frozen_copy_is_saved_from_the_first_step_on_and_not_trained() -> None:
    learner, start = keeper(), copied(normed_net(5, 6))
    learner.begin_task(Task(0, (0, 1)))
    learner.observe(some_batch(4, (0, 1)))
    assert_same_bits(copied(learner.copy.module), start)
    other = keeper(seed=1)
    other.load_state_dict(learner.state_dict())
    assert state_of(other) == state_of(learner)
    assert_same_bits(copied(other.copy.module), start)
    assert not torch.equal(learner.net.head.weight, start["head.weight"])


def test_a_frozen_copy_grows_with_the_network_and_still_follows_it() -> None:
    learner = keeper()
    learner.begin_task(Task(0, (0, 1)))
    learner.observe(some_batch(4, (0, 1)))
    known = learner.copy(pictures())
    learner.grow(8)
    torch.testing.assert_close(learner.copy(pictures())[:, :6], known)
    assert learner.copy(pictures()).shape == (6, 8)
    assert all(not p.requires_grad for p in learner.copy.parameters())
    learner.end_task()
    assert_same_bits(copied(learner.copy.module), copied(learner.net))
    found = gradients(learner, learner.net(pictures()).sum())
    assert found["head.weight"].shape == (8, 5)


@pytest.mark.parametrize("training", [True, False])
def test_evaluating_gives_the_mode_back_even_after_an_error(training: bool) -> None:
    net = normed_net(8, 4).train(training)
    before = copied(net)
    with contextlib.suppress(KeyError), evaluating(net):
        assert not any(module.training for module in net.modules())
        net(some_images(6) / 255)
        raise KeyError
    assert all(module.training == training for module in net.modules())
    assert_same_bits(copied(net), before)
