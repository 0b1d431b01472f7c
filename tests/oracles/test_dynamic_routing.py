"""DynamicRouting against the poster's description, in float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from fedblocks.core.optimizers import SGD
from fedblocks.engines.round import run_round
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.flow.dynamic_routing import DynamicRouting

from . import definition
from .dynamic_routing import run
from .flow import IMAGE, TEXT, Options
from .harness import BATCH, ENGINES, SEED, agrees, mlp_net, play, task_of
from .plain import Outcome
from .texts import agrees_on_texts, text_net, text_task

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the poster": ({}, {}),
    "momentum, two cells": (
        {"optimizer": SGD(momentum=0.8), "mix_cell": False},
        {"momentum": 0.8, "mix_cell": False},
    ),
}


@cache
def expected(case: str, texts: bool) -> tuple[DynamicRouting, Outcome]:
    own, message = CASES[case]
    method = DynamicRouting(
        text_net() if texts else mlp_net(), lr=0.2, batch_size=BATCH, tune_lr=0.1, **own
    )
    theta = method.router.init(definition.key(SEED, "init", 0))
    task, kind = (text_task(method), TEXT) if texts else (task_of(method), IMAGE)
    return method, run(task, theta, kind, Options(lr=0.2, theta_lr=0.2, **message), tune_lr=0.1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_two_rounds_on_a_chain_are_those_of_the_poster(case: str, engine: str) -> None:
    agrees(*expected(case, texts=False), ENGINES[engine])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_two_rounds_on_texts_are_those_of_the_poster(case: str, engine: str) -> None:
    agrees_on_texts(*expected(case, texts=True), ENGINES[engine])


def test_the_two_branches_start_apart() -> None:
    experiment, _ = play(DynamicRouting(text_net()), ENGINES["sequential"], cohorts=())
    for value in experiment.start().server["branches"].values():
        assert not torch.equal(value[0], value[1])


def test_what_travels_is_the_net_a_second_encoder_and_the_router() -> None:
    net = mlp_net()
    experiment, state = play(
        DynamicRouting(net, batch_size=BATCH), ENGINES["sequential"], cohorts=()
    )
    plain, start = play(FedAvg(net, batch_size=BATCH), ENGINES["sequential"], cohorts=())
    _, report = run_round(experiment, state, [0], ENGINES["sequential"])
    _, fedavg = run_round(plain, start, [0], ENGINES["sequential"])
    down = sum(by_client[0] for by_client in report.bytes_down.values())
    encoder, router = 8 * (5 * 7 + 7 + 7 * 6 + 6), 8 * (5 * 2 + 2)
    assert down == fedavg.bytes_down["model"][0] + encoder + router
