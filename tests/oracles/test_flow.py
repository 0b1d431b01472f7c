"""Flow against the poster: two rounds and an inference equal the algorithm by hand, in float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from fedblocks.core.optimizers import SGD
from fedblocks.methods.flow.flow import Flow
from fedblocks.methods.flow.options import POSTER

from .autograd import Params
from .definition import Course
from .flow import IMAGE, TEXT, Options, run
from .harness import BATCH, ENGINES, FEATURES, agrees, initial, mlp_net, task_of
from .plain import Outcome
from .texts import EMBEDDING, HIDDEN, agrees_on_texts, text_net, text_task

# options of the method, and of the oracle
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the poster": ({}, {}),
    "a slower router and momentum": (
        {"router_pace": 0.25, "optimizer": SGD(momentum=0.8)},
        {"theta_lr": 0.05, "momentum": 0.8},
    ),
    "halves, hard routes": (
        {"split_data": True, "eval_routing": "hard", "tau": 0.1},
        {"hard": True, "tau": 0.1},
    ),
    "halves before an evaluation, too": ({"split_data": True, "split_adaptation": True}, {}),
    "a router that starts anew": ({"router_scope": "local_reinit"}, {"reinit": True}),
    "the shared net alone": ({"global_update_path": "global_only"}, {"through_mixture": False}),
    "more epochs": ({"local_epochs": 2, "epochs": 2, "router_epochs": 3}, {}),
}
TEXT_CASES = {
    **CASES,
    "one embedding": ({"tune_local_embedding": False}, {"own_embedding": False}),
    "two cells": ({"mix_cell": False}, {"mix_cell": False}),
}


def theta(seen: int) -> Params:
    """The router at the start: a dense layer on what it sees, two outputs."""
    start = initial(lambda: nn.Sequential(nn.Linear(seen, 2)), slot=0)
    return {name: torch.from_numpy(value) for name, value in start.items()}


def courses(own: dict[str, Any]) -> dict[str, list[Course]]:
    """Tune w^l, then theta and w^g together; w^l and theta again before an evaluation."""
    first, second = ("support", "query") if own.get("split_data") else ("all", "all")
    local = own.get("local_epochs", 1)
    tuned, routed = ("support", "query") if own.get("split_adaptation") else ("all", "all")
    before = [Course(local, tuned), Course(own.get("router_epochs", 1), routed)]
    train = [Course(local, first), Course(own.get("epochs", 1), second)]
    return {"courses": train, "adapting": before, "joining": before}


@cache
def on_a_chain(case: str) -> tuple[Flow, Outcome]:
    own, message = CASES[case]
    method = Flow(mlp_net(), lr=0.2, batch_size=BATCH, **{**POSTER, **own})
    return method, run(
        task_of(method, **courses(own)),
        theta(FEATURES),
        IMAGE,
        Options(**{"lr": 0.2, "theta_lr": 0.2, **message}),
    )


@cache
def on_texts(case: str) -> tuple[Flow, Outcome]:
    own, message = TEXT_CASES[case]
    method = Flow(text_net(), lr=0.2, batch_size=BATCH, **{**POSTER, **own})
    return method, run(
        text_task(method, **courses(own)),
        theta(EMBEDDING + HIDDEN),
        TEXT,
        Options(**{"lr": 0.2, "theta_lr": 0.2, **message}),
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_two_rounds_on_a_chain_are_the_direct_analogue_of_the_poster(
    case: str, engine: str
) -> None:
    agrees(*on_a_chain(case), ENGINES[engine])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", TEXT_CASES)
def test_two_rounds_on_texts_are_those_of_the_poster(case: str, engine: str) -> None:
    agrees_on_texts(*on_texts(case), ENGINES[engine])
