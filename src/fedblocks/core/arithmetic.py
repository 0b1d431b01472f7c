"""Arithmetic on blocks of parameters: mixing, mapping, distances."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import vmap

from fedblocks.core.mode import current
from fedblocks.core.parts import Params


def mix(stack: Params, weights: Tensor) -> Params:
    """One copy, the weighted sum of the copies in a stack: [slots, ...] and [slots] -> [...]."""
    return {
        name: torch.tensordot(weights.to(value.dtype), value, 1) for name, value in stack.items()
    }


def each(part: Callable[[Params, Tensor], Tensor], stack: Params, x: Tensor) -> Tensor:
    """What every copy in a stack makes of the same input: [slots, batch, ...]."""
    if current().mapped:
        result: Tensor = vmap(part, in_dims=(0, None))(stack, x)
        return result
    now = current()
    draws = now.draws
    results = []
    for slot in range(len(next(iter(stack.values())))):
        now.draws = draws  # every copy sees the same noise, as it does inside `vmap`
        results.append(part({name: value[slot] for name, value in stack.items()}, x))
    return torch.stack(results)


def pick(stack: Params, slot: Tensor) -> Params:
    """One copy of a stack, by number."""
    return {name: value.index_select(0, slot.view(1)).squeeze(0) for name, value in stack.items()}


def distance2(a: Params, b: Params) -> Tensor:
    """The squared Euclidean distance between two copies of a block."""
    return torch.stack([(a[name] - b[name]).square().sum() for name in a]).sum()


def flat(stack: Params) -> Tensor:
    """A stack as a matrix, one row for each copy: [slots, parameters]."""
    return torch.cat([value[..., None].flatten(1) for value in stack.values()], 1)


def unflat(row: Tensor, like: Params) -> Params:
    """A row of such a matrix as the copy that it was: [parameters] -> [...]."""
    pieces = torch.split(row, [value.numel() for value in like.values()])
    return {
        name: piece.view(value.shape)
        for (name, value), piece in zip(like.items(), pieces, strict=True)
    }
