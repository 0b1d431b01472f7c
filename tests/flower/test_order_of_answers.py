"""What a round ends with does not depend on who answers first."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fedblocks.core.net import Net
from fedblocks.engines.round import Experiment
from fedblocks.flower.local import answers_of, sides_of
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.methods.fedamp import FedAMP
from fedblocks.methods.fedavg import FedAvg
from fedblocks.testing import small_federation
from fedblocks.testing.compare import Leaves, state_leaves

from .federations import RUN

# as precise as the sums of the server: in another order they differ in the last bits
NET = Net.of(
    lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)), dtype=torch.float64
)


def after_a_round(method: FedAvg | FedAMP, order: list[int], folder: Path) -> Leaves:
    """All that the server has after clients have answered in this order."""
    data = small_federation()
    server, sides = sides_of(Experiment({"all": method}, data, seed=3), order, RUN, folder)
    asked = OpenRound(server, server.start(), sorted(order))
    answer = answers_of(sides)
    for client in order:
        assert asked.receive(client, answer(client, asked.downloads[client])) is None
    assert asked.report.refusals == [] and asked.admitted == len(order)
    return state_leaves(asked.close().progress.state)


@pytest.mark.parametrize("method", [FedAvg(NET), FedAMP(NET)], ids=["fedavg", "fedamp"])
def test_clients_may_answer_in_any_order(method: FedAvg | FedAMP, tmp_path: Path) -> None:
    in_turn = after_a_round(method, [0, 1, 2, 3], tmp_path / "in turn")
    mixed = after_a_round(method, [2, 0, 3, 1], tmp_path / "mixed")
    assert in_turn.keys() == mixed.keys()
    assert all(torch.equal(value, mixed[name]) for name, value in in_turn.items())
