"""FedBN against its algorithm box: normalisation layers, parameters and statistics,
never leave their client.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedblocks.core.net import Net
from fedblocks.engines.round import evaluate
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedbn import FedBN

from . import fedbn
from .harness import ENGINES, FEATURES, agrees, mlp_net, play, task_of

COMMON: dict[str, Any] = {"lr": 0.2, "epochs": 2, "batch_size": 7}  # no batch of a single example
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))


def normed(norm: nn.Module) -> Net:
    layers = (nn.Linear(FEATURES, 6, bias=False), norm, nn.ReLU(), nn.Linear(6, 4))
    return Net.of(nn.Sequential(*layers), dtype=torch.float64)


@each_engine
def test_two_rounds_are_those_of_the_paper(engine: Any) -> None:
    method = FedBN(normed(nn.BatchNorm1d(6)), **COMMON)
    agrees(method, fedbn.run(task_of(method), 0.2), engine)


def test_parameters_and_statistics_of_norms_stay_with_the_client() -> None:
    _, state = play(FedBN(normed(nn.BatchNorm1d(6)), **COMMON), ENGINES["vectorised"])
    assert set(state.server["rest"]) == {"0.weight", "3.weight", "3.bias"}
    assert set(state.private[0]["norms"]) == {
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
    }
    first, other = (state.private[i]["norms"]["1.running_mean"] for i in (0, 2))
    assert (first - other).abs().max() > 0.01


@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.GroupNorm(2, 6)])
def test_other_normalisation_layers_are_private_too(norm: nn.Module) -> None:
    _, state = play(FedBN(normed(norm), **COMMON), ENGINES["vectorised"])
    assert set(state.private[0]["norms"]) == {"1.weight", "1.bias"}


@each_engine
def test_on_a_net_without_norms_it_is_fedavg_and_says_so(engine: Any) -> None:
    method = FedBN(mlp_net(), **COMMON)
    assert "FedAvg" in method.degenerate()[0] and not FedBN(normed(nn.BatchNorm1d(6))).degenerate()
    (_, actual), (_, expected) = play(method, engine), play(FedAvg(mlp_net(), **COMMON), engine)
    for key, value in expected.server["model"].items():
        assert torch.equal(actual.server["rest"][key], value)


def test_a_new_client_fits_its_norms_only() -> None:
    experiment, state = play(FedBN(normed(nn.BatchNorm1d(6)), **COMMON), ENGINES["vectorised"])
    joined = evaluate(experiment, state, [5], ENGINES["vectorised"], part="train", joining=True)[
        "personal"
    ][5]
    assert (
        joined[2]
        < evaluate(experiment, state, [5], ENGINES["vectorised"], part="train")["personal"][5][2]
    )
