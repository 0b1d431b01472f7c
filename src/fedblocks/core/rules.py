"""Server rules: what the server does with the average of what clients sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

import torch
from torch import Tensor

from fedblocks.core.checks import Checked
from fedblocks.core.optimizers import Kept
from fedblocks.core.options import AtLeast, Help, Positive
from fedblocks.core.parts import Blocks, Params, is_statistic


class Rule(Protocol):
    """(memory, old slots, mean of the uploads) -> (memory, new slots); memory has one
    row for each slot.
    """

    def memory(self, old: Params) -> Blocks: ...

    def apply(self, memory: Blocks, old: Params, mean: Params) -> tuple[Blocks, Params]: ...


@dataclass(frozen=True)
class Average:
    """The new value is the average of the uploads."""

    def memory(self, old: Params) -> Blocks:
        return {}

    def apply(self, memory: Blocks, old: Params, mean: Params) -> tuple[Blocks, Params]:
        return memory, mean


@dataclass(frozen=True)
class MovingAverage(Checked):
    """A step of size beta from the old value to the average."""

    beta: Annotated[float, Positive(), Help("length of the step; 1: all the way")] = 1.0

    def memory(self, old: Params) -> Blocks:
        return {}

    def apply(self, memory: Blocks, old: Params, mean: Params) -> tuple[Blocks, Params]:
        moved = {name: torch.lerp(old[name], mean[name], self.beta) for name in _moved(old)}
        return memory, {**mean, **moved}


@dataclass(frozen=True)
class Adaptive(Checked):
    """The change as a gradient for an adaptive server optimizer, without bias
    correction (Reddi et al., 2021).
    """

    lr: Annotated[float, AtLeast(0), Help("server learning rate")] = 0.01
    beta1: Annotated[Kept, Help("how much of the first moment is kept")] = 0.9
    beta2: Annotated[Kept, Help("how much of the second moment is kept")] = 0.99
    tau: Annotated[
        float, Positive(), Help("degree of adaptivity; the second moment starts at its square")
    ] = 1e-3

    def memory(self, old: Params) -> Blocks:
        names = _moved(old)
        first = {name: torch.zeros_like(old[name]) for name in names}
        second = {name: torch.full_like(old[name], self.tau**2) for name in names}
        return {"first": first, "second": second}

    def apply(self, memory: Blocks, old: Params, mean: Params) -> tuple[Blocks, Params]:
        first, second, moved = {}, {}, {}
        for name in memory["first"]:
            change = mean[name] - old[name]
            m = torch.lerp(change, memory["first"][name], self.beta1)
            v = self.second_moment(memory["second"][name], change.square())
            moved[name] = old[name] + self.lr * m / (v.sqrt() + self.tau)
            first[name], second[name] = m, v
        return {"first": first, "second": second}, {**mean, **moved}

    def second_moment(self, old: Tensor, square: Tensor) -> Tensor:
        raise NotImplementedError("Adam, Adagrad and Yogi differ in this")


@dataclass(frozen=True)
class ServerAdam(Adaptive):
    """v <- beta2 v + (1 - beta2) d^2."""

    def second_moment(self, old: Tensor, square: Tensor) -> Tensor:
        return torch.lerp(square, old, self.beta2)


@dataclass(frozen=True)
class ServerAdagrad(Adaptive):
    """v <- v + d^2; no first moment by default."""

    beta1: Annotated[Kept, Help("how much of the first moment is kept")] = 0.0

    def second_moment(self, old: Tensor, square: Tensor) -> Tensor:
        return old + square


@dataclass(frozen=True)
class ServerYogi(Adaptive):
    """v <- v - (1 - beta2) d^2 sign(v - d^2)."""

    def second_moment(self, old: Tensor, square: Tensor) -> Tensor:
        return old - (1 - self.beta2) * square * torch.sign(old - square)


def _moved(old: Params) -> list[str]:
    """What a rule moves: parameters. Running statistics are no directions, and are averaged."""
    return [
        name for name, value in old.items() if value.is_floating_point() and not is_statistic(name)
    ]
