"""SCAFFOLD against its algorithm box, and what must hold of control variates."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedblocks.core.errors import UserError
from fedblocks.core.optimizers import SGD, Adam
from fedblocks.core.schedules import Milestones
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.scaffold import Scaffold

from . import scaffold
from .harness import BATCH, COHORTS, ENGINES, SIZES, agrees, mlp_net, play, task_of

COMMON: dict[str, Any] = {"net": mlp_net(), "lr": 0.2, "epochs": 2, "batch_size": BATCH}
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))


@each_engine
@pytest.mark.parametrize("weigh_by", ["examples", "clients"])
def test_two_rounds_are_those_of_the_paper(weigh_by: str, engine: Any) -> None:
    method = Scaffold(**COMMON, server_lr=0.7, weigh_by=weigh_by)
    agrees(
        method, scaffold.run(task_of(method), lambda _: 0.2, 0.7, weigh_by == "examples"), engine
    )


@each_engine
def test_controls_follow_the_learning_rate_of_each_round(engine: Any) -> None:
    method = Scaffold(**{**COMMON, "lr": Milestones(0.2, (1,), 0.1)}, server_lr=0.7)
    outcome = scaffold.run(task_of(method), (0.2, 0.02).__getitem__, 0.7, by_examples=True)
    agrees(method, outcome, engine)


@each_engine
def test_the_first_round_is_fedavg(engine: Any) -> None:
    """All control variates are still 0."""
    (_, actual), (_, expected) = (
        play(m(**COMMON), engine, cohorts=COHORTS[:1]) for m in (Scaffold, FedAvg)
    )
    for key, value in expected.server["model"].items():
        torch.testing.assert_close(actual.server["model"][key], value, rtol=0, atol=1e-12)


def test_the_second_round_is_not_fedavg() -> None:
    (_, actual), (_, expected) = (
        play(m(**COMMON), ENGINES["sequential"]) for m in (Scaffold, FedAvg)
    )
    gap = max(
        (actual.server["model"][k] - v).abs().max() for k, v in expected.server["model"].items()
    )
    assert gap > 1e-3


def test_the_control_is_the_mean_of_the_clients_controls() -> None:
    """c = sum_i c_i / N at all times, if clients count alike; who never trained has 0."""
    _, state = play(
        Scaffold(**COMMON, weigh_by="clients"), ENGINES["vectorised"], cohorts=COHORTS * 2
    )
    for key, value in state.server["control"].items():
        total = sum(blocks["own"][key] for blocks in state.private.values())
        torch.testing.assert_close(value[0], total / len(SIZES), rtol=0, atol=1e-12)


def test_a_client_without_data_keeps_its_control() -> None:
    _, state = play(Scaffold(**COMMON), ENGINES["vectorised"])
    assert all(not value.any() for value in state.private[4]["own"].values())


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), SGD(weight_decay=1e-3), Adam()])
def test_anything_but_plain_sgd_is_refused(optimizer: Any) -> None:
    with pytest.raises(UserError, match="plain SGD"):
        Scaffold(mlp_net(), optimizer=optimizer)


@pytest.mark.parametrize(
    ("options", "word"), [({"server_lr": 0.0}, "server_lr"), ({"weigh_by": "luck"}, "weigh_by")]
)
def test_values_out_of_range_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        Scaffold(mlp_net(), **options)
