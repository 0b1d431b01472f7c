"""Flow's second version against its description, in float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from fedblocks.methods.flow.flow_v2 import FlowV2
from fedblocks.nets.text import next_word

from . import definition
from .flow_v2 import IMAGE, TEXT, run
from .harness import BATCH, ENGINES, SEED, agrees, mlp_net, task_of
from .plain import Outcome
from .texts import agrees_on_texts, text_net, text_task

SMALL: dict[str, Any] = {
    "policy": (9, 8),
    "step_policy": (9, 8),
    "dense_policy": (7, 6, 5),
    "policy_dropout": 0.0,
}
CASES: dict[str, dict[str, Any]] = {
    "the paper": {"strength": 0.05},
    "soft, all data, no reward": {
        "strength": 0.0,
        "eval_routing": "soft",
        "split_data": False,
        "epochs": 2,
    },
}


@cache
def expected(case: str, texts: bool) -> tuple[FlowV2, Outcome]:
    own = CASES[case]
    net = text_net() if texts else mlp_net()
    method = FlowV2(net, lr=0.2, batch_size=BATCH, local_epochs=2, router_epochs=2, **SMALL, **own)
    policies = {
        name: router.init(definition.key(SEED, "init", 0))
        for name, router in method.routers.items()
    }
    task, kind = (text_task(method), TEXT) if texts else (task_of(method), IMAGE)
    return method, run(task, policies, kind, 0.2, method.strength, method.eval_routing == "hard")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_two_rounds_on_a_chain_are_those_of_the_description(case: str, engine: str) -> None:
    agrees(*expected(case, texts=False), ENGINES[engine])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_two_rounds_on_texts_are_those_of_the_description(case: str, engine: str) -> None:
    agrees_on_texts(*expected(case, texts=True), ENGINES[engine])


def test_the_policies_of_the_next_word_net_have_the_published_sizes() -> None:
    """96+670+670 -> 500 -> 250 -> 100 -> 50 -> 2, and 192 -> 75 -> 30 (-> 2) -> 10 ->
    2, with biases.
    """
    sizes = {name: router.size() for name, router in FlowV2(next_word((20,))).routers.items()}
    assert sizes == {"policy": 874_002, "dense_policy": 17_149}
