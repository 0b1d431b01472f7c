"""`Net.of(instance)` draws what its layers draw where they are made."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedblocks.core.net import Net
from fedblocks.core.outside_modules import seeded


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.att = nn.MultiheadAttention(6, 2, batch_first=True)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.att(x, x, x)[0].mean(1))


class Sets(nn.Module):
    """Sets the numbers of its layers, as PyG's modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(6, 4), nn.Linear(4, 3)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_normal_(self.a.weight)
        nn.init.constant_(self.a.bias, 0.1)
        nn.init.zeros_(self.out.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.a(x)))


class Holds(nn.Module):
    """A layer that sets others, inside another, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Sets(), nn.Linear(3, 3))
        self.again = self.inner[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.again(x)


@pytest.mark.parametrize(
    "make",
    [
        Attends,
        Sets,
        Holds,
        lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)),
        lambda: nn.TransformerEncoderLayer(6, 2, 8, batch_first=True),
        lambda: nn.LSTM(6, 4, 2),
    ],
)
def test_an_instance_starts_as_plain_pytorch_does_with_the_seed(
    make: Callable[[], nn.Module],
) -> None:
    instance = Net.of(make())
    for seed in (0, 5):
        with seeded(seed):
            plain = dict(make().named_parameters())
        ours = instance.init(seed)
        assert ours.keys() == plain.keys()
        for name, value in plain.items():
            assert ours[name].shape == value.shape
            constant = bool((value == value.flatten()[0]).all())
            if constant:  # set, not drawn
                assert torch.equal(ours[name], value.detach()), name
            else:
                assert bool((ours[name] != ours[name].flatten()[0]).any()), name


@pytest.mark.parametrize("make", [Attends, lambda: nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))])
def test_layers_that_draw_once_start_to_the_bit_as_where_they_are_made(
    make: Callable[[], nn.Module],
) -> None:
    given, made = Net.of(make()), Net.of(make)
    one, other = given.init(3), made.init(3)
    assert all(torch.equal(value, other[name]) for name, value in one.items())
