"""Pieces of models as tensors with names: what they hold, and how they start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

Params = dict[str, Tensor]  # one copy of one block
Blocks = dict[str, Params]  # everything one client holds during a round


class Part(Protocol):
    """Something that a block can hold."""

    def init(self, seed: int) -> Params:
        """The tensors at the start; a function of the seed alone."""


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of its own: mixture weights, a cluster choice, a step size."""

    value: Tensor

    def init(self, seed: int) -> Params:
        return {"value": self.value.clone()}


@dataclass(frozen=True, eq=False)
class Filled:
    """Tensors shaped like those of a part, all of one value at the start: control
    variates, mixing weights.
    """

    part: Part
    value: float

    def init(self, seed: int) -> Params:
        return {
            name: torch.full_like(tensor, self.value)
            for name, tensor in self.part.init(seed).items()
        }


@dataclass(frozen=True, eq=False)
class Sized:
    """A part whose size depends on how many clients there are: affinities, embeddings."""

    make: Callable[[int], Part]  # the number of clients -> the part


@cache
def is_statistic(name: str) -> bool:
    """Whether training moves this tensor without a gradient: BatchNorm's running mean
    and variance.
    """
    return name.rpartition(".")[2] in ("running_mean", "running_var")


# starts the names of private blocks that hold what local optimizers remember
OPTIMIZER = "optimizer/"
