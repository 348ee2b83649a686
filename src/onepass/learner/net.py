"""The networks: features(x), one linear head, and global average pooling, so d does not depend on the image size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.seeds import child_seed


class Net(nn.Module):
    """Features and a linear head over them. A network of your own fills `body` with (n, c, h, w) -> (n, width)."""

    def __init__(self, body: nn.Module, width: int, n_classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(width, n_classes)
        # Weights in this layout make every convolution work in it, which is quicker on CPU and GPU.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs

    def features(self, x: Tensor) -> Tensor:
        z: Tensor = self.body(x)
        return z

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits

    def grow(self, n_classes: int, rng: torch.Generator) -> None:
        """Room for more classes in the head."""
        widen(self.head, rng, outputs=n_classes)


def linear(inputs: int, outputs: int, rng: torch.Generator) -> nn.Linear:
    """A linear layer drawn as torch draws it, from a generator of ours."""
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-(inputs**-0.5), inputs**-0.5, generator=rng)
    return layer


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
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


class Pool(nn.Module):
    """Global average pooling: (n, c, h, w) -> (n, c)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


def _resnet18(nf: int, channels: int) -> tuple[nn.Module, int]:
    """The 32x32 form: a 3x3 stem with stride 1 and no max-pooling."""
    layers: list[nn.Module] = [convolution(channels, nf), nn.ReLU()]
    width = nf
    for stage in range(4):
        for stride in (1 if stage == 0 else 2, 1):
            layers.append(Block(width, nf << stage, stride))
            width = nf << stage
    return nn.Sequential(*layers, Pool()), width


def _small_cnn(channels: int) -> tuple[nn.Module, int]:
    """Three convolutions for tiny images such as 8x8 digits."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((channels, 32, 1), (32, 64, 2), (64, 100, 1)):
        layers += [convolution(inputs, outputs, stride=stride), nn.ReLU()]
    return nn.Sequential(*layers, Pool()), 100


NETS: dict[str, Callable[[int], tuple[nn.Module, int]]] = {
    "resnet18": lambda channels: _resnet18(64, channels),
    "slim-resnet18": lambda channels: _resnet18(20, channels),
    "small-cnn": _small_cnn,
}


def make_net(name: str, shape: tuple[int, int, int], n_classes: int, *, seed: int) -> Net:
    """A network whose initial weights depend on its name, sizes and seed alone: every method starts alike."""
    with torch.random.fork_rng(devices=[]):  # torch's layers initialise themselves from the global generator
        torch.manual_seed(child_seed(seed, "init"))
        body, width = NETS[name](shape[0])
        return Net(body, width, n_classes)
