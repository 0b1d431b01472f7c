"""Which examples a client sees in which step: a function of (seed, round, client, phase, epoch)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from fedblocks.core.client import Step
from fedblocks.core.method import Method
from fedblocks.core.phases import Phase
from fedblocks.core.random import generator
from fedblocks.engines.devices import send

Positions = npt.NDArray[np.int64]


def positions(count: int, on: str) -> Positions:
    """A client's examples, the first half of them, or the second; a single example is
    both halves.
    """
    half = (count + 1) // 2
    match on:
        case "all":
            return np.arange(count)
        case "support":
            return np.arange(half)
        case "query":
            return np.arange(half, count) if count > 1 else np.arange(count)
        case _:
            raise ValueError(f'a phase runs on "all", "support" or "query", not on "{on}"')


@dataclass(frozen=True)
class Draw:
    """Whose batches are drawn, when and for what: their order depends on nothing else."""

    seed: int
    round: int
    client: int
    purpose: str  # keeps training apart from adaptation


@dataclass(frozen=True)
class _Course:
    """How a phase goes through a client's examples."""

    on: str
    epochs: int | None
    steps: int | None  # in the place of epochs
    batch_size: int
    drop_last: bool


def batches(method: Method, phase: Phase, number: int, count: int, draw: Draw) -> list[Positions]:
    """The batches of one client, who has `count` examples, in the phase of this number."""
    epochs = phase.epochs if phase.steps is None else None
    course = _Course(phase.on, epochs, phase.steps, method.batch_size, method.drop_last)
    return _batches(course, number, count, draw)


# an engine may make the orders of a round while the device is busy with the one before
@lru_cache(maxsize=2048)
def _batches(course: _Course, number: int, count: int, draw: Draw) -> list[Positions]:
    chosen = positions(count, course.on)
    drawn: list[Positions] = []
    epoch = 0
    while len(chosen) and not _is_over(course, epoch, len(drawn)):
        source = generator(draw.seed, draw.round, draw.client, draw.purpose, number, epoch)
        drawn += _cut(source.permutation(chosen), course.batch_size, course.drop_last)
        epoch += 1
    return drawn[: course.steps]


def sizes_of_batches(method: Method, counts: Iterable[int]) -> set[int]:
    """How many examples are in the batches of clients who have so many of them."""
    parts = {"all", *(phase.on for phase in method.phases())}
    chosen = {len(positions(count, on)) for count in {*counts} for on in parts}
    sizes = {min(count, method.batch_size) for count in chosen}
    if not method.drop_last:
        sizes |= {count % method.batch_size for count in chosen if count > method.batch_size}
    return sizes - {0}


def _is_over(course: _Course, epochs: int, steps: int) -> bool:
    return steps >= (course.steps or 0) if course.epochs is None else epochs >= course.epochs


def _cut(order: Positions, size: int, drop_last: bool) -> list[Positions]:
    cuts = [order[start : start + size] for start in range(0, len(order), size)]
    return cuts[:-1] if drop_last and len(cuts) > 1 and len(cuts[-1]) < size else cuts


def steps_of_one(batches: Sequence[Positions], device: torch.device) -> list[Step]:
    """The steps of one client: batches as they are, no padding."""
    if not batches:
        return []
    flat = torch.from_numpy(np.concatenate(batches)).to(device)
    return [Step(index, full=True) for index in torch.split(flat, [len(f) for f in batches])]


def steps_of_stack(by_client: Sequence[Sequence[Positions]], device: torch.device) -> list[Step]:
    """The steps of a stack of clients, longest first: in each step only those that
    still have batches take part.
    """
    counts = [len(f) for f in by_client]
    if not any(counts):
        return []
    if counts != sorted(counts, reverse=True):
        raise ValueError(
            "clients of a stack must be sorted by their number of batches, longest first"
        )
    table = _table(by_client, counts)
    index = send(torch.from_numpy(table), device)
    active = [sum(count > s for count in counts) for s in range(counts[0])]
    full = [bool((table[s, :a] >= 0).all()) for s, a in enumerate(active)]
    return [Step(index[s, :a], full[s], a) for s, a in enumerate(active)]


def _table(by_client: Sequence[Sequence[Positions]], counts: Sequence[int]) -> Positions:
    """[steps, clients, batch], -1 where there is nothing."""
    widths = {len(batch) for client in by_client for batch in client}
    shape = (counts[0], len(by_client), max(widths))
    if len(widths) == 1 and counts[-1] == counts[0]:  # nothing is missing
        flat = np.concatenate([batch for client in by_client for batch in client])
        return np.ascontiguousarray(flat.reshape(shape[1], shape[0], shape[2]).transpose(1, 0, 2))
    table = np.full(shape, -1, dtype=np.int64)
    for c, client in enumerate(by_client):
        for s, batch in enumerate(client):
            table[s, c, : len(batch)] = batch
    return table
