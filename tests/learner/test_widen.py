"""Layers drawn from a given generator, and layers and memory fields that become wider while they are in use."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from helpers import SHAPE, rng, slot_list, some_batch
from onepass.learner.batch import Batch
from onepass.learner.memory import Memory
from onepass.learner.net import linear, widen

# linear


def test_a_layer_is_drawn_as_torch_draws_it() -> None:
    layer = linear(300, 200, rng(1))
    assert isinstance(layer, nn.Linear)
    assert (layer.in_features, layer.out_features) == (300, 200)
    assert (layer.weight.shape, layer.bias.shape) == ((200, 300), (200,))
    bound = 1 / math.sqrt(300)
    theirs = nn.Linear(300, 200)
    for ours, other in zip(layer.parameters(), theirs.parameters(), strict=True):
        assert ours.requires_grad
        assert ours.dtype == other.dtype
        assert ours.device == other.device
        assert 0.98 * bound < ours.abs().max() <= bound
        assert ours.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert layer.weight.std().item() == pytest.approx(theirs.weight.std().item(), rel=0.02)
    assert abs(layer.weight.mean().item()) < 4 * bound / math.sqrt(3 * 60000)


def test_a_layer_depends_on_its_generator_alone_and_moves_no_other() -> None:
    everywhere = torch.get_rng_state()
    generator = rng(1)
    first, second, again = linear(4, 3, generator), linear(4, 3, generator), linear(4, 3, rng(1))
    assert torch.equal(torch.get_rng_state(), everywhere)
    assert torch.equal(first.weight, again.weight)
    assert torch.equal(first.bias, again.bias)
    assert not torch.equal(first.weight, second.weight)


# widen


def numbered(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """Weights that say where they came from."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        layer.weight.copy_(1000.0 + torch.arange(outputs * inputs).view(outputs, inputs))
        if bias:
            layer.bias.copy_(5000.0 + torch.arange(outputs))
    return layer


def kept(layer: nn.Linear) -> list[list[float]]:
    """The old weights row by row, where they are now."""
    return [[w for w in row if w >= 1000] for row in layer.weight.tolist()]


@pytest.mark.parametrize(
    ("columns", "places"),
    [
        ((), [0, 1, 2, 3]),
        ((4,), [0, 1, 2, 3]),
        ((0,), [1, 2, 3, 4]),
        ((2,), [0, 1, 3, 4]),
        ((2, 4), [0, 1, 3, 4]),
        ((2, 2, 4, 4), [0, 1, 4, 5]),  # two classes more behind each of two groups of two
        ((4, 2, 4, 2), [0, 1, 4, 5]),
        ((0, 1, 2, 3), [1, 3, 5, 7]),
    ],
)
@pytest.mark.parametrize("outputs", [0, 3, 5])
def test_old_weights_stay_and_new_ones_come_before_the_given_columns(
    columns: tuple[int, ...], places: list[int], outputs: int
) -> None:
    layer, before = numbered(4, 3), numbered(4, 3)
    widen(layer, rng(), outputs=outputs, columns=columns)
    assert layer.weight.shape == (max(outputs, 3), 4 + len(columns))
    assert (layer.out_features, layer.in_features) == tuple(layer.weight.shape)
    assert torch.equal(layer.weight[:3, places], before.weight)
    assert torch.equal(layer.bias[:3], before.bias)
    assert [len(row) for row in kept(layer)] == [4, 4, 4] + [0] * (max(outputs, 3) - 3)
    fresh = [w for row in layer.weight.tolist() for w in row if w < 1000] + layer.bias.tolist()[3:]
    assert len(set(fresh)) == len(fresh)
    assert all(0 < abs(w) <= 0.5 for w in fresh)  # 1 / sqrt(4)


def test_what_a_layer_gives_for_old_inputs_stays_the_same_if_new_ones_are_zero() -> None:
    layer = nn.Linear(4, 3)
    x = torch.rand(5, 4, generator=rng(3))
    before = layer(x)
    widen(layer, rng(), outputs=6, columns=(2, 4))
    zero = torch.zeros(5, 1)
    after = layer(torch.cat([x[:, :2], zero, x[:, 2:], zero], dim=1))
    assert after.shape == (5, 6)
    torch.testing.assert_close(after[:, :3], before)


def test_new_weights_depend_on_the_generator_alone_and_are_drawn_as_a_new_layers() -> None:
    layers = [numbered(400, 2) for _ in range(3)]
    everywhere = torch.get_rng_state()
    for layer, seed in zip(layers, (1, 1, 2), strict=True):
        widen(layer, rng(seed), outputs=52, columns=(400,))
    assert torch.equal(torch.get_rng_state(), everywhere)
    assert torch.equal(layers[0].weight, layers[1].weight)
    assert torch.equal(layers[0].bias, layers[1].bias)
    assert not torch.equal(layers[0].weight, layers[2].weight)
    fresh = layers[0].weight.detach()[2:]
    assert fresh.std().item() == pytest.approx(1 / 20 / math.sqrt(3), rel=0.02)
    assert fresh.abs().max() <= 1 / 20


