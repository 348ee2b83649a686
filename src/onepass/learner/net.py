"""The networks: features(x) and one linear head. A body is a function of a sample's shape, ours or your own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.config import unknown
from onepass.errors import UsageError
from onepass.learner.precision import passed
from onepass.names import import_path
from onepass.seeds import child_seed

HIDDEN = 256  # units of the layers of `mlp`
TINY = 1e-6  # below the variance of anything that varies
M = TypeVar("M", bound=nn.Module)


class Net(nn.Module):
    """Features and a linear head over them. What of the body is frozen stays in evaluation mode."""

    precision = "fp32"  # in which the body computes
    compiled = False  # whether it is passed through torch.compile
    _quick: Callable[[Tensor], Tensor] | None = None  # what that made of this body; a copy's is made anew

    def __init__(self, body: nn.Module, width: int, n_classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(width, n_classes or 1)
        if not n_classes:  # for learners that predict without one; torch warns of layers without outputs
            self.head.weight.data, self.head.bias.data = self.head.weight.data[:0], self.head.bias.data[:0]
            self.head.out_features = 0
        # As it is made: copies of the network that never learn are no frozen parts of it.
        self._frozen = [name for name, part in body.named_modules() if is_frozen(part)]
        # Weights in this layout make every convolution work in it, which is quicker on CPU and GPU.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
        self.train()

    def features(self, x: Tensor) -> Tensor:
        if not self.compiled:
            return passed(self.body, x, self.precision)
        if self._quick is None:
            self._quick = torch.compile(self.body.forward)
        return passed(self._quick, x, self.precision)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_quick"}

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits

    def train(self, mode: bool = True) -> Net:
        super().train(mode)
        for name in self._frozen:
            self.body.get_submodule(name).eval()
        return self

    def grow(self, n_classes: int, rng: torch.Generator) -> None:
        """Room for more classes in the head."""
        widen(self.head, rng, outputs=n_classes)


def unfilled(module: M) -> M:
    """A module that was made on torch's meta device, in memory that holds anything; as it is where that is our device.

    Torch's `to_empty` imports an algebra system to do this, and takes memory where only sizes are asked for.
    """
    if torch.empty(0).is_meta:
        return module
    module._apply(lambda value: torch.empty_strided(value.shape, value.stride(), dtype=value.dtype))  # type: ignore[no-untyped-call]
    return module


def linear(inputs: int, outputs: int, rng: torch.Generator) -> nn.Linear:
    """A linear layer drawn as torch draws it, from a generator of ours."""
    layer = unfilled(nn.Linear(inputs, outputs, device="meta"))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-(inputs**-0.5), inputs**-0.5, generator=rng)
    return layer


@contextmanager
def drawn_from(rng: torch.Generator) -> Iterator[None]:
    """Layers that are made or reset inside, which torch draws from its global generator, are drawn from ours."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (), generator=rng, device="cpu")))
        yield


def redrawn(net: Net, rng: torch.Generator) -> Net:
    """A copy of the network with initial weights of its own; layers that are not trained stay what they are."""
    copied = copy.deepcopy(net)
    with drawn_from(rng):
        for layer in copied.modules():
            reset: Callable[[], None] | None = getattr(layer, "reset_parameters", None)
            if reset is not None and any(p.requires_grad for p in layer.parameters(recurse=False)):
                reset()
    return copied


@torch.no_grad()
def widen(layer: nn.Linear, rng: torch.Generator, *, outputs: int = 0, columns: Sequence[int] = ()) -> None:
    """More outputs, and more inputs before the given columns, drawn as a new layer's; what there was stays.

    The Parameter objects stay too, so an optimizer goes on with them.
    """
    bound = layer.in_features**-0.5

    def fresh(*shape: int) -> Tensor:
        return torch.empty(shape).uniform_(-bound, bound, generator=rng).to(layer.weight)

    rows, more = layer.out_features, outputs - layer.out_features
    for column in sorted(columns, reverse=True):
        weight = layer.weight.data
        layer.weight.data = torch.cat([weight[:, :column], fresh(rows, 1), weight[:, column:]], dim=1)
    if more > 0:
        layer.weight.data = torch.cat([layer.weight.data, fresh(more, layer.weight.shape[1])])
        if layer.bias is not None:
            layer.bias.data = torch.cat([layer.bias.data, fresh(more)])
    layer.weight.grad = None
    if layer.bias is not None:
        layer.bias.grad = None
    layer.out_features, layer.in_features = layer.weight.shape


