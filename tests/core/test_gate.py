"""A client that sends nonsense counts as absent, and the reason is kept."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from fedblocks.core.net import Net
from fedblocks.engines.federate import Setting, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedper import FedPer

ENGINES = pytest.mark.parametrize("engine", [Sequential(), Vectorised(chunk=3)], ids=lambda e: e.name)


def net() -> Net:
    return Net.of(lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)), dtype=torch.float64)


def spoil(client, value: float):
    return torch.where(client.id == 2, torch.full_like(client.size, value), torch.ones_like(client.size))


@dataclass(frozen=True, eq=False)
class Spoilt(FedPer):
    """Client 2 multiplies its body by a number that it should not."""

    by: float = float("nan")

    def finish(self, blocks, start, client):
        return {**blocks, "body": {k: v * spoil(client, self.by) for k, v in blocks["body"].items()}}


@dataclass(frozen=True, eq=False)
class Greedy(FedAvg):
    """Client 2 asks for a weight that it should not have."""

    weight: float = -1.0

    def writes(self, blocks, client):
        return {"model": (client.size * spoil(client, self.weight))[None]}


def assert_as_if_absent(method, good, federation, engine, reason: str) -> None:
    bad, rest = Setting.of(method, federation), Setting.of(good, federation)
    state, report = run_round(bad, bad.start(), range(4), engine)
    expected, _ = run_round(rest, rest.start(), [0, 1, 3], engine)
    for name, block in expected.server.items():
        for key, value in block.items():
            assert torch.allclose(state.server[name][key], value, atol=1e-12)
    assert set(state.private) == set(expected.private)
    assert [(r.client, r.reason) for r in report.refusals] == [(2, reason)]


@ENGINES
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_client_with_numbers_that_are_not_finite_is_as_good_as_absent(federation, engine, value):
    options = {"batch_size": 4}
    assert_as_if_absent(Spoilt(net(), by=value, **options), FedPer(net(), **options), federation, engine, "not-finite")


@ENGINES
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_client_with_a_bad_weight_is_as_good_as_absent(federation, engine, value):
    options = {"batch_size": 4}
    assert_as_if_absent(
        Greedy(net(), weight=value, **options), FedAvg(net(), **options), federation, engine, "bad-weight"
    )


@ENGINES
def test_a_round_in_which_everyone_is_refused_changes_nothing(federation, engine):
    one = Setting.of(Spoilt(net()), federation)
    start = one.start()
    state, report = run_round(one, start, [2], engine)
    assert state.round == 1 and len(report.refusals) == 1 and not state.private
    assert all(torch.equal(state.server["body"][k], v) for k, v in start.server["body"].items())
