"""What clients keep, shard by shard, and stacks of clients of which only the first still train."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedblocks.core.client import ClientStack, RowSource
from fedblocks.core.private_state import Pack, ShardedState, StackedState
from fedblocks.core.task import CLASSIFICATION


def block(*values: float) -> Any:
    return {"own": {"w": torch.tensor(values)}}


def values(state: Any) -> dict[int, list[float]]:
    return {client: blocks["own"]["w"].tolist() for client, blocks in state.items()}


@pytest.mark.parametrize("changed", [0, 1, 2, 5, 70])
def test_a_change_of_one_client_leaves_all_others_of_whatever_shape_as_they_were(
    changed: int,
) -> None:
    first = {0: block(1.0), 1: block(2.0, 3.0), 2: block(4.0), 66: block(5.0)}
    state = ShardedState().merge(first)
    assert len(state.shards[0]) == 2 and values(state) == values(first)
    for new in (block(9.0), block(8.0, 7.0)):
        after = state.merge({changed: new})
        assert (
            values(after) == values({**first, changed: new}) == dict(sorted(values(after).items()))
        )
        assert values(state) == values(first) and len(after) == len({*first, changed})


def test_one_stack_holds_all_clients_of_a_small_federation() -> None:
    stacked = StackedState(Pack((2, 5), {"own": {"w": torch.tensor([[1.0], [2.0]])}}))
    assert list(stacked) == [2, 5] and len(stacked) == 2 and 5 in stacked and 3 not in stacked
    assert "5" not in stacked and stacked[5]["own"]["w"].tolist() == [2.0]
    for absent in (0, 3, 9):
        with pytest.raises(KeyError):
            stacked[absent]


def test_the_first_clients_of_a_stack_have_their_tensors_and_rates() -> None:
    source = RowSource(torch.zeros(4, 1), torch.zeros(4, dtype=torch.long), CLASSIFICATION)
    rates: Any = {(0, 0): torch.tensor([0.1, 0.2, 0.3])}
    tensors = {"size": torch.tensor([3, 2, 1]), "rows": torch.arange(6).view(3, 2)}
    stack = ClientStack(source, tensors, 0, True, lambda hook: hook, rates=rates)
    few = stack.first(2)
    assert few.tensors["size"].tolist() == [3, 2] and few.tensors["rows"].shape == (2, 2)
    assert few.rates[0, 0].tolist() == pytest.approx([0.1, 0.2])
    assert stack.first(None) is stack.first(3) is stack
