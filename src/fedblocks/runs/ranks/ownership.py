"""Which rank has which client: a function of sizes and the number of ranks alone, so that nobody
has to be asked, and a run can go on with another number of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedblocks.core.errors import UserError
from fedblocks.core.private_state import CLIENTS_PER_SHARD, MANY
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Ints


def owners_of(sizes: Ints, unseen: Sequence[int], ranks: int) -> Ints:
    """The rank of each client, [clients]: like sizes everywhere, among those who train and among
    those who never do.

    Neighbours of a large federation stay together, as they do in its packed state.
    """
    trains = np.ones(len(sizes), dtype=bool)
    trains[list(unseen)] = False
    if trains.sum() < ranks:
        raise UserError(
            f"{ranks} ranks, but only {trains.sum()} clients to train on",
            f"start at most {trains.sum()}: torchrun --nproc-per-node {trains.sum()} ...",
        )
    unit = CLIENTS_PER_SHARD if len(sizes) >= MANY else 1
    starts = np.arange(0, len(sizes), unit)
    work = np.add.reduceat(np.where(trains, sizes, 0), starts)  # [units]
    whole = np.add.reduceat(sizes, starts)  # [units]
    order = np.lexsort((-whole, -work))
    there_and_back = np.concatenate([np.arange(ranks), np.arange(ranks)[::-1]])
    owners = np.empty(len(starts), dtype=np.int64)
    owners[order] = np.resize(there_and_back, len(starts))
    return np.repeat(owners, unit)[: len(sizes)]


def part_of(federation: Federation, own: np.ndarray[Any, np.dtype[np.bool_]]) -> Federation:
    """The same clients under the same numbers, with the rows of some of them, [clients], only."""
    rows: dict[str, Any] = {
        part: held.where(own[held.owners]) for part, held in federation.parts.items()
    }
    part = replace(federation, **rows)
    return part if part.streamed else part.compact()
