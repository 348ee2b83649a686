"""GSS: gradient-based sample selection, the greedy form (Aljundi et al., NeurIPS 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from onepass.config import option
from onepass.learner.augment import decode
from onepass.learner.batch import Batch
from onepass.learner.functional import evaluating, exact
from onepass.methods.er import ER, ERConfig

FIRST = 0.1  # score of the very first samples, which have nothing to be compared with
PARALLEL = 10  # samples whose own gradients are held at once


@dataclass(frozen=True)
class GSSConfig(ERConfig):
    subsets: int = option(10, "random memory subsets whose gradients new samples are compared with (n)", low=1)
    subset: int = option(10, "samples in each of them", low=1)


class GSS(ER):
    """The memory keeps samples whose gradients point away from those of what it holds already. Learning is ER's.

    c(x) = max_j cos(g(x), g(S_j)) over gradients g of random memory subsets S_j; a full memory lets a batch in if c < 0
    P(slot i is up) ~ C_i - min C;  P(x replaces it) = (C_i + 1) / (C_i + 1 + c(x) + 1);  then C_i = c(x)
    """

    Config = GSSConfig
    config: GSSConfig

    def setup(self) -> None:
        self.memory.add_field("score", (), torch.float32)

    def remember(self, batch: Batch) -> None:
        with exact(self.net), evaluating(self.net):  # a single image has no statistics of its own to be normalised by
            if len(self.memory) < self.memory.capacity:
                self.fill(batch)
            else:
                self.replace(batch)

    def fill(self, batch: Batch) -> None:
        """As many samples as there is room for, the others are let go."""
        first = len(self.memory)
        slots = torch.arange(first, min(first + len(batch), self.memory.capacity))
        batch = batch[slots - first]
        score = self.likeness(batch, list(self.directions())) if first else torch.full((len(batch),), FIRST)
        batch.keep(score=score.to(self.device))
        self.memory.write(slots, batch)

    def replace(self, batch: Batch) -> None:
        own = self.direction(decode(batch.x), batch.y)
        references = []
        for reference in self.directions():
            if not own @ reference < 0:  # one cosine that is not negative decides: the others are not needed
                return
            references.append(reference)
        scores = self.memory.field("score").cpu()
        low, high = scores.aminmax()
        chance = (scores - low) / (high - low + 0.01) + 1e-6  # never all zero, also for equal scores
        slots = torch.multinomial(chance, min(len(batch), self.memory.capacity), generator=self.rng)
        batch = batch[torch.arange(len(slots))]
        score = self.likeness(batch, references)
        leave, enter = scores[slots] + 1, score.cpu() + 1
        replaced = torch.rand(len(slots), generator=self.rng) * (leave + enter) < leave
        batch.keep(score=score)
        self.memory.write(slots.masked_fill(~replaced, -1), batch)

    def directions(self) -> Iterator[Tensor]:
        """The gradients of random memory subsets that share no sample, each when it is asked for."""
        size = min(self.config.subset, len(self.memory))
        drawn = self.memory.sample(size * min(self.config.subsets, len(self.memory) // size), self.rng)
        for x, y in zip(decode(drawn.x).split(size), drawn.y.split(size), strict=True):
            yield self.direction(x, y)

    def learning(self) -> list[nn.Parameter]:
        return [p for p in self.net.parameters() if p.requires_grad]

    def direction(self, x: Tensor, y: Tensor) -> Tensor:
        """The gradient of the mean loss of these samples, in one vector; the network's own stays as it is."""
        parts = torch.autograd.grad(self.cross_entropy(self.net(x), y), self.learning())
        return torch.cat([part.flatten() for part in parts])

    def likeness(self, batch: Batch, references: Sequence[Tensor]) -> Tensor:
        """The largest cosine of each sample's own gradient with a reference."""
        parameters = {name: p.detach() for name, p in self.net.named_parameters() if p.requires_grad}
        sizes = [p.numel() for p in parameters.values()]
        columns = list(zip(*(reference.split(sizes) for reference in references), strict=True))
        lengths = torch.stack([reference.norm() for reference in references])

        def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return self.cross_entropy(functional_call(self.net, parameters, (x[None],)), y[None])

        def largest(x: Tensor, y: Tensor) -> Tensor:
            parts = [part.flatten() for part in grad(loss)(parameters, x, y).values()]
            products = [torch.stack(column) @ part for column, part in zip(columns, parts, strict=True)]
            length = torch.stack([part.norm() for part in parts]).norm()
            cosines: Tensor = torch.stack(products).sum(0) / (lengths * length).clamp(min=1e-8)
            return cosines.amax()

        score: Tensor = vmap(largest, chunk_size=PARALLEL)(decode(batch.x), batch.y)
        return score