def test_the_parameters_stay_the_same_objects_without_stale_gradients_and_an_optimizer_goes_on() -> None:
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    layer(torch.rand(2, 4)).sum().backward()
    parameters = list(layer.parameters())
    widen(layer, rng(), outputs=4, columns=(4,))
    assert [id(p) for p in layer.parameters()] == [id(p) for p in parameters]
    assert all(p.grad is None and p.requires_grad and p.is_leaf for p in layer.parameters())
    before = [p.detach().clone() for p in parameters]
    layer(torch.rand(2, 5) + 0.1).sum().backward()
    optimizer.step()
    assert all((p.detach() != was).all() for p, was in zip(parameters, before, strict=True))


def test_a_layer_without_a_bias_and_one_of_doubles_stay_so() -> None:
    layer = numbered(4, 3, bias=False)
    widen(layer, rng(), outputs=5, columns=(1,))
    assert layer.bias is None
    assert layer.weight.shape == (5, 5)
    double = numbered(4, 3).double()
    widen(double, rng(), outputs=5)
    assert {p.dtype for p in double.parameters()} == {torch.float64}


def test_nothing_to_add_changes_nothing() -> None:
    layer, before, generator = numbered(4, 3), numbered(4, 3), rng(5)
    for outputs in (0, 2, 3):
        widen(layer, generator, outputs=outputs)
    assert torch.equal(layer.weight, before.weight)
    assert torch.equal(layer.bias, before.bias)
    assert torch.equal(generator.get_state(), rng(5).get_state())


# Memory.widen_field


def memory(capacity: int = 6, width: int = 3) -> Memory:
    made = Memory(capacity, SHAPE, torch.uint8, seed=0)
    made.add_field("logits", (width,), torch.float32)
    made.add_field("count", (), torch.int64)
    return made


def pour(made: Memory, n: int, width: int, seed: int = 0) -> Tensor:
    """n samples to the next free slots; what their logits are."""
    batch = some_batch(n, (0, 1, 2), seed=seed)
    logits = torch.randn(n, width, generator=rng(seed))
    batch.keep(logits=logits, count=torch.arange(n))
    made.write(made.reservoir(n), batch)
    return logits


def test_what_was_written_stays_and_what_nobody_wrote_is_nan() -> None:
    made = memory()
    logits = pour(made, 4, 3)
    x, y, count = (made.field(name).clone() for name in ("x", "y", "count"))
    made.widen_field("logits", 5)
    assert made.field("logits").shape == (6, 5)
    assert made.field("logits").dtype == torch.float32
    assert torch.equal(made.field("logits")[:4, :3], logits)
    assert made.field("logits")[:, 3:].isnan().all()
    for name, value in (("x", x), ("y", y), ("count", count)):
        assert torch.equal(made.field(name)[:4], value[:4])
    assert (len(made), made.seen, made.fields) == (4, 4, ["x", "y", "logits", "count"])


def test_rows_written_after_widening_stand_beside_the_old_ones_and_are_read_with_them() -> None:
    made = memory()
    old = pour(made, 4, 3)
    made.widen_field("logits", 5)
    new = pour(made, 2, 5, seed=1)
    rows = made.read(torch.tensor([5, 1, 4])).extra["logits"]
    assert torch.equal(rows[[0, 2]], new[[1, 0]])
    assert torch.equal(rows[1, :3], old[1])
    assert rows[1, 3:].isnan().all()
    batch = some_batch(1, (0,))
    batch.keep(logits=torch.ones(1, 5), count=torch.tensor([9]))
    made.write(torch.tensor([1]), batch)  # an old slot anew
    assert torch.equal(made.field("logits")[1], torch.ones(5))


def test_a_memory_may_be_widened_again_and_while_it_is_empty() -> None:
    made = memory()
    made.widen_field("logits", 4)
    logits = pour(made, 3, 4)
    made.widen_field("logits", 7)
    assert torch.equal(made.field("logits")[:3, :4], logits)
    assert made.field("logits")[:3, 4:].isnan().all()
    made.widen_field("logits", 7)
    assert torch.equal(made.field("logits")[:3, :4], logits)


def test_a_widened_memory_is_saved_and_loaded_with_its_gaps() -> None:
    made = memory()
    pour(made, 4, 3)
    made.widen_field("logits", 5)
    pour(made, 1, 5, seed=1)
    other = memory()
    other.widen_field("logits", 5)
    other.load_state_dict(made.state_dict())
    torch.testing.assert_close(other.field("logits")[:5], made.field("logits")[:5], rtol=0, atol=0, equal_nan=True)
    assert not any(name.startswith("field_") for name in made.state_dict())  # the filled rows alone are the state
    batches = [one.sample(3, rng(2)) for one in (made, other)]
    assert slot_list(batches[0]) == slot_list(batches[1])


def test_rows_of_the_old_width_are_refused_after_widening() -> None:
    made = memory()
    pour(made, 2, 3)
    made.widen_field("logits", 5)
    batch = Batch(some_batch(1, (0,)).x, torch.tensor([0]))
    batch.keep(logits=torch.ones(1, 3), count=torch.tensor([0]))
    with pytest.raises((RuntimeError, IndexError, ValueError)):
        made.write(torch.tensor([3]), batch)
