"""One row of the zoo, and the small module that most rows are a change of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Make = Callable[[], nn.Module]
BOTH, ONE, NONE = ("sequential", "vectorised"), ("sequential",), ()  # engines


@dataclass(frozen=True)
class Species:
    """A net, the engines on which it trains as in plain PyTorch, and what is said of the others."""

    name: str
    make: Make
    engines: tuple[str, ...] = BOTH
    says: str = ""  # a part of what the user reads
    input_shape: tuple[int, ...] = (5,)
    output: Any = None  # where the logits are in what the module returns


class TwoLayers(nn.Module):
    """Two dense layers; what else it has and how it runs are arguments."""

    def __init__(self, run: Callable[[Any, Tensor], Any], equip: Callable[[Any], None]) -> None:
        super().__init__()
        self.inner, self.fc = nn.Linear(5, 6), nn.Linear(6, 3)
        equip(self)
        self.run = run

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def dense(
    run: Callable[[Any, Tensor], Any], equip: Callable[[Any], None] = lambda module: None
) -> Make:
    """A function that makes such a module."""
    return partial(TwoLayers, run, equip)


def hidden(module: Any, x: Tensor) -> Tensor:
    return torch.tanh(module.inner(x))


def classify(module: Any, x: Tensor) -> Tensor:
    return module.fc(hidden(module, x))
