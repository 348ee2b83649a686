"""The networks are the ones the paper names, start from their seed alone, and grow without forgetting."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import plain_net, rng
from onepass.learner.net import NETS, Block, Body, Net, make_net

CONVOLUTIONAL = ["resnet18", "slim-resnet18", "small-cnn"]


def resnet18_parameters(nf: int, channels: int, n_classes: int) -> int:
    """Counted by hand: a 3x3 stem, four stages of two blocks of two 3x3 convolutions, three 1x1 shortcuts, a head."""

    def conv(size: int, inputs: int, outputs: int) -> int:
        return size * size * inputs * outputs + 2 * outputs  # no bias; batch-norm has a scale and a shift

    total = conv(3, channels, nf)
    for inputs, outputs in ((nf, nf), (nf, 2 * nf), (2 * nf, 4 * nf), (4 * nf, 8 * nf)):
        total += conv(3, inputs, outputs) + 3 * conv(3, outputs, outputs)
        total += conv(1, inputs, outputs) if inputs != outputs else 0
    return total + 8 * nf * n_classes + n_classes


def count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.fixture(scope="module")
def resnet() -> Net:
    return make_net("resnet18", (3, 32, 32), 10, seed=0).eval()


@pytest.fixture(scope="module")
def slim() -> Net:
    return make_net("slim-resnet18", (3, 32, 32), 100, seed=0).eval()


def pictures(n: int, size: int, channels: int = 3) -> Tensor:
    return torch.rand(n, channels, size, size, generator=rng(1))


def test_resnet18_has_512_features_and_the_parameters_of_the_32x32_form(resnet: Net) -> None:
    assert resnet.head.in_features == 512
    assert count(resnet) == resnet18_parameters(64, 3, 10) == 11_173_962  # the number known from CIFAR10


def test_slim_resnet18_has_160_features_and_about_a_million_parameters(slim: Net) -> None:
    assert slim.head.in_features == 160
    assert count(slim) == resnet18_parameters(20, 3, 100) == 1_109_240


@pytest.mark.parametrize("channels", [1, 4])
def test_the_stem_takes_as_many_channels_as_the_images_have(channels: int) -> None:
    net = make_net("slim-resnet18", (channels, 16, 16), 7, seed=0)
    assert count(net) == resnet18_parameters(20, channels, 7)
    assert net(pictures(2, 16, channels)).shape == (2, 7)


@pytest.mark.parametrize("size", [32, 84])
def test_features_have_the_same_width_at_every_image_size_and_are_never_negative(
    resnet: Net, slim: Net, size: int
) -> None:
    with torch.no_grad():
        for net, width in ((resnet, 512), (slim, 160)):
            z = net.features(pictures(2, size))
            assert z.shape == (2, width)
            assert z.min() >= 0
            assert (z > 0).float().mean() > 0.5


def test_four_stages_halve_the_image_three_times_and_then_the_map_is_averaged(resnet: Net) -> None:
    maps: list[Tensor] = []
    children = list(resnet.body.children())
    handle = children[-1].register_forward_hook(lambda module, given, made: maps.extend([given[0], made]))
    with torch.no_grad():
        resnet.features(pictures(1, 32))
    handle.remove()
    assert maps[0].shape == (1, 512, 4, 4)
    torch.testing.assert_close(maps[1], maps[0].flatten(2).sum(2) / 16)


def test_small_cnn_has_100_features_that_are_never_negative() -> None:
    net = make_net("small-cnn", (1, 8, 8), 10, seed=0)
    z = net.features(pictures(5, 8, 1))
    assert z.shape == (5, 100)
    assert z.min() >= 0
    assert z.max() > 0


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_logits_are_the_heads_of_the_features(name: str) -> None:
    net = make_net(name, (3, 16, 16), 6, seed=0).eval()
    x = pictures(3, 16)
    with torch.no_grad():
        torch.testing.assert_close(net(x), net.features(x) @ net.head.weight.T + net.head.bias)


def test_the_same_seed_gives_the_same_weights_whatever_was_drawn_before() -> None:
    nets = []
    for other in (1, 2):
        torch.manual_seed(other)
        nets.append(make_net("small-cnn", (1, 8, 8), 10, seed=3).state_dict())
    assert all(torch.equal(value, nets[1][name]) for name, value in nets[0].items())


def test_another_seed_gives_other_weights() -> None:
    first, second = (make_net("small-cnn", (1, 8, 8), 10, seed=seed) for seed in (0, 1))
    for (name, ours), (_, theirs) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        if ours.dim() > 1:
            assert not torch.equal(ours, theirs), name


def test_making_a_net_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    make_net("small-cnn", (1, 8, 8), 10, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_convolutions_keep_their_weights_in_channels_last(name: str) -> None:
    convolutions = [m for m in make_net(name, (3, 16, 16), 6, seed=0).modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == (3 if name == "small-cnn" else 20)
    for module in convolutions:
        assert module.weight.is_contiguous(memory_format=torch.channels_last)
        assert module.bias is None


def test_the_stem_has_stride_one() -> None:
    first = next(m for m in make_net("slim-resnet18", (3, 32, 32), 2, seed=0).modules() if isinstance(m, nn.Conv2d))
    assert (first.kernel_size, first.stride, first.padding) == ((3, 3), (1, 1), (1, 1))


def test_growing_keeps_old_rows_and_the_parameters_themselves() -> None:
    net = plain_net(5, 3)
    weight, bias = net.head.weight, net.head.bias
    rows, shifts = weight.detach().clone(), bias.detach().clone()
    net(torch.rand(2, 1, 4, 4)).sum().backward()
    net.grow(6, rng())
    assert net.head.weight is weight
    assert net.head.bias is bias
    assert weight.shape == (6, 5)
    assert bias.shape == (6,)
    assert torch.equal(weight.detach()[:3], rows)
    assert torch.equal(bias.detach()[:3], shifts)
    assert net.head.out_features == 6
    assert weight.grad is None or weight.grad.shape == weight.shape
    assert weight.requires_grad
    assert net(torch.rand(2, 1, 4, 4)).shape == (2, 6)


def test_new_rows_are_drawn_as_torchs_own_layer_draws_them() -> None:
    net, everywhere = plain_net(400, 1), torch.get_rng_state()
    net.grow(51, rng(2))
    bound = 1 / math.sqrt(400)
    for fresh in (net.head.weight.detach()[1:], net.head.bias.detach()[1:]):
        assert fresh.abs().max() <= bound
    rows = net.head.weight.detach()[1:]
    assert rows.mean().abs() < 4 * bound / math.sqrt(3 * rows.numel())
    assert rows.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert torch.equal(torch.get_rng_state(), everywhere)
    twin = plain_net(400, 1)
    twin.grow(51, rng(2))
    assert torch.equal(twin.head.weight, net.head.weight)


def test_a_head_without_a_bias_grows_without_one() -> None:
    net = plain_net(5, 3)
    net.head.register_parameter("bias", None)
    net.grow(4, rng())
    assert net.head.bias is None
    assert net(torch.rand(2, 1, 4, 4)).shape == (2, 4)


def test_an_optimizer_made_before_growing_steps_the_new_rows_too() -> None:
    net = plain_net(5, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    net.grow(4, rng())
    before = net.head.weight.detach().clone()
    net(torch.rand(2, 1, 4, 4)).sum().backward()
    optimizer.step()
    assert (net.head.weight.detach() != before).any(dim=1).all()


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 12)])
def test_our_bodies_give_as_many_features_as_they_say(name: str, shape: tuple[int, ...]) -> None:
    body = NETS[name](shape)
    assert isinstance(body, Body)
    assert body(torch.zeros(2, *shape)).shape == (2, body.width)


def test_some_layers_of_a_body_are_those_layers() -> None:
    body = make_net("small-cnn", (1, 8, 8), 10, seed=0).eval().body
    assert isinstance(body, nn.Sequential)
    x = pictures(2, 8, channels=1)
    torch.testing.assert_close(body[2:](body[:2](x)), body(x))
    assert [type(layer) for layer in body[:2].children()] == [nn.Sequential, nn.ReLU]


def plain_pass(layer: nn.Module, x: Tensor) -> Tensor:
    """What a layer of ours gives, with nothing written in place."""
    if isinstance(layer, Block):
        inner = layer.second(layer.first(x).relu())
        found: Tensor = (inner + layer.shortcut(x)).relu()
        return found
    return x.relu() if isinstance(layer, nn.ReLU) else layer(x)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["slim-resnet18", "small-cnn", "mlp"])
def test_what_is_written_in_place_changes_no_bit_of_a_step(name: str, training: bool) -> None:
    shape = (3, 16, 16)
    ours, plain = (make_net(name, shape, 5, seed=0).train(training) for _ in range(2))
    x, y = pictures(6, 16).requires_grad_(), torch.arange(6) % 5
    z = x
    assert isinstance(plain.body, nn.Sequential)
    for layer in plain.body:
        z = plain_pass(layer, z)
    logits = ours(x), plain.head(z)
    slopes = [
        torch.autograd.grad(F.cross_entropy(found, y), [x, *net.parameters()])
        for net, found in zip((ours, plain), logits, strict=True)
    ]
    assert torch.equal(*logits)
    assert all(map(torch.equal, *slopes))
    assert all(map(torch.equal, ours.buffers(), plain.buffers()))
