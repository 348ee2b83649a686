"""Networks of one's own: by path, factory or module; frozen in part or whole; kept in a file and found again."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import onepass
from helpers import assert_same_bits, some_batch
from onepass.errors import UsageError
from onepass.learner.base import Learner
from onepass.learner.batch import Batch
from onepass.learner.contract import BaseLearner
from onepass.learner.net import NETS, Standardise, make_net, network_and_encoder
from onepass.learner.problem import Problem
from onepass.methods.registry import METHODS, method_class
from onepass.names import NET_NAMES

SHAPE = (1, 4, 4)
PROBLEM = Problem(4, SHAPE, n_tasks=2)
VECTORS = Problem(4, (5,), n_tasks=2)
PATH = f"{__name__}:body"


def body(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 7), nn.BatchNorm1d(7), nn.ReLU())


def partly_frozen(shape: tuple[int, ...]) -> nn.Module:
    """The last of its layers is frozen, so all of them are passed each time."""
    made = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Sequential(nn.Linear(8, 7), nn.BatchNorm1d(7)))
    made[2].requires_grad_(False)
    return made


def frozen_first(shape: tuple[int, ...]) -> nn.Module:
    made = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 6))
    made[:2].requires_grad_(False)
    return made


def wholly_frozen(shape: tuple[int, ...]) -> nn.Module:
    return body(shape).requires_grad_(False)


def learned(learner: BaseLearner, n: int = 6) -> BaseLearner:
    for seed in range(n):
        learner.observe(some_batch(5, (0, 1) if seed < n // 2 else (2, 3), seed))
    return learner


def state(learner: BaseLearner) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in learner.state_dict().items() if isinstance(value, Tensor)}


def test_networks_are_known_by_name_without_torch() -> None:
    assert tuple(NETS) == NET_NAMES


def test_a_factory_a_module_and_a_path_make_the_same_learner() -> None:
    by_path = learned(onepass.build("er", PROBLEM, {"memory": 8}, net=PATH))
    by_factory = learned(onepass.build("er", PROBLEM, {"memory": 8}, net=body))
    assert_same_bits(state(by_path), state(by_factory))
    assert by_path.net.head.in_features == 7
    module = body(SHAPE)
    by_module = onepass.build("er", PROBLEM, {"memory": 8}, net=module)
    assert by_module.net.body is module
    assert by_factory.recipe == by_path.recipe


def test_a_network_of_ones_own_starts_from_the_seed_alone() -> None:
    first, again, other = (make_net(body, SHAPE, 4, seed=seed) for seed in (1, 1, 2))
    assert_same_bits(first.state_dict(), again.state_dict())
    assert not torch.equal(first.head.weight, other.head.weight)
    assert not torch.equal(first.body[1].weight, other.body[1].weight)  # type: ignore[index]


def test_it_is_saved_and_loaded_where_its_path_is_allowed(tmp_path: Path) -> None:
    learner = learned(onepass.build("er", PROBLEM, {"memory": 8}, net=body))
    onepass.save(learner, tmp_path / "m")
    with pytest.raises(UsageError, match=r"names a network of its own, and importing that runs its code.*allow="):
        onepass.load(tmp_path / "m")
    again = onepass.load(tmp_path / "m", allow=(PATH,))
    assert_same_bits(state(learned(again)), state(learned(learner)))


def test_a_module_has_no_name_so_loading_takes_it_again(tmp_path: Path) -> None:
    learner = learned(onepass.build("er", PROBLEM, {"memory": 8}, net=body(SHAPE)))
    onepass.save(learner, tmp_path / "m")
    with pytest.raises(UsageError, match=r"on a network without a name: load\(.*net="):
        onepass.load(tmp_path / "m")
    again = onepass.load(tmp_path / "m", net=body(SHAPE))
    assert_same_bits(state(learned(again)), state(learned(learner)))


@pytest.mark.parametrize(
    ("net", "complaint"),
    [
        ("mine", "unknown net 'mine'.*one of your own is MODULE:FACTORY"),
        ("nowhere:body", "cannot load 'nowhere:body'"),
        (lambda shape: 3, "expected a function of a sample's shape that gives an nn.Module, got 3"),
        (lambda shape: nn.Linear(99, 2), r"the network cannot take samples of shape \(1, 4, 4\)"),
        (lambda shape: nn.Identity(), r"to \(n, features\), got \(1, 1, 4, 4\)"),
    ],
)
def test_what_is_no_network_is_refused_with_what_is(net: object, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        onepass.build("er", PROBLEM, net=net)  # type: ignore[arg-type]


def test_a_network_of_images_refuses_vectors() -> None:
    with pytest.raises(UsageError, match=r"net 'resnet18' is for images: .*\(5,\) use mlp or linear"):
        onepass.build("er", VECTORS, net="resnet18")


@pytest.mark.parametrize("method", [name for name in METHODS if not method_class(name).frozen_net])
def test_frozen_layers_stay_as_they_are_in_every_method(method: str) -> None:
    learner = onepass.build(method, PROBLEM, {"memory": 8} if "memory" in _settings(method) else {}, net=partly_frozen)
    frozen = copy.deepcopy(learner.net.body[2].state_dict())  # type: ignore[index]
    free = learner.net.body[1].weight.clone()  # type: ignore[index]
    learned(learner)
    assert_same_bits(learner.net.body[2].state_dict(), frozen)  # type: ignore[index]
    if method != "gdumb":  # which trains at a task's end
        assert not torch.equal(learner.net.body[1].weight, free)  # type: ignore[index]


def _settings(method: str) -> list[str]:
    return list(method_class(method).Config().to_json())


def test_the_optimizer_steps_what_learns_and_nothing_else() -> None:
    learner = onepass.build("er", PROBLEM, net=partly_frozen)
    assert isinstance(learner, Learner)
    stepped = {id(weight) for group in learner.optimizer.param_groups for weight in group["params"]}
    assert stepped == {id(weight) for weight in learner.parameters() if weight.requires_grad}


def test_a_wholly_frozen_network_is_passed_once_and_the_memory_holds_features() -> None:
    learner = onepass.build("er", PROBLEM, {"memory": 8}, net=wholly_frozen)
    passed = []
    assert learner.encoder is not None
    learner.encoder.register_forward_hook(lambda module, inputs, output: passed.append(len(inputs[0])))
    learned(learner)
    assert passed == [5] * 6
    assert learner.memory.field("x").shape == (8, 7)
    assert learner.memory.field("x").dtype == torch.float32
    batch = some_batch(5, (0, 1))
    kept = learner.encoder.eval()(batch.x / 255)
    fresh = onepass.build("er", PROBLEM, {"memory": 8}, net=wholly_frozen)
    fresh.observe(batch)
    torch.testing.assert_close(fresh.memory.read(torch.arange(5)).x, kept)


def test_frozen_layers_that_come_first_are_the_encoder() -> None:
    net, encoder = network_and_encoder(frozen_first, SHAPE, 4, seed=0)
    assert isinstance(encoder, nn.Sequential)
    assert [type(layer) for layer in encoder] == [nn.Conv2d, nn.BatchNorm2d]
    learner = learned(onepass.build("er", PROBLEM, {"memory": 8}, net=frozen_first))
    assert learner.memory.field("x").shape == (8, 3, 2, 2)
    assert net.head.in_features == 6


def test_predictions_pass_the_encoder_and_snapshots_share_it() -> None:
    learner = learned(onepass.build("er", PROBLEM, {"memory": 8}, net=wholly_frozen))
    images = some_batch(20, (0, 1, 2, 3), 9).x
    learner.eval()
    assert learner.encoder is not None
    expected = learner.net(learner.encoder(images / 255)).argmax(dim=1)
    assert learner.predict(images).tolist() == expected.tolist()
    assert learner.snapshot().predict(images).tolist() == expected.tolist()
    assert len(set(expected.tolist())) > 1


def test_a_learner_on_features_ends_as_one_on_the_same_vectors() -> None:
    """Latent replay is nothing but learning the features as vectors."""
    images = onepass.build("er", PROBLEM, {"memory": 8}, net=wholly_frozen)
    vectors = onepass.build("er", Problem(4, (7,), n_tasks=2), {"memory": 8}, net="linear")
    assert images.encoder is not None
    vectors.net.head.load_state_dict(images.net.head.state_dict())
    for seed in range(6):
        batch = some_batch(5, (0, 1, 2, 3), seed)
        images.observe(batch)
        vectors.observe(Batch(images.encoder(batch.x / 255), batch.y))
    assert_same_bits(images.net.head.state_dict(), vectors.net.head.state_dict())


def test_a_method_of_images_refuses_the_features_of_a_frozen_network() -> None:
    with pytest.raises(UsageError, match=r"ocm contrasts images .*expected images, got the features of a frozen net"):
        onepass.build("ocm", PROBLEM, net=wholly_frozen)
    with pytest.raises(UsageError, match=r"expected images, got vectors of shape \(5,\)"):
        onepass.build("ocm", VECTORS)


def test_values_are_standardised_by_all_that_was_met_once() -> None:
    layer, x = Standardise((3,)), torch.randn(57, 3, generator=torch.Generator().manual_seed(3)) * 40 + 7
    for part in x.split([1, 10, 20, 26]):
        layer.meet(part)
    torch.testing.assert_close(layer.mean, x.mean(dim=0))
    torch.testing.assert_close(layer.variance, x.var(dim=0, correction=0))
    torch.testing.assert_close(layer(x).std(dim=0, correction=0), torch.ones(3))
    assert int(layer.met) == 57


def test_replayed_vectors_are_not_counted_again() -> None:
    learner = onepass.build("er", VECTORS, {"memory": 50}, net="linear")
    x = 100 + torch.randn(30, 5, generator=torch.Generator().manual_seed(1))
    for part in x.split(10):
        learner.observe(Batch(part, torch.arange(10) % 4))
    [layer] = [layer for layer in learner.net.modules() if isinstance(layer, Standardise)]
    torch.testing.assert_close(layer.mean, x.mean(dim=0))
    assert learner.memory.field("x").dtype == torch.float32
    assert torch.equal(learner.memory.read(torch.arange(30)).x, x)


@pytest.mark.parametrize(
    ("x", "complaint"),
    [
        (torch.full((2, 5), torch.nan), "be no NaN; replace missing ones first"),
        (torch.full((2, 5), torch.inf), "vectors from inf to inf: values must lie within"),
        (torch.full((2, 5), 1e20), "vectors from 1e\\+20 to 1e\\+20: values must lie within"),
        (torch.zeros(2, 5, dtype=torch.float64), r"vectors of dtype torch\.float64: allowed are torch\.float32"),
        (torch.zeros(2, 4), r"expected vectors of shape \(n, 5\), got \(2, 4\)"),
        (torch.zeros(2, 5, dtype=torch.uint8), r"vectors of dtype torch\.uint8"),
    ],
)
def test_vectors_that_cannot_be_learned_are_refused(x: Tensor, complaint: str) -> None:
    learner = onepass.build("er", VECTORS)
    with pytest.raises(UsageError, match=complaint):
        learner.observe(Batch(x, torch.tensor([0, 1])))
    assert learner.steps == 0
