"""Local optimizers: how a gradient becomes a step. Fresh in every round unless a run
keeps their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedblocks.core.checks import Checked
from fedblocks.core.options import AtLeast, Below, Conflict, Help, Positive

Memory = dict[str, list[Tensor]]  # what an optimizer remembers, one list of tensors for each moment
COUNT = "count"  # among them, with kept moments: steps that the client has taken in all rounds
MISSED = "missed"  # and of how many steps each tensor had no gradient, since moments are kept
# a learning rate; a tensor where a captured graph reads it anew, [clients] where they differ
Rate = float | Tensor
Count = int | Tensor  # steps so far, this one included; a tensor where clients of a stack differ

# how much of a moving average stays from step to step
Kept = Annotated[float, AtLeast(0), Below(1)]
Decayed = Annotated[
    Literal["weights"] | None,
    Help('"weights": no decay of biases and of norm layers; default: all tensors decay'),
]


@runtime_checkable
class Optimizer(Protocol):
    """A way to step. Works in place on the working copies of one client's (or one
    cohort's) round.

    One that says `has_client_numbers = True` can have a tensor [clients] in the place of any of
    its numbers, for a stack of clients that differ in it. One with the fields `weight_decay` and
    `decay = "weights"` is called twice in a step: with the weights, and, its `weight_decay` 0, with
    all other tensors. Tensors without a gradient are in no step and do not count it; later they
    step by themselves, with a count of their own, as do blocks that may rest. One that says
    `counts_steps = False` makes nothing of `count`, so that its tensors always step together. One
    that tells tensors by their places says with `at(places)` what it is for some of them.
    """

    def memory(self, params: list[Tensor]) -> Memory: ...

    def step(
        self, params: list[Tensor], grads: list[Tensor], memory: Memory, lr: Rate, count: Count
    ) -> None: ...


@dataclass(frozen=True)
class SGD(Checked):
    """Stochastic gradient descent, as in `torch.optim.SGD`."""

    has_client_numbers: ClassVar[bool] = True
    counts_steps: ClassVar[bool] = False

    momentum: Annotated[
        Kept, Help("how much of the velocity stays from step to step", usual="0.9")
    ] = 0.0
    nesterov: Annotated[bool, Help("look ahead along the velocity; needs momentum")] = False
    weight_decay: Annotated[float, AtLeast(0), Help("pull of the weights to 0", usual="1e-4")] = 0.0
    decay: Decayed = None

    def conflicts(self) -> list[Conflict]:
        if self.momentum or not self.nesterov:
            return []
        return [Conflict("nesterov", "has no effect without momentum", "set momentum, e.g. 0.9")]

    def memory(self, params: list[Tensor]) -> Memory:
        return {"velocity": [torch.zeros_like(p) for p in params]} if _is_on(self.momentum) else {}

    def step(
        self, params: list[Tensor], grads: list[Tensor], memory: Memory, lr: Rate, count: Count
    ) -> None:
        if _is_on(self.weight_decay):
            grads = _add(grads, params, self.weight_decay)
        if _is_on(self.momentum):
            velocity = memory["velocity"]
            torch._foreach_mul_(velocity, _broadcast(self.momentum, velocity))
            torch._foreach_add_(velocity, grads)
            if self.nesterov:
                grads = _add(grads, velocity, self.momentum)
            else:
                grads = velocity
        _descend(params, grads, lr)


@dataclass(frozen=True)
class Adam(Checked):
    """Adam, as in `torch.optim.Adam`."""

    has_client_numbers: ClassVar[bool] = True

    betas: Annotated[
        tuple[float, float],
        AtLeast(0),
        Below(1),
        Help("how much of the mean and of the squares stays"),
    ] = (0.9, 0.999)
    eps: Annotated[float, Positive(), Help("keeps the division by the squares' root finite")] = 1e-8
    weight_decay: Annotated[
        float, AtLeast(0), Help("pull of the weights to 0, in the gradient")
    ] = 0.0
    decay: Decayed = None

    def memory(self, params: list[Tensor]) -> Memory:
        return {name: [torch.zeros_like(p) for p in params] for name in ("mean", "square")}

    def step(
        self, params: list[Tensor], grads: list[Tensor], memory: Memory, lr: Rate, count: Count
    ) -> None:
        if _is_on(self.weight_decay):
            grads = _add(grads, params, self.weight_decay)
        self._move(params, grads, memory, lr, count)

    def _move(
        self, params: list[Tensor], grads: list[Tensor], memory: Memory, lr: Rate, count: Count
    ) -> None:
        slow, slower = self.betas
        mean, square = memory["mean"], memory["square"]
        torch._foreach_lerp_(mean, grads, _broadcast(1 - slow, params))
        torch._foreach_mul_(square, _broadcast(slower, params))
        if isinstance(slower, Tensor):
            squares = list(torch._foreach_mul(grads, grads))
            torch._foreach_add_(square, torch._foreach_mul(squares, _broadcast(1 - slower, params)))
        else:
            torch._foreach_addcmul_(square, grads, grads, 1 - slower)
        scale = list(torch._foreach_sqrt(square))
        torch._foreach_div_(scale, _broadcast(_missing(slower, count) ** 0.5, params))
        torch._foreach_add_(scale, _broadcast(self.eps, params))
        change = list(torch._foreach_div(mean, scale))
        torch._foreach_div_(change, _broadcast(_missing(slow, count), params))
        _descend(params, change, lr)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay, as in `torch.optim.AdamW`."""

    weight_decay: Annotated[
        float, AtLeast(0), Help("pull of the weights to 0, beside the gradient")
    ] = 0.01

    def step(
        self, params: list[Tensor], grads: list[Tensor], memory: Memory, lr: Rate, count: Count
    ) -> None:
        torch._foreach_mul_(params, _broadcast(1 - lr * self.weight_decay, params))
        self._move(params, grads, memory, lr, count)


