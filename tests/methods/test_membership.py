"""Clients that belong to one slot of a pool: who chooses, and who stays."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedblocks.core.method import Method
from fedblocks.core.parts import Params
from fedblocks.core.state import State
from fedblocks.engines.round import Engine, Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.clustered import Clustered
from fedblocks.methods.modfl import ModFL
from fedblocks.testing import small_federation, small_net

METHODS = {
    "clusters": Clustered(small_net(), max_clusters=2, never_split=True),
    "operation": ModFL(small_net(), operations=2, cohorts="found", warmup=1),
}


def with_homes(state: State, pool: str, homes: list[int]) -> State:
    """The second slot predicts at random with great confidence, so that nobody would
    choose it; homes by client.
    """
    noise = torch.Generator().manual_seed(0)
    slots: Params = {
        k: torch.stack([0 * v[0], 50 * torch.randn(v[0].shape, generator=noise, dtype=v.dtype)])
        for k, v in state.server[pool].items()
    }
    membership = {"value": torch.tensor(homes, dtype=torch.double)[:, None]}
    return replace(state, server={**state.server, pool: slots, "membership": membership})


@pytest.mark.parametrize("engine", [Sequential(), Vectorised()], ids=lambda engine: engine.name)
@pytest.mark.parametrize("pool", METHODS)
def test_a_client_without_a_home_takes_the_best_slot_and_the_others_stay_where_they_are(
    pool: str, engine: Engine
) -> None:
    method: Method = METHODS[pool]
    experiment = Experiment.of(method, small_federation())
    homes = [-1] * experiment.data.clients
    homes[0], homes[1] = 1, 0
    state = with_homes(experiment.start(), pool, homes)
    after, _ = run_round(experiment, state, [0, 1, 2], engine)
    assert after.server["membership"]["value"].flatten().tolist()[:4] == [1, 0, 0, -1]
