"""ER-CBA: experience replay with a continual bias adaptor (Wang et al., ICCV 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.config import option
from onepass.learner.batch import Batch, Task
from onepass.learner.functional import all_or_nothing, frozen_batchnorm
from onepass.learner.net import unfilled, widen
from onepass.methods.er import ER, ERConfig

Passes = Sequence[tuple[Tensor, Tensor]]  # features and labels


@dataclass(frozen=True)
class ERCBAConfig(ERConfig):
    adaptor_lr: float = option(1e-3, "learning rate of the adaptor (Adam)", low=0)
    hidden: int = option(256, "hidden units of the adaptor", low=1)
    period: int = option(5, "steps from one outer step of the adaptor to the next", low=1)


class ERCBA(ER):
    """In training a small network w of the predicted probabilities shifts the logits and takes up the stream's bias;
    prediction goes without it. It learns to make a step with it leave a head that is right on the memory without it.

    inner: L = mean of CE(l + w(softmax(l))) over new and replayed samples, w fixed
    outer: descend CE(W' z, y) over a fresh memory batch in w, W' = W - lr dL/dW, the head after an inner step
    """

    Config = ERCBAConfig
    config: ERCBAConfig
    begun: Tensor

    def setup(self) -> None:
        classes, hidden = self.problem.n_classes, self.config.hidden
        self.adaptor = nn.Sequential(self._layer(classes, hidden), nn.ReLU(), self._layer(hidden, classes))
        self.outer = torch.optim.Adam(self.adaptor.parameters(), lr=self.config.adaptor_lr)
        self.register_buffer("begun", torch.tensor(0))

    def _layer(self, inputs: int, outputs: int) -> nn.Linear:
        layer = unfilled(nn.Linear(inputs, outputs, device="meta"))
        if not layer.weight.is_meta:  # where only sizes are asked for, torch imports its compiler to draw nothing
            nn.init.xavier_normal_(layer.weight, generator=self.rng)
            nn.init.zeros_(layer.bias)
        return layer

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.begun.fill_(self.steps)

    def loss(self, batch: Batch, replay: Batch) -> Tensor:
        return self.inner(self.passes(batch, replay))

    def learn(self, batch: Batch, replay: Batch) -> Tensor:
        passes = self.passes(batch, replay)  # once for both steps: the outer one does not change the network
        if not self._due():
            return self.step(self.inner(passes))
        with all_or_nothing(self.adaptor, self.outer):
            self.adapt(passes)
            return self.step(self.inner(passes))

    def _due(self) -> bool:
        useful = self.config.adaptor_lr > 0 and len(self.old) > 0 and len(self.memory) > 0
        return useful and (self.steps - int(self.begun)) % self.config.period == 0

    def passes(self, batch: Batch, replay: Batch) -> Passes:
        return self.forward_batches(self.net.features, batch, replay, joint=self.config.forward == "joint")

    def shift(self, logits: Tensor) -> Tensor:
        """What the adaptor adds. It sees classes out of scope as impossible; what it adds to them nobody reads."""
        every = torch.arange(logits.shape[1], device=logits.device)
        columns = self.seen_classes if self.config.scope == "seen" else every
        probabilities = logits.detach().index_select(1, columns).softmax(dim=1)
        added: Tensor = self.adaptor(torch.zeros_like(logits).index_copy(1, columns, probabilities))
        return added

    def inner(self, passes: Passes) -> Tensor:
        terms = []
        for features, y in passes:
            logits = self.net.head(features)
            with torch.no_grad():
                shift = self.shift(logits)
            terms.append((self.cross_entropy(logits + shift, y), len(y)))
        return self.combine(terms)

    def adapt(self, passes: Passes) -> None:
        """The outer step. The adaptor acts only through the gradient of the virtual step: it must stay in the graph."""
        head = [p.detach().requires_grad_() for p in self.net.head.parameters()]
        virtual = [(F.linear(features.detach(), *head), y) for features, y in passes]
        inner = self.combine([(self.cross_entropy(logits + self.shift(logits), y), len(y)) for logits, y in virtual])
        slopes = torch.autograd.grad(inner, head, create_graph=True)
        after = [p.detach() - self.config.lr * slope for p, slope in zip(head, slopes, strict=True)]
        with torch.no_grad(), frozen_batchnorm(self.net):
            [(features, y)] = self.forward_batches(
                self.net.features, self.memory.sample(self.replay, self.rng), joint=False
            )
        loss = self.cross_entropy(F.linear(features, *after), y)
        self.outer.zero_grad()
        loss.backward(inputs=list(self.adaptor.parameters()))
        self.update(loss, self.outer)

    def widen(self, n_classes: int) -> None:
        known = self.problem.n_classes
        super().widen(n_classes)
        first, last = (layer for layer in self.adaptor if isinstance(layer, nn.Linear))
        widen(first, self.rng, columns=[known] * (n_classes - known))
        widen(last, self.rng, outputs=n_classes)
