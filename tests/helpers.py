"""Small parts that several test files build with: networks without surprises, batches, learners, copies."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.learner.base import Learner
from onepass.learner.batch import Batch
from onepass.learner.net import Net
from onepass.learner.problem import Problem
from onepass.learner.trial import shrunk
from onepass.methods.registry import method_class

SHAPE = (1, 4, 4)
PIXELS = 16

L = TypeVar("L", bound=Learner)

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc or /dev/full")


def small_settings(method: str) -> dict[str, Any]:
    """Those of a method that cost only time where no accuracy is looked at, small."""
    return shrunk(method_class(method).Config())


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_images(n: int, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> Tensor:
    return torch.randint(256, (n, *shape), dtype=torch.uint8, generator=rng(seed))


def some_batch(n: int, classes: Sequence[int], seed: int = 0, shape: tuple[int, ...] = SHAPE) -> Batch:
    """Random bytes with random labels among the classes."""
    chosen = torch.randint(len(classes), (n,), generator=rng(seed + 1_000_000))
    return Batch(some_images(n, shape, seed), torch.tensor(classes)[chosen])


def labelled(labels: Sequence[int], seed: int = 0) -> Batch:
    """Random bytes with these labels."""
    return Batch(some_images(len(labels), seed=seed), torch.tensor(labels))


def joined(*batches: Batch) -> Batch:
    """The rows of the batches, one batch after the other, as one."""
    return Batch(torch.cat([batch.x for batch in batches]), torch.cat([batch.y for batch in batches]))


def pixel_net(n_classes: int, seed: int = 0) -> Net:
    """The pixels are the features: a linear classifier."""
    return _net([nn.Flatten()], PIXELS, n_classes, seed)


def plain_net(width: int, n_classes: int, seed: int = 0) -> Net:
    """One hidden layer without batch-norm: each image is alone in it. Every unit is on for about half of the images."""
    hidden = nn.Linear(PIXELS, width)
    net = _net([nn.Flatten(), hidden, nn.ReLU()], width, n_classes, seed)
    with torch.no_grad():
        hidden.weight.mul_(3)
        hidden.bias.copy_(0.2 - hidden.weight.sum(dim=1) / 2)
    return net


def normed_net(width: int, n_classes: int, seed: int = 0) -> Net:
    """One hidden layer with batch-norm: which images share a pass matters."""
    return _net([nn.Flatten(), nn.Linear(PIXELS, width), nn.BatchNorm1d(width), nn.ReLU()], width, n_classes, seed)


def _net(layers: list[nn.Module], width: int, n_classes: int, seed: int) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in layers:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        return Net(nn.Sequential(*layers), width, n_classes)


def hidden_layer(net: Net) -> nn.Linear:
    """The hidden layer of a network that has one."""
    [layer] = [part for part in net.body.modules() if isinstance(part, nn.Linear)]
    return layer


def norm_layer(net: Net) -> nn.BatchNorm1d:
    """The batch-norm of a network that has one."""
    [layer] = [part for part in net.body.modules() if isinstance(part, nn.BatchNorm1d)]
    return layer


def passes_counted(net: Net) -> int:
    """How many passes the network's batch-norm has counted."""
    count = norm_layer(net).num_batches_tracked
    assert count is not None
    return int(count)


def make(
    cls: type[L], net: Net, *, augment: str = "none", n_tasks: int | None = 3, seed: int = 0, **settings: Any
) -> L:
    """A learner of this class for small images, with these settings."""
    problem = Problem(net.head.out_features, SHAPE, augment, n_tasks)
    return cls(net, problem, cls.Config(**settings), seed=seed)


def no_replay(learner: Learner) -> Batch:
    return learner.memory.read(torch.empty(0, dtype=torch.int64))


def everything(learner: Learner) -> Batch:
    """All that the memory holds, slot by slot."""
    return learner.memory.read(torch.arange(len(learner.memory)))


def slot_list(batch: Batch | None) -> list[int]:
    """The memory slots that a replayed batch came from, row by row."""
    assert batch is not None
    assert batch.slots is not None
    found: list[int] = batch.slots.tolist()
    return found


def gradients(learner: Learner, loss: Tensor) -> dict[str, Tensor]:
    """The gradient of the loss for every parameter of the network; zero where it has none."""
    return slopes_of(dict(learner.net.named_parameters()), loss)


def slopes_of(named: Mapping[str, Tensor], loss: Tensor) -> dict[str, Tensor]:
    """The gradient of the loss for each of these; zero where it has none."""
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True, retain_graph=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(named.items(), found, strict=True)}


def held_gradients(module: nn.Module) -> dict[str, Tensor]:
    """The gradients that the module's parameters hold now."""
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def copied(net: nn.Module) -> dict[str, Tensor]:
    """Weights and batch-norm statistics as they are now."""
    return cloned(net.state_dict())


def cloned(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """These tensors as they are now, without a graph."""
    return {name: value.detach().clone() for name, value in named.items()}


def state_of(value: Any) -> Any:
    """All that a learner's state holds, as something that can be compared with ==."""
    if isinstance(value, nn.Module):
        return state_of(value.state_dict())
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if isinstance(value, Mapping):
        return {name: state_of(entry) for name, entry in value.items()}
    return [state_of(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def assert_same_bits(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    different = [name for name, value in ours.items() if not torch.equal(value, theirs[name])]
    assert not different, f"these differ: {different}"


def assert_close(
    ours: dict[str, Tensor], theirs: dict[str, Tensor], *, rtol: float | None = None, atol: float | None = None
) -> None:
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


def assert_finite(*modules: nn.Module) -> None:
    """No weight and no batch-norm statistic of the modules is NaN or infinite."""
    bad = [name for module in modules for name, value in copied(module).items() if not value.isfinite().all()]
    assert not bad, f"not finite: {bad}"


def chosen(mask: Tensor) -> list[int]:
    """The indices at which a 0/1 vector is 1."""
    assert set(mask.tolist()) <= {0.0, 1.0}
    return mask.nonzero().flatten().tolist()


def observe_all(learner: Learner, batches: Iterable[Batch]) -> None:
    for batch in batches:
        learner.observe(batch)


def result_of(config: RunConfig, last: float, average: float) -> Result:
    """Two tasks; by the last weights the old task falls to 0.2 on the way, by the average to 0.4."""
    looks = [
        {"step": 10, "accuracy": [0.8], "accuracy_last": [0.6]},
        {"step": 30, "accuracy": [0.4, 0.6], "accuracy_last": [0.2, 0.4]},
    ]
    return Result(
        config=config,
        accuracy_matrix=[[0.9], [average, average]],
        accuracy_matrix_last=[[0.9], [last, last]],
        anytime=looks,
        fingerprint="",
        data={},
        host={},
    )


class Counting(TorchDispatchMode):
    """What torch does in memory: operations that draw, and the bytes that others fill. The meta device has none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.drawn: list[str] = []
        self.largest = self.copied = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.device.type == "cpu":
            name = func.overloadpacket.__name__
            self.largest = max(self.largest, result.nbytes)
            self.drawn += [name] if torch.Tag.nondeterministic_seeded in func.tags else []
            self.copied += result.nbytes if name in ("copy_", "clone", "_to_copy") else 0
        return result
