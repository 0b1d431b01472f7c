"""Which step of its optimizer each tensor takes. As in torch, one without a gradient takes none:
its count waits, and when it has a gradient again the others are ahead of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedblocks.core.optimizers import COUNT, MISSED, Count, Memory
from fedblocks.core.parts import Params
from fedblocks.core.phases import Update
from fedblocks.core.resting import NamedTensors

Turn = tuple[list[int], Count]  # places of tensors that step together, and the step it is for them


def counted_together(update: Update, trained: NamedTensors) -> list[list[int]]:
    """The places of the tensors of each count that there is: one for all that an update moves;
    where blocks may rest, one for each block.
    """
    if update.rests is None:
        return [list(range(len(trained)))]
    return [[i for i, (block, _, _) in enumerate(trained) if block == n] for n in update.train]


def first_counts(update: Update, resting: Params, like: Tensor) -> list[Tensor]:
    """Of steps taken, 0: for each count, and for each slot that may rest."""
    if update.rests is None:
        return [torch.zeros_like(like)]
    return [torch.zeros_like(resting.get(n, like), dtype=like.dtype) for n in update.train]


def none_missed(update: Update, trained: NamedTensors, counts: Sequence[Tensor]) -> list[Tensor]:
    """Of steps that each tensor missed, 0, beside each count: [..., tensors]."""
    pairs = zip(counts, counted_together(update, trained), strict=True)
    return [count.new_zeros(*count.shape, len(together)) for count, together in pairs]


def turns(
    update: Update,
    trained: NamedTensors,
    grads: Sequence[Tensor | None],
    memory: Memory,
    lacked: set[int],
    count: Count,
) -> Iterator[Turn]:
    """Who steps, and which step of theirs it is. `lacked`: the places of tensors that were ever
    without a gradient, in Python, so that where there are none no number has to be read.
    """
    for number, together in enumerate(counted_together(update, trained)):
        live = [i for i in together if grads[i] is not None]
        steps = memory[COUNT][number].add_(1) if COUNT in memory else count
        if MISSED in memory and len(live) < len(together):
            _miss(memory[MISSED][number], together, live)
            lacked |= {*together} - {*live}
        if not lacked or lacked.isdisjoint(live):
            yield from [(live, steps)] if live else []
        else:
            yield from _apart(memory[MISSED][number], together, live, steps)


def _miss(missed: Tensor, together: list[int], live: list[int]) -> None:
    own = {*live}
    behind = [missed.select(-1, n) for n, place in enumerate(together) if place not in own]
    torch._foreach_add_(behind, 1)


def _apart(missed: Tensor, together: list[int], live: list[int], steps: Count) -> Iterator[Turn]:
    """Tensors that missed as many steps as each other, for every client of a stack. This reads
    numbers, so that no such step is recorded.
    """
    rows = dict(zip(together, missed.reshape(-1, len(together)).T.tolist(), strict=True))
    alike: dict[tuple[float, ...], list[int]] = {}
    for place in live:
        alike.setdefault(tuple(rows[place]), []).append(place)
    for row, places in alike.items():
        own = missed.select(-1, together.index(places[0]))
        yield places, steps - (int(row[0]) if len({*row}) == 1 else own)


def lacked_in(memory: Memory, update: Update, trained: NamedTensors) -> set[int]:
    """The places of tensors that missed steps of earlier rounds, for any client of a stack."""
    if COUNT not in memory or MISSED not in memory:
        return set()
    pairs = zip(counted_together(update, trained), memory[MISSED], strict=True)
    flags = [(own, missed.reshape(-1, len(own)).any(0).tolist()) for own, missed in pairs]
    return {i for own, any_missed in flags for i, flag in zip(own, any_missed, strict=True) if flag}
