"""What local optimizers remember: nothing at the start of a phase, or what the client kept."""

from __future__ import annotations

import torch
from torch import Tensor

from fedblocks.core.client import ClientStack
from fedblocks.core.optimizers import COUNT, Count, Memory
from fedblocks.core.parts import Params
from fedblocks.core.phases import Update
from fedblocks.core.resting import resting_in


def memory_of(
    update: Update, params: list[Tensor], place: int, kept: Params | None, local: ClientStack
) -> Memory:
    """At the start of a phase: fresh, or what the client kept of it, with its own count."""
    memory = update.optimizer.memory(params)
    if not local.keep_optimizer:
        return memory
    memory[COUNT] = _first_counts(update, resting_in(place, local), local.tensors["size"])
    if kept is None:
        return memory
    return {
        moment: [kept[f"{moment}/{i}"].clone() for i in range(len(v))]
        for moment, v in memory.items()
    }


def _first_counts(update: Update, resting: Params, like: Tensor) -> list[Tensor]:
    """Of steps, 0: one for all that an update moves; where blocks may rest, one for each block,
    and for each slot that may.
    """
    if update.rests is None:
        return [torch.zeros_like(like)]
    return [torch.zeros_like(resting.get(n, like), dtype=like.dtype) for n in update.train]


def packed(memory: Memory) -> Params:
    """As a block that the client keeps."""
    named = ((name, enumerate(values)) for name, values in memory.items())
    return {f"{name}/{i}": value for name, values in named for i, value in values}


def counted(memory: Memory, number: int, count: Count) -> Count:
    """The number of this step: since the phase began, or since the client kept count."""
    return memory[COUNT][number].add_(1) if COUNT in memory else count
