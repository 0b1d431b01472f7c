"""A net with constant buffers, and data for it; imported by other processes, too."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

import fedblocks as fb


class Fourier(nn.Module):
    """Random features that are drawn once and never trained."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("omega", torch.randn(5, 16))
        self.register_buffer("order", torch.randperm(16))
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.cos(x @ self.omega)[:, self.order])


def data() -> fb.Federation:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(90, 5, generator=draw)
    y = (x[:, 0] > 0).long() + torch.arange(90) // 30 % 2
    return fb.Federation.from_users(x, y, torch.arange(90) // 30, classes=3)


def method(net: fb.Net) -> fb.Method:
    return fb.FedAvg(net, lr=0.1, batch_size=10)


def one_round() -> str:
    """A hash of all tensors after a round."""
    net = fb.Net.of(Fourier)
    experiment = fb.Experiment.of(method(net), data(), seed=3)
    state, _ = fb.run_round(experiment, experiment.start(), [0, 1, 2], fb.Sequential())
    tensors = [*state.server["model"].values(), *net.constants.values()]
    return hashlib.sha256(b"".join(t.contiguous().numpy().tobytes() for t in tensors)).hexdigest()
