"""FedRecon against its paper, in float64; its limit cases and its refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.optimizers import SGD
from fedblocks.data.rows import Rows
from fedblocks.engines.round import Engine, Experiment
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedopt import FedYogi
from fedblocks.methods.fedrecon import FedRecon

from .autograd import IGNORE
from .fedrecon import run
from .harness import BATCH, ENGINES, SIZES, agrees, federation, mlp, mlp_net, play, task_of
from .plain import Descent
from .texts import text_net, texts

LR, RECON_LR = 0.1, 0.3

# options of the method, and of the oracle
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the head": ({}, {}),
    "the head from zero": ({"local_init": "zero"}, {"zero": True}),
    "another module": ({"local": "2"}, {"local": ("2.",)}),
    "all the data for both": ({"split_data": False}, {"halves": False}),
    "steps and a server step": ({"recon_steps": 7, "server_lr": 0.6}, {"server_lr": 0.6}),
    "yogi": ({"server_rule": "yogi", "server_lr": 0.05}, {"yogi": True, "server_lr": 0.05}),
}
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))


@each_engine
@pytest.mark.parametrize("case", CASES)
def test_two_rounds_are_those_of_the_paper(case: str, engine: Engine) -> None:
    own, message = CASES[case]
    settings: dict[str, Any] = {
        "lr": LR,
        "recon_lr": RECON_LR,
        "epochs": 2,
        "optimizer": SGD(momentum=0.5),
    }
    method = FedRecon(mlp_net(), batch_size=BATCH, recon_epochs=3, **settings, **own)
    expected = run(task_of(method), Descent(LR, 0.5), Descent(RECON_LR, 0.5), **message)
    agrees(method, expected, engine)


@each_engine
@pytest.mark.parametrize("rule", ["average", "yogi"])
def test_fedrecon_with_nothing_local_is_fedopt(rule: str, engine: Engine) -> None:
    settings: dict[str, Any] = {"net": mlp_net(), "lr": LR, "epochs": 2, "batch_size": BATCH}
    method = FedRecon(
        local="",
        split_data=False,
        server_rule=rule,
        server_lr=0.05 if rule == "yogi" else 1,
        **settings,
    )
    other = FedYogi(server_lr=0.05, **settings) if rule == "yogi" else FedAvg(**settings)
    assert method.degenerate() and method.adaptation() == []
    actual, expected = (play(m, engine)[1].server for m in (method, other))
    for name, value in expected["model"].items():
        torch.testing.assert_close(actual["shared"][name], value, rtol=0, atol=1e-12)


@each_engine
def test_with_nothing_local_the_halves_leave_fedavg_on_the_query_examples(engine: Engine) -> None:
    # in one batch, in any order
    settings: dict[str, Any] = {"net": mlp_net(), "lr": LR, "batch_size": max(SIZES)}
    data = federation()
    query = Rows.of([rows[(len(rows) + 1) // 2 :] for rows in data.train])
    _, actual = play(FedRecon(local="", **settings), engine, data)
    _, expected = play(FedAvg(**settings), engine, replace(data, train=query))
    for name, value in expected.server["model"].items():
        torch.testing.assert_close(actual.server["shared"][name], value, rtol=0, atol=1e-12)


@each_engine
def test_a_client_weighs_as_much_as_the_tokens_of_its_query_half(engine: Engine) -> None:
    data, method, clients = texts(), FedRecon(text_net(), batch_size=BATCH), [0, 1, 3]
    experiment = Experiment.of(method, data)
    job = experiment.job("all", clients, experiment.start(), method.phases(), True, "train")
    y, halves = data.y.numpy(), [data.train[i][(len(data.train[i]) + 1) // 2 :] for i in clients]
    assert engine.train(job).weights["shared"].flatten().tolist() == [
        np.sum(y[rows] != IGNORE) for rows in halves
    ]


def test_the_local_part_is_no_part_of_the_state() -> None:
    _, state = play(FedRecon(mlp_net(), lr=LR, batch_size=BATCH), ENGINES["sequential"])
    assert state.private == {} and set(state.server) == {"shared"}
    assert set(state.server["shared"]) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_a_named_cut_of_the_net_can_be_reconstructed() -> None:
    net = Net.of(mlp, blocks={"middle": ["2"], "ends": ["0", "4"]}, dtype=torch.float64)
    assert set(FedRecon(net, local="ends").personal.names) == {
        "0.weight",
        "0.bias",
        "4.weight",
        "4.bias",
    }


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"local": "5"}, 'local = "5": the net has no such module'),
        ({"local_init": "ones"}, 'local_init = "ones": must be "random" or "zero"'),
        ({"server_rule": "sgd"}, 'server_rule = "sgd": must be "average"'),
        ({"server_lr": 0.0}, "server_lr"),
        ({"recon_epochs": -1}, "recon_epochs = -1: must be at least 0"),
    ],
)
def test_a_wrong_option_is_refused_with_a_fix(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        FedRecon(mlp_net(), **wrong)
    assert error.value.fix


def test_a_net_that_is_all_local_is_refused() -> None:
    with pytest.raises(UserError, match="nothing to share"):
        FedRecon(Net.of(mlp, blocks={"all": ["0", "2", "4"]}), local="all")