def counts_steps(optimizer: Optimizer) -> bool:
    """Whether it matters to an optimizer which step of a tensor it takes."""
    return getattr(optimizer, "counts_steps", True)


def of_some(optimizer: Optimizer, places: Sequence[int]) -> Optimizer:
    """What an optimizer is for some of its tensors."""
    at: Callable[[Sequence[int]], Optimizer] | None = getattr(optimizer, "at", None)
    return optimizer if at is None else at(places)


def _missing(kept: Rate, count: Count) -> Rate:
    """What a moving average that began at 0 still lacks of 1, the factor of its bias; in double
    precision, for 1 - 0.999 has only four digits of single precision.
    """
    exact = [n.double() if isinstance(n, Tensor) else n for n in (kept, count)]
    return 1 - exact[0] ** exact[1]


def _is_on(number: Rate) -> bool:
    """Whether a number that may be 0 is not; clients of a stack have it on, or off, together."""
    return isinstance(number, Tensor) or number != 0


def _add(values: list[Tensor], others: list[Tensor], times: Rate) -> list[Tensor]:
    """values + times x others."""
    if not isinstance(times, Tensor):
        return list(torch._foreach_add(values, others, alpha=times))
    return list(torch._foreach_add(values, torch._foreach_mul(others, _broadcast(times, others))))


def _broadcast(value: float | Tensor, params: list[Tensor]) -> Any:
    """A number for each client of a stack, shaped to multiply each of its tensors."""
    return [each_client(value, p) for p in params] if isinstance(value, Tensor) else value


def each_client(value: Rate, like: Tensor) -> Rate:
    """A number, or one for each client of a stack, shaped to multiply one of its tensors."""
    if not isinstance(value, Tensor):
        return value
    return value.to(like.dtype).view((*value.shape, *[1] * (like.dim() - value.dim())))


def _descend(params: list[Tensor], direction: list[Tensor], lr: Rate) -> None:
    if isinstance(lr, Tensor):
        rates = _broadcast(lr, params) if lr.dim() else lr
        torch._foreach_sub_(params, torch._foreach_mul(direction, rates))
    else:
        torch._foreach_add_(params, direction, alpha=-lr)
