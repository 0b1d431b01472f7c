"""What ranks send to each other arrives as it was, whatever its types and its place in memory."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedblocks.core.private_state import CLIENTS_PER_SHARD, MANY, ShardedState
from fedblocks.core.state import State
from fedblocks.runs.ranks.checkpoints import Scattering
from fedblocks.runs.ranks.closing import _from_first
from fedblocks.runs.ranks.ranks import Ranks
from fedblocks.runs.ranks.uploads import GroupUploads

from .in_threads import play_in_threads

CPU = torch.device("cpu")
IDS = ([4, 1], [], [3])  # of three ranks


def copies_of(ids: list[int]) -> dict[str, Tensor]:
    """A byte, then numbers that need places of four and of eight bytes."""
    return {
        "is_odd": torch.tensor([i % 2 == 1 for i in ids]),
        "w": torch.tensor([[i / 2, -i] for i in ids], dtype=torch.float32).reshape(-1, 2),
        "steps": torch.tensor([10 * i for i in ids], dtype=torch.int64),
    }


OUTLINE = {
    name: [str(value.dtype).removeprefix("torch."), list(value.shape[1:])]
    for name, value in copies_of([0]).items()
}


def group_of(ranks: Ranks) -> GroupUploads:
    ids = IDS[ranks.number]
    parts = [
        {"ids": torch.tensor(own), "blocks": {"b": {"outline": OUTLINE}}} if own else None
        for own in IDS
    ]
    upload = SimpleNamespace(copies=copies_of(ids))
    own: Any = SimpleNamespace(cohort=ids, uploads={"b": upload}) if ids else None
    method: Any = None
    return GroupUploads(ranks, method, own, parts, CPU)


@pytest.mark.parametrize("everywhere", [True, False])
def test_copies_of_all_ranks_come_in_the_order_of_clients(
    everywhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(ranks: Ranks) -> Any:
        return group_of(ranks).copies("b", everywhere)

    first, *others = play_in_threads(3, work, monkeypatch)
    for copies in (first, *others) if everywhere else (first,):
        for name, value in copies_of([1, 3, 4]).items():
            assert copies[name].dtype == value.dtype and torch.equal(copies[name], value)
    assert everywhere or others == [None, None]


def test_slots_that_the_first_rank_makes_are_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever order they lie in memory; what has not changed is not sent."""
    same = {"w": torch.ones(2)}
    before = State(3, {"same": same, "new": {"w": torch.zeros(2, 3)}}, {}, {})
    by_columns = torch.arange(6.0).view(3, 2).t()

    def work(ranks: Ranks) -> State:
        make = lambda: replace(before, server={"same": same, "new": {"w": by_columns}})
        return _from_first(ranks, before, make)

    for state in play_in_threads(2, work, monkeypatch):
        assert torch.equal(state.server["new"]["w"], by_columns)
        assert state.server["same"] is same and state.round == 3


def test_clients_of_a_rank_are_packed_by_neighbours_where_all_are_many() -> None:
    keeps = {
        client: {"head": {"w": torch.tensor([float(client)])}}
        for client in (70, 3, 5, CLIENTS_PER_SHARD)
    }
    pieces = [{str(c): keeps[c] for c in own} for own in ((70, CLIENTS_PER_SHARD), (3, 5))]
    few, many = (Scattering(Ranks(0, 2, 1.0), np.zeros(80, dtype=np.int64)) for _ in range(2))
    few.pieces.extend((MANY - 1, piece) for piece in pieces)
    many.pieces.extend((MANY, piece) for piece in pieces)
    assert [*few.private()] == [3, 5, CLIENTS_PER_SHARD, 70]
    packed = many.private()
    assert isinstance(packed, ShardedState) and sorted(packed.shards) == [0, 1]
    for own in (few.private(), packed):
        assert {c: own[c]["head"]["w"].item() for c in keeps} == {c: float(c) for c in keeps}
