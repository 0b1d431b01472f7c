"""What is drawn while a module is made, and kept as no tensor of it: found by the check."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb

X = torch.linspace(-1, 1, 72).view(12, 6)
Y = torch.arange(12) % 3
MADE = count()


class Keeps(nn.Module):
    """A layer, and something in an attribute."""

    def __init__(self, make: Callable[[nn.Linear], Any]) -> None:
        super().__init__()
        self.a = nn.Linear(6, 3)
        with torch.no_grad():
            self.kept = make(self.a)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) * self.number()

    def number(self) -> float:
        kept = self.kept() if callable(self.kept) else self.kept
        return float(np.asarray(kept["p"] if isinstance(kept, dict) else kept).ravel()[0]) + 1


def closed_over(layer: nn.Linear) -> Callable[[], float]:
    rate = float(torch.rand(()))
    return lambda: rate


DRAWN: dict[str, tuple[Callable[[nn.Linear], Any], str]] = {
    "a number of the weights": (lambda layer: float(layer.weight.norm()), "kept"),
    "an array": (lambda layer: torch.rand(8).numpy(), "kept"),
    "a list": (lambda layer: torch.rand(3).tolist(), "kept[0]"),
    "in a dictionary": (lambda layer: {"p": float(torch.rand(1))}, "kept['p']"),
    "in a closure": (closed_over, "kept (rate)"),
}


@pytest.mark.parametrize(("make", "place"), DRAWN.values(), ids=DRAWN)
def test_what_is_drawn_and_no_tensor_is_found_with_its_place(
    make: Callable[[nn.Linear], Any], place: str, tmp_path: Path
) -> None:
    net = fb.Net.of(lambda: Keeps(make))
    said = f'"{place}" is drawn, and neither a parameter nor a buffer'
    assert said in str(fb.check_net(net, X))
    data = fb.Federation.from_arrays(X, Y, [[*range(6)], [*range(6, 12)]])
    with pytest.raises(fb.NetError) as told:
        fb.run(fb.FedAvg(net), data, rounds=1, out=tmp_path / "run")
    assert said in told.value.message


@pytest.mark.parametrize(
    "make",
    [
        lambda layer: 0.5,
        lambda layer: np.linspace(0, 1, 4),
        lambda layer: float(next(MADE)),  # another in each copy, whatever the seed
        lambda layer: layer.weight.shape[1],
    ],
)
def test_settings_and_counters_of_copies_are_not_drawn(make: Callable[[nn.Linear], Any]) -> None:
    report = str(fb.check_net(fb.Net.of(lambda: Keeps(make)), X))
    assert "is drawn, and neither" not in report


def test_what_is_drawn_with_a_seed_of_its_own_is_a_setting() -> None:
    make = lambda layer: np.random.default_rng(0).random(3)
    assert "is drawn, and neither" not in str(fb.check_net(fb.Net.of(lambda: Keeps(make)), X))