def convolution(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    """Convolution and batch-norm."""
    conv = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut (He et al., 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = convolution(inputs, outputs, stride=stride)
        self.second = convolution(outputs, outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        # In place where nobody needs what was there before: batch-norm's gradient needs what it took, not what it gave.
        out: Tensor = self.second(F.relu_(self.first(x)))
        out += self.shortcut(x)
        return F.relu_(out)


class Pool(nn.Module):
    """Global average pooling: (n, c, h, w) -> (n, c)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


class Standardise(nn.Module):
    """Each value minus its mean over its deviation, both over all that was met so far. `meet` counts samples once."""

    met: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("met", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))

    @torch.no_grad()
    def meet(self, x: Tensor) -> None:
        """Count these samples in (Chan et al., 1979)."""
        n, more = int(self.met), len(x)
        own = x.var(dim=0, correction=0)
        away = x.mean(dim=0) - self.mean
        share = more / (n + more)
        if not n:
            self.variance.zero_()
        self.variance += share * (own - self.variance + (1 - share) * away**2)
        self.mean += share * away
        self.met += more

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / (self.variance + TINY).sqrt()


class Body(nn.Sequential):
    """Layers of ours, which say how many features they give: nothing has to pass them to find out."""

    def __init__(self, width: int, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.width = width

    def __getitem__(self, place: Any) -> Any:
        """Of several layers nobody has said how many features they give."""
        return nn.Sequential(*list(self)[place]) if isinstance(place, slice) else super().__getitem__(place)


def _image_shape(name: str, shape: tuple[int, ...]) -> int:
    """The channels of images; a network of images has no use for anything else."""
    if len(shape) != 3:
        raise UsageError(f"net {name!r} is for images: for samples of shape {shape} use mlp or linear")
    return shape[0]


def _resnet18(name: str, nf: int, shape: tuple[int, ...]) -> nn.Module:
    """The 32x32 form: a 3x3 stem with stride 1 and no max-pooling."""
    layers: list[nn.Module] = [convolution(_image_shape(name, shape), nf), nn.ReLU(inplace=True)]
    width = nf
    for stage in range(4):
        for stride in (1 if stage == 0 else 2, 1):
            layers.append(Block(width, nf << stage, stride))
            width = nf << stage
    return Body(width, *layers, Pool())


def _small_cnn(shape: tuple[int, ...]) -> nn.Module:
    """Three convolutions for tiny images such as 8x8 digits."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((_image_shape("small-cnn", shape), 32, 1), (32, 64, 2), (64, 100, 1)):
        layers += [convolution(inputs, outputs, stride=stride), nn.ReLU(inplace=True)]
    return Body(100, *layers, Pool())


def _mlp(shape: tuple[int, ...]) -> nn.Module:
    """Two hidden layers over standardised values."""
    size = math.prod(shape)
    layers: list[nn.Module] = []
    for inputs in (size, HIDDEN):
        layers += [nn.Linear(inputs, HIDDEN), nn.ReLU(inplace=True)]
    return Body(HIDDEN, Standardise(shape), nn.Flatten(), *layers)


def _linear(shape: tuple[int, ...]) -> nn.Module:
    """Nothing but the standardised values: the head is all there is to learn."""
    return Body(math.prod(shape), Standardise(shape), nn.Flatten())


Factory = Callable[[tuple[int, ...]], nn.Module]
NETS: dict[str, Factory] = {
    "resnet18": lambda shape: _resnet18("resnet18", 64, shape),
    "slim-resnet18": lambda shape: _resnet18("slim-resnet18", 20, shape),
    "small-cnn": _small_cnn,
    "mlp": _mlp,
    "linear": _linear,
}


def check_net(name: str) -> None:
    """Refuse names that there are not; a path, MODULE:FACTORY, is not imported here."""
    if ":" not in name and name not in NETS:
        raise unknown("net", name, NETS, "one of your own is MODULE:FACTORY; ours")


def is_frozen(module: nn.Module) -> bool:
    """Whether it has weights, and none that learn."""
    weights = list(module.parameters())
    return bool(weights) and not any(weight.requires_grad for weight in weights)


def make_net(net: str | Factory | nn.Module, shape: tuple[int, ...], n_classes: int, *, seed: int) -> Net:
    """A network that learns as a whole, or from its encoder on."""
    return network_and_encoder(net, shape, n_classes, seed=seed)[0]


def network_and_encoder(
    net: str | Factory | nn.Module,
    shape: tuple[int, ...],
    n_classes: int,
    *,
    seed: int,
    frozen: bool = False,
    draw: bool = True,
) -> tuple[Net, nn.Module | None]:
    """A network, and what of it comes before all that learns: its encoder, if it has one.

    Its initial weights depend on its name, sizes and seed alone: every method starts alike. Without drawing them, those
    of a network of ours are whatever the memory held: for a state that replaces them all. The encoder is the whole body
    if that is frozen (or is to be), else the frozen layers that an nn.Sequential begins with.
    """
    if frozen and isinstance(net, str) and net in NETS:  # ours are untrained: the values themselves say more
        return Net(nn.Flatten(), math.prod(shape), 0), None
    if not draw and isinstance(net, str) and net in NETS:
        with torch.device("meta"):
            network, encoder = network_and_encoder(net, shape, n_classes, seed=seed, frozen=frozen)
        return unfilled(network), None if encoder is None else unfilled(encoder)
    with torch.random.fork_rng(devices=[]):  # torch's layers initialise themselves from the global generator
        torch.manual_seed(child_seed(seed, "init"))
        body = _body(net, shape)
        if frozen:
            body.requires_grad_(False)
        encoder, rest = (body, None) if frozen or is_frozen(body) else _split(body)
        width = _width(body, shape)
        body = (nn.Identity() if frozen else Standardise((width,))) if rest is None else rest
        return Net(body, width, 0 if frozen else n_classes), encoder


def _body(net: str | Factory | nn.Module, shape: tuple[int, ...]) -> nn.Module:
    if isinstance(net, nn.Module):
        return net
    if isinstance(net, str):
        check_net(net)
    factory = net if not isinstance(net, str) else NETS[net] if net in NETS else import_path(net, "MODULE:FACTORY")
    body = factory(shape)
    if not isinstance(body, nn.Module):
        raise UsageError(f"net {net!r}: expected a function of a sample's shape that gives an nn.Module, got {body!r}")
    return body


def _split(body: nn.Module) -> tuple[nn.Module | None, nn.Module]:
    """The frozen layers that a Sequential begins with, and the others."""
    layers = list(body.children()) if type(body) is nn.Sequential else []
    learning = next((i for i, layer in enumerate(layers) if not _without_learning(layer)), len(layers))
    last = max((i for i, layer in enumerate(layers[:learning]) if is_frozen(layer)), default=-1)
    if last < 0:
        return None, body
    return nn.Sequential(*layers[: last + 1]), nn.Sequential(*layers[last + 1 :])


def _without_learning(layer: nn.Module) -> bool:
    return not any(weight.requires_grad for weight in layer.parameters())


def _width(body: nn.Module, shape: tuple[int, ...]) -> int:
    """How many features it gives: what a body of ours says, or found by a pass of one sample of zeros."""
    return body.width if isinstance(body, Body) else _measured_width(body, shape)


@torch.no_grad()
def _measured_width(body: nn.Module, shape: tuple[int, ...]) -> int:
    training = body.training
    sample = torch.zeros(1, *shape, device=next((weight.device for weight in body.parameters()), None))
    try:
        features = body.eval()(sample)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise UsageError(f"the network cannot take samples of shape {shape}: {error}") from error
    finally:
        body.train(training)
    if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != 1:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise UsageError(f"expected a network from (n, {', '.join(map(str, shape))}) to (n, features), got {got}")
    return features.shape[1]
