"""LG-FedAvg, FedRep and FedBABU: nets that are shared in part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.optimizers import SGD
from fedblocks.engines.round import evaluate
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedbabu import FedBABU
from fedblocks.methods.fedper import FedPer
from fedblocks.methods.fedrep import FedRep
from fedblocks.methods.lg_fedavg import LGFedAvg
from fedblocks.methods.local import Local

from . import fedbabu, fedrep, lg_fedavg
from .harness import BATCH, ENGINES, SIZES, agrees, mlp_net, play, task_of
from .plain import Descent

OPTIMIZER, DESCENT = SGD(momentum=0.9, weight_decay=0.05), Descent(0.05, momentum=0.9, decay=0.05)
COMMON: dict[str, Any] = {
    "net": mlp_net(),
    "lr": 0.05,
    "epochs": 2,
    "batch_size": BATCH,
    "optimizer": OPTIMIZER,
}
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))


def same(found: dict[str, Tensor], expected: dict[str, Tensor], within: float = 1e-12) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=within)


@each_engine
@pytest.mark.parametrize("shared", ["top", "bottom"])
@pytest.mark.parametrize("top_layers", [1, 2])
def test_two_rounds_of_lg_fedavg_are_those_of_the_paper(
    top_layers: int, shared: str, engine: Any
) -> None:
    method = LGFedAvg(**COMMON, lg_global=shared, top_layers=top_layers)
    agrees(method, lg_fedavg.run(task_of(method), DESCENT, top_layers, shared), engine)


def test_the_head_of_the_net_is_the_default_top() -> None:
    assert LGFedAvg(**COMMON).pieces["top"].names == mlp_net().head.names
    assert LGFedAvg(**COMMON, top_layers=1).pieces["bottom"].names == mlp_net().body.names


def test_lg_fedavg_that_shares_the_bottom_is_fedper() -> None:
    _, found = play(LGFedAvg(**COMMON, lg_global="bottom"), ENGINES["sequential"])
    _, expected = play(FedPer(**COMMON), ENGINES["sequential"])
    same(found.server["bottom"], expected.server["body"])
    for client, blocks in expected.private.items():
        same(found.private[client]["top"], blocks["head"])


@each_engine
def test_lg_fedavg_with_an_empty_local_part_is_fedavg(engine: Any) -> None:
    method = LGFedAvg(**COMMON, top_layers=3)
    assert method.degenerate() and not LGFedAvg(**COMMON, top_layers=2).degenerate()
    _, found = play(method, engine)
    _, expected = play(FedAvg(**COMMON), engine)
    same(found.server["top"], expected.server["model"])
    assert found.private == {} and method.joining() == []


def test_lg_fedavg_with_an_empty_global_part_is_local() -> None:
    method = LGFedAvg(**COMMON, top_layers=3, lg_global="bottom")
    assert method.degenerate()
    _, found = play(method, ENGINES["sequential"])
    _, expected = play(Local(**COMMON), ENGINES["sequential"])
    assert found.server == {}
    for client, blocks in expected.private.items():
        same(found.private[client]["top"], blocks["model"])


def test_a_norm_belongs_to_the_side_of_the_layer_before_it() -> None:
    net = Net.of(
        lambda: nn.Sequential(
            nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)
        )
    )
    pieces = LGFedAvg(net, top_layers=2).pieces
    assert {name.partition(".")[0] for name in pieces["bottom"].names} == {"0", "1"}
    assert {name.partition(".")[0] for name in pieces["top"].names} == {"2", "3", "4"}
    assert "1.running_mean" in pieces["bottom"].names and "3.running_var" in pieces["top"].names


def test_a_new_client_of_lg_fedavg_leaves_the_global_part_alone() -> None:
    assert [phase.train for phase in LGFedAvg(**COMMON).joining()] == [("bottom",)]
    assert [phase.train for phase in LGFedAvg(**COMMON, lg_global="bottom").joining()] == [("top",)]


@each_engine
@pytest.mark.parametrize("tune_epochs", [0, 2])
def test_two_rounds_of_fedrep_are_those_of_the_paper(tune_epochs: int, engine: Any) -> None:
    method = FedRep(**COMMON, head_epochs=3, tune_epochs=tune_epochs)
    agrees(method, fedrep.run(task_of(method), DESCENT), engine)


def test_fedrep_trains_the_head_first_and_the_body_then() -> None:
    method = FedRep(**COMMON)
    assert [(phase.train, phase.epochs) for phase in method.phases()] == [
        (("head",), 10),
        (("body",), 2),
    ]
    assert [(phase.train, phase.epochs) for phase in method.joining()] == [(("head",), 10)]


def test_fedrep_whose_heads_never_train_is_fedbabu() -> None:
    """With one batch a client, so that phases of another number see the same batches."""
    options = {**COMMON, "batch_size": max(SIZES)}
    method = FedRep(**options, head_epochs=0)
    assert method.degenerate()
    _, found = play(method, ENGINES["sequential"])
    _, expected = play(FedBABU(**options), ENGINES["sequential"])
    same(found.server["body"], expected.server["body"], within=1e-10)


@each_engine
@pytest.mark.parametrize("tune", ["whole", "head", "body"])
def test_two_rounds_of_fedbabu_are_those_of_the_paper(tune: str, engine: Any) -> None:
    method = FedBABU(**COMMON, tune=tune, tune_epochs=3, tune_lr=0.03)
    agrees(method, fedbabu.run(task_of(method), DESCENT, replace(DESCENT, lr=0.03), tune), engine)


def test_the_head_of_fedbabu_is_neither_kept_nor_sent() -> None:
    experiment, state = play(FedBABU(**COMMON), ENGINES["sequential"])
    assert (
        not experiment.methods["all"].stateful
        and state.private == {}
        and state.server.keys() == {"body"}
    )
    assert not set(state.server["body"]) & set(mlp_net().head.names)


def test_fedbabu_without_fine_tuning_answers_with_the_initial_head() -> None:
    method = FedBABU(**COMMON, tune_epochs=0)
    assert method.degenerate()
    experiment, state = play(method, ENGINES["sequential"])
    found = evaluate(experiment, state, [0], ENGINES["sequential"])["personal"][0]
    head = {
        k: torch.from_numpy(v)
        for k, v in task_of(method).start[0].items()
        if k in mlp_net().head.names
    }
    rows = experiment.data.test[0]
    logits = method.net(
        {**{k: v[0] for k, v in state.server["body"].items()}, **head}, experiment.data.x[rows]
    )
    expected = float(nn.functional.cross_entropy(logits, experiment.data.y[rows], reduction="sum"))
    assert found[2] == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(
    ("method", "options", "word"),
    [
        (LGFedAvg, {"lg_global": "middle"}, "lg_global"),
        (LGFedAvg, {"top_layers": 0}, "top_layers = 0"),
        (LGFedAvg, {"top_layers": 4}, "the net has 3 layers"),
        (FedRep, {"head_epochs": -1}, "head_epochs"),
        (FedRep, {"tune_epochs": -1}, "tune_epochs"),
        (FedBABU, {"tune": "tail"}, "tune"),
        (FedBABU, {"tune_epochs": -1}, "tune_epochs"),
    ],
)
def test_values_out_of_range_are_refused(method: Any, options: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        method(mlp_net(), **options)
