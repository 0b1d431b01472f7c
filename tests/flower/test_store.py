"""What a client keeps to itself is read under the plan that kept it: no other plan can send it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from fedblocks.core.method import Method
from fedblocks.core.net import Net
from fedblocks.engines.round import Experiment
from fedblocks.flower.client.store import PersonalStore
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.wire.messages import Malformed, header_of
from fedblocks.methods.local import Local
from fedblocks.methods.mean_reg_mtl import MeanRegMTL
from fedblocks.methods.pfedmb.method import PFedMB
from fedblocks.testing import small_federation, small_net

from .federations import everybody, played

NORMED = Net.of(
    lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4)),
    dtype=torch.float64,
)
STILL = {"lr": 1e-12, "batch_size": 4}  # training that leaves a model as it is
PLANS: dict[str, tuple[Callable[[], Method], Callable[[], Method]]] = {
    "a private block": (
        lambda: Local(small_net(), batch_size=4),
        lambda: MeanRegMTL(small_net(), **STILL),
    ),
    "local statistics": (
        lambda: PFedMB(NORMED, batch_size=4, branches=2, statistics="local"),
        lambda: PFedMB(NORMED, batch_size=4, branches=2, statistics="average"),
    ),
    "another learning rate": (
        lambda: MeanRegMTL(small_net(), batch_size=4),
        lambda: MeanRegMTL(small_net(), **STILL),
    ),
}


@pytest.mark.parametrize("kind", PLANS)
def test_a_second_plan_of_the_same_run_does_not_get_what_the_first_one_kept(
    kind: str, tmp_path: Path
) -> None:
    """The operator gives a second run the name of the first, and says that the client
    took part in round 1.
    """
    first, second = (Experiment.of(make(), small_federation(), seed=0) for make in PLANS[kind])
    played(*everybody(first, tmp_path), [[0]])
    server, sides = everybody(second, tmp_path)
    progress = server.start()
    asked = OpenRound(server, replace(progress, kept={0: 1}), [0])
    answer = sides[0].answer(asked.downloads[0])
    header = header_of(answer)
    assert header.kind == "apology" and header.reason == "lost-state" and answer.arrays == {}
    assert "another version, method, options, net or seed" in header.detail


def test_what_is_kept_under_a_plan_is_there_for_that_plan_alone(tmp_path: Path) -> None:
    store = PersonalStore.of(tmp_path, "f", "r", 0)
    head = {"head": {"w": torch.ones(2)}}
    store.commit(1, head, 0, "a")
    store.put_aside(1, {"header": "{}", "blocks": head}, "a")
    assert (
        store.load(1, "a")["head"]["w"].equal(torch.ones(2))
        and store.aside(1, "a")["header"] == "{}"
    )
    with pytest.raises(Malformed, match="lost-state"):
        store.load(1, "b")
    with pytest.raises(Malformed, match="lost-download"):
        store.aside(1, "b")
