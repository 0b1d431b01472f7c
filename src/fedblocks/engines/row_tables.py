"""Which rows some clients hold, as tables on the device, and the plans of a coming round."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedblocks.data.federation import Federation, Rows
from fedblocks.engines.plans import Roster, StackPlan


class RowTables:
    """Tables of some clients' rows, kept from round to round: the same clients have the
    same rows. And plans for the next round.
    """

    def __init__(self) -> None:
        self._of_one = lru_cache(maxsize=256)(_pad)
        self._of_several = lru_cache(maxsize=8)(_pad)
        self._read: dict[tuple[int, ...], Federation] = {}  # of one stack of clients at most
        self._plans: dict[Hashable, StackPlan] = {}
        self._cast: dict[Hashable, tuple[Tensor, Tensor]] = {}  # of one pool of targets at most

    def lay_out(self, rosters: Sequence[Roster], size: int) -> None:
        """Make the plans of the coming round for stacks of this size; those that nobody asked for
        are forgotten.
        """
        self._plans.clear()
        for roster in rosters:
            for members in roster.stacks(size):
                plan = self._plans[roster.key(members)] = roster.plan(members)
                plan.lay_out()

    def plan(self, roster: Roster, members: Sequence[int]) -> StackPlan:
        """The plan of some clients, laid out or new; it is theirs alone."""
        plan = self._plans.pop(roster.key(members), None)
        return roster.plan(members) if plan is None else plan

    def pad(
        self,
        rows: Rows,
        ids: Sequence[int],
        device: torch.device,
        dtype: torch.dtype,
        few_lengths: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """The rows of some clients, [clients, longest or more], and how many are real,
        [clients]; nobody writes to them.
        """
        pad = self._of_one if len(ids) == 1 else self._of_several
        return pad(rows, tuple(ids), device, dtype, few_lengths)

    def read(self, data: Federation, ids: Sequence[int]) -> Federation:
        """The data of some clients, read from their file; those of others are forgotten."""
        key = (id(data), *ids)
        if key not in self._read:
            self._read.clear()
            self._read[key] = data.subset(ids).compact()
        return self._read[key]

    def targets(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """Targets that are numbers in the type of a net, so that losses are computed in it; the
        same tensor each time.
        """
        if not y.is_floating_point() or y.dtype == dtype:
            return y
        key = (id(y), dtype)
        if key not in self._cast:
            self._cast.clear()
            self._cast[key] = y, y.to(dtype)
        return self._cast[key][1]


def table_length(longest: int) -> int:
    """The next of 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20 and so on: four lengths from each
    power of two to the next. Graphs are recorded for the shape of a table, and cohorts differ.
    """
    step = max(1, 1 << ((longest - 1).bit_length() - 3)) if longest > 4 else 1
    return -(-longest // step) * step


def _pad(
    rows: Rows,
    ids: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
    few_lengths: bool,
) -> tuple[Tensor, Tensor]:
    """Padding repeats a row of the same client."""
    by_client = [rows[i] for i in ids]
    length = max(1, *(len(own) for own in by_client))
    if few_lengths:
        length = max(length, min(table_length(length), rows.longest))
    table = np.empty((len(by_client), length), dtype=np.int64)
    for c, own in enumerate(by_client):
        table[c, : len(own)] = own
        table[c, len(own) :] = own[0] if len(own) else 0
    sizes = torch.tensor([len(own) for own in by_client], dtype=dtype, device=device)
    return torch.from_numpy(table).to(device), sizes
