"""Nets of more than a million parameters: their answers are compared with plain PyTorch's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.engines.net_check.check import MOST, check_before_run

WIDE = 1030
DATA = torch.linspace(-1, 1, 120).view(20, 6)


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, WIDE), nn.Linear(WIDE, WIDE)
        self.c = nn.Linear(WIDE, 4, bias=False)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.b(torch.relu(self.a(x))))))

    def head(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.scale * self.c.weight)


class Cached(Wide):
    """Keeps what it makes of its weights in evaluation; `train` clears it."""

    kept: Tensor | None = None

    def train(self, mode: bool = True) -> Any:
        self.kept = None
        return super().train(mode)

    def head(self, hidden: Tensor) -> Tensor:
        if self.training:
            return F.linear(hidden, F.normalize(self.c.weight))
        if self.kept is None:
            self.kept = F.normalize(self.c.weight).detach()
        return F.linear(hidden, self.kept)


class Asks(Wide):
    """Asks what kind of tensor its weight is."""

    def head(self, hidden: Tensor) -> Tensor:
        scale = self.scale.exp() if isinstance(self.scale, nn.Parameter) else self.scale
        return F.linear(hidden, scale * self.c.weight)


class AsksOfGradients(Wide):
    def head(self, hidden: Tensor) -> Tensor:
        scale = self.scale.exp() if self.scale.requires_grad else self.scale
        return F.linear(hidden, scale * self.c.weight)


class Assigns(Wide):
    """EEGNet's line."""

    def head(self, hidden: Tensor) -> Tensor:
        self.c.weight.data = torch.renorm(self.c.weight.data, 2, 0, 0.1)
        return F.linear(hidden, self.c.weight)


@pytest.mark.parametrize("kind", [Cached, Asks, AsksOfGradients, Assigns])
def test_a_large_net_that_answers_or_trains_otherwise_than_plain_pytorch_is_refused(
    kind: Callable[[], nn.Module],
) -> None:
    with pytest.raises(fb.NetError, match="would not train as in plain PyTorch"):
        check_before_run(fb.Net.of(kind), DATA, mapped=False)


def test_a_large_net_that_answers_alike_is_taken_within_seconds() -> None:
    net = fb.Net.of(Wide)
    assert net.size() > MOST
    began = time.perf_counter()
    said = check_before_run(net, DATA, mapped=True)
    assert not net.unmappable and "only a few steps of one client were tried" in said
    assert time.perf_counter() - began < 20  # seconds, on a busy machine
