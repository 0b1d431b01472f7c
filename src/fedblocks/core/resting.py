"""What rests though an update names it: tensors that the loss does not depend on, as in torch, and
blocks that the update says rest in this round. Neither decay nor kept moments move them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedblocks.core.client import ClientStack
from fedblocks.core.optimizers import COUNT, MISSED, Memory
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.phase_functions import rests_of
from fedblocks.core.phases import Phase, Update

_RESTING = "resting"  # among a stack's tensors: place of an update -> block -> whether it rests
_COUNTS = (COUNT, MISSED)  # what there is one of for each count, not for each tensor
NamedTensors = Sequence[
    tuple[str, str, Tensor]
]  # (block, name, tensor) of all that an update names


def knowing_rest(phase: Phase, number: int, blocks: Blocks, local: ClientStack) -> ClientStack:
    """The clients in a phase, with what rests in it: that is asked once, before the first step."""
    asked = {str(place): u.rests for place, u in enumerate(phase.updates) if u.rests is not None}
    if not asked:
        return local
    flags = {
        place: local.each(rests_of(rests, number, int(place), local))(local.tensors, blocks)
        for place, rests in asked.items()
    }
    return replace(local, tensors={**local.tensors, _RESTING: flags})


def resting_in(place: int, local: ClientStack) -> Params:
    """Block -> whether it rests in an update, [] or [slots]; of a stack, for each client."""
    flags: Params = local.tensors.get(_RESTING, {}).get(str(place), {})
    return flags


def without_resting(
    trained: NamedTensors, grads: Sequence[Tensor | None], resting: Params
) -> list[Tensor | None]:
    """Gradients, 0 where a block rests: they are a part of no norm."""
    return [
        torch.where(_over(resting[name], g), 0.0, g) if g is not None and name in resting else g
        for (name, _, _), g in zip(trained, grads, strict=True)
    ]


def moved_statistics(new: Blocks, old: Blocks, resting: Params) -> Blocks:
    """What a forward pass left behind, but for that of blocks that rest."""
    return {
        name: {k: torch.where(_over(resting[name], v), old[name][k], v) for k, v in block.items()}
        if name in resting
        else block
        for name, block in new.items()
    }


def moments_at(memory: Memory, places: Sequence[int], count: int) -> Memory:
    """What an optimizer itself remembers of some of so many tensors."""
    own = {moment: values for moment, values in memory.items() if moment not in _COUNTS}
    if len(places) == count:
        return own
    return {
        moment: [values[i] for i in places] if len(values) == count else values
        for moment, values in own.items()
    }


class Rest:
    """The values, moments and counts of what rests, as they were before a step."""

    def __init__(
        self, update: Update, trained: NamedTensors, memory: Memory, resting: Params
    ) -> None:
        held = [
            (flag, value) for name, _, value in trained if (flag := resting.get(name)) is not None
        ]
        for moment, values in memory.items():
            names = update.train if moment in _COUNTS else [name for name, _, _ in trained]
            if resting and len(values) == len(names):
                pairs = zip(names, values, strict=True)
                held += [(resting[name], value) for name, value in pairs if name in resting]
        self.held = [(flag, value, value.clone()) for flag, value in held]

    def put_back(self) -> None:
        for flag, value, before in self.held:
            value.copy_(torch.where(_over(flag, value), before, value))


def _over(flag: Tensor, value: Tensor) -> Tensor:
    """One answer, or one for each slot, beside a tensor."""
    return flag.view((*flag.shape, *[1] * (value.dim() - flag.dim())))
