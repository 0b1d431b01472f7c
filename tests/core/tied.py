"""A net whose tensors have several names."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Tied(nn.Module):
    """Two layers with one weight, and a buffer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.free = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
        self.two.weight = self.one.weight
        self.register_buffer("mean", torch.ones(2))
        self.free.register_buffer("same", self.mean)

    def forward(self, x: Tensor) -> Tensor:
        return self.free(self.two(self.one(x))) + self.mean + self.free.same
