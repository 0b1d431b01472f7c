"""The same training as plain PyTorch does it: the user's own module, autograd, plain
SGD, one client.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.core import mode
from fedblocks.core.losses import IGNORE
from fedblocks.core.net import Net
from fedblocks.core.outside_modules import in_precision, seeded, take_logits
from fedblocks.core.parts import Params
from fedblocks.core.random import derive, fold
from fedblocks.layers.guard import Guard
from fedblocks.layers.replacement import key_inner_noise


class TorchLoop:
    """One client's module; only its noise is ours, so that it is that of the engines."""

    def __init__(self, net: Net, start: Params, rate: float) -> None:
        with seeded(0):
            self.module = in_precision(key_inner_noise(net.make()), net.dtype)
        tensors = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        with torch.no_grad():
            for name, value in {**start, **net.constants}.items():
                tensors[name].copy_(value)
        self.net, self.rate = net, rate

    def train(
        self, x: Tensor, y: Tensor, batches: Sequence[Tensor], seed: int, client: int
    ) -> Params:
        """The tensors after one step on each batch."""
        self.module.train()
        key = fold(torch.tensor(derive(seed, 0, client, "train", "noise")), 0)
        for number, rows in enumerate(batches, 1):
            self.module.zero_grad()
            with (
                mode.mode(training=True, mapped=False, key=fold(key, number)),
                Guard(self.module, []),
            ):
                loss = mean_loss(self._logits(x[rows]), y[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            self._step()
        tensors = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return {name: tensors[name].detach() for name in self.net.names}

    @torch.no_grad()
    def _step(self) -> None:
        """What `torch.optim.SGD` does; importing that imports torch's compiler, which
        takes seconds.
        """
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                parameter.sub_(self.rate * parameter.grad)

    def total_loss(self, x: Tensor, y: Tensor) -> float:
        """The sum of the losses in evaluation."""
        self.module.eval()
        with torch.no_grad(), Guard(self.module, []):
            return float(mean_loss(self._logits(x), y) * (y != IGNORE).sum())

    def _logits(self, x: Tensor) -> Tensor:
        return take_logits(self.module(x), self.net.output)


def mean_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy, averaged over the scored labels."""
    return F.cross_entropy(logits.flatten(0, -2), y.flatten(), ignore_index=IGNORE)
