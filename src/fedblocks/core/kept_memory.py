"""What local optimizers remember: nothing at the start of a phase, or what the client kept."""

from __future__ import annotations

from torch import Tensor

from fedblocks.core.client import ClientStack
from fedblocks.core.optimizers import COUNT, MISSED, Memory, counts_steps
from fedblocks.core.parts import Params
from fedblocks.core.phases import Update
from fedblocks.core.resting import NamedTensors, resting_in
from fedblocks.core.step_counts import first_counts, none_missed


def memory_of(
    update: Update, trained: NamedTensors, place: int, kept: Params | None, local: ClientStack
) -> Memory:
    """At the start of a phase: fresh, or what the client kept of it, with its own count."""
    memory = update.optimizer.memory([value for _, _, value in trained])
    counts = first_counts(update, resting_in(place, local), local.tensors["size"])
    if counts_steps(update.optimizer):
        memory[MISSED] = none_missed(update, trained, counts)
    if not local.keep_optimizer:
        return memory
    memory[COUNT] = counts
    return memory if kept is None else _gone_on(memory, kept)


def _gone_on(memory: Memory, kept: Params) -> Memory:
    """What was kept, by the names of what there is at the start."""

    def own(moment: str, place: int, fresh: Tensor) -> Tensor:
        name = f"{moment}/{place}"
        # runs of versions that did not count them
        return fresh if moment == MISSED and name not in kept else kept[name].clone()

    return {m: [own(m, i, v) for i, v in enumerate(values)] for m, values in memory.items()}


def packed(memory: Memory) -> Params:
    """As a block that the client keeps."""
    named = ((name, enumerate(values)) for name, values in memory.items())
    return {f"{name}/{i}": value for name, values in named for i, value in values}
