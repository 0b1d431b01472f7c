"""A plain PyTorch loop on torch's own modules, for nets that plain.py does not know: with dropout,
with BatchNorm, on tokens. Its noise is that of docs/randomness.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from . import definition
from .autograd import IGNORE, Data
from .definition import Place
from .plain import Batches

Weights = dict[str, Tensor]  # a module's parameters and running statistics
Loss = Callable[[Weights, Tensor, int], Tensor]  # (weights, batch, key of the step) -> loss


class KeyedDropout(nn.Module):
    """Dropout of the layer that draws as the draw-th; without a key it is off."""

    def __init__(self, p: float, draw: int) -> None:
        super().__init__()
        self.p, self.draw = p, draw
        self.key: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.key is None:
            return x
        return x * torch.from_numpy(definition.dropout(self.key, self.draw, self.p, *x.shape))


def is_running(name: str) -> bool:
    return name.endswith(("running_mean", "running_var"))


def token_losses(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """For each example the sum of its losses, and how many labels it has: both [batch]."""
    each = F.cross_entropy(
        z.reshape(-1, z.shape[-1]), y.reshape(-1), ignore_index=IGNORE, reduction="none"
    )
    return each.view(len(y), -1).sum(1), (y != IGNORE).reshape(len(y), -1).sum(1)


def entropy(z: Tensor, y: Tensor) -> Tensor:
    """The mean over all scored labels of a batch, 0 if it has none."""
    total, labels = token_losses(z, y)
    return total.sum() / labels.sum().clamp(min=1)


def example_losses(z: Tensor, y: Tensor) -> Tensor:
    """For each example the mean over its scored labels: [batch]."""
    total, labels = token_losses(z, y)
    return total / labels.clamp(min=1)


@dataclass(frozen=True)
class Loop:
    """A module, and how it is trained."""

    make: Callable[[], nn.Module]
    momentum: float = 0.0
    decay: float = 0.0

    @cached_property
    def module(self) -> nn.Module:
        return self.make().double()

    def logits(self, w: Weights, x: Tensor, key: int | None = None) -> Tensor:
        """With a key a training step, which moves the running statistics in `w`."""
        self.module.train(key is not None)
        for layer in self.module.modules():
            if isinstance(layer, KeyedDropout):
                layer.key = key
        return functional_call(self.module, w, x)

    def loss_on(self, data: Data) -> Loss:
        return lambda w, batch, key: entropy(self.logits(w, data.x[batch], key), data.y[batch])

    def descend(
        self,
        start: Weights,
        names: Iterable[str],
        loss: Loss,
        batches: Batches,
        lr: float,
        keys: Callable[[int], int],
    ) -> Weights:
        """SGD on the tensors of these names; running statistics under other names stay."""
        now = {k: v.detach().clone() for k, v in start.items()}
        leaves = [now[k].requires_grad_() for k in names if not is_running(k)]
        sgd = torch.optim.SGD(leaves, lr, self.momentum, weight_decay=self.decay)
        for step, batch in enumerate(batches, 1):
            running = {k: v.clone() for k, v in now.items() if is_running(k)}
            sgd.zero_grad()
            loss({**now, **running}, torch.from_numpy(batch), keys(step)).backward()
            sgd.step()
            now |= {k: v for k, v in running.items() if k in names}
        return {k: v.detach() for k, v in now.items()}


def keys_of(place: Place, phase: int) -> Callable[[int], int]:
    """The key of every step of a phase."""
    return lambda step: definition.step_key(place, phase, step)


def pulled(loss: Loss, to: Weights, strength: float) -> Loss:
    """loss + strength/2 |w - to|^2, over parameters."""

    def with_pull(w: Weights, batch: Tensor, key: int) -> Tensor:
        far = sum((w[k] - to[k]).square().sum() for k in to if not is_running(k))
        return loss(w, batch, key) + strength / 2 * far

    return with_pull


def mean(copies: Sequence[Weights], weights: Sequence[float]) -> Weights:
    """Parameters and running statistics alike."""
    return {k: sum(n * c[k] for n, c in zip(weights, copies)) / sum(weights) for k in copies[0]}
