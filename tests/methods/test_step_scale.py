"""`lr_scale = "mixture"`: a step moves a mixture as far as one net with the same learning rate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedblocks.core.arithmetic import mix
from fedblocks.core.method import Method
from fedblocks.core.parts import Params
from fedblocks.core.state import State
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods._common.mixtures import scale_gradient, steps_of_one_net
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedem import FedEM
from fedblocks.methods.pfedmb import PFedMB

from .test_pfedmb import conv_net, federation

ENGINES = [Sequential(), Vectorised(chunk=3)]
# One batch a client: the order of batches depends on the number of a phase.
USUAL: dict[str, Any] = {"lr": 0.1, "epochs": 2, "batch_size": 20}


def play(method: Method, rounds: int, engine: Any, start: State | None = None) -> State:
    experiment = Experiment.of(method, federation(), seed=1)
    state = experiment.start() if start is None else start
    for _ in range(rounds):
        state, _ = run_round(experiment, state, range(experiment.data.clients), engine)
    return state


def even_mixture(state: State, branches: int) -> Params:
    weights = torch.full((branches,), 1 / branches, dtype=torch.float64)
    layers = [mix(v, weights) for name, v in state.server.items() if name.startswith("layers.")]
    rest = {name: value[0] for name, value in state.server["rest"].items()}
    return {k: v for block in (*layers, rest) for k, v in block.items()}


def plain_model(rounds: int, engine: Any, **options: Any) -> Params:
    """FedAvg's model after some rounds."""
    server = play(FedAvg(conv_net(), **options), rounds, engine).server
    return {name: value[0] for name, value in server["model"].items()}


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
def test_branches_of_even_weights_are_fedavg_as_long_as_alpha_rests(engine: Any) -> None:
    method = PFedMB(conv_net(), branches=3, alpha_epochs=0, lr_scale="mixture", **USUAL)
    merged = even_mixture(play(method, 3, engine), 3)
    plain = plain_model(3, engine, **USUAL)
    for name, value in plain.items():
        torch.testing.assert_close(merged[name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("scale", "share"), [("mixture", 1.0), ("printed", 1 / 3)])
def test_a_first_step_moves_an_even_mixture_by_this_share_of_fedavgs(
    scale: Any, share: float
) -> None:
    once = {**USUAL, "epochs": 1}
    method = PFedMB(conv_net(), branches=3, alpha_epochs=0, lr_scale=scale, **once)
    before = even_mixture(play(method, 0, ENGINES[0]), 3)
    after = even_mixture(play(method, 1, ENGINES[0]), 3)
    plain = plain_model(1, ENGINES[0], **once)
    for name in ("0.weight", "4.bias"):
        expected = share * (plain[name] - before[name])
        torch.testing.assert_close(after[name] - before[name], expected, rtol=0, atol=1e-12)
        assert expected.abs().max() > 1e-3


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
def test_equal_components_are_fedavg(engine: Any) -> None:
    method = FedEM(conv_net(), components=4, lr_scale="mixture", **USUAL)
    first = plain_model(0, engine, **USUAL)
    start = play(method, 0, engine)
    equal = {name: torch.stack([value] * 4) for name, value in first.items()}
    start = replace(start, server={**start.server, "components": equal})
    components = play(method, 2, engine, start).server["components"]
    for name, value in plain_model(2, engine, **USUAL).items():
        torch.testing.assert_close(components[name][2], value, rtol=0, atol=1e-12)


def test_a_client_that_relies_on_one_part_steps_as_printed() -> None:
    assert steps_of_one_net(torch.tensor([0.0, 1.0, 0.0])) == 1


def test_a_scaled_gradient_leaves_the_value_alone() -> None:
    weight = torch.tensor([0.3, -2.0], dtype=torch.float64)

    def scaled_sum(w: Tensor) -> Tensor:
        return scale_gradient(w.square().sum(), torch.tensor(5.0, dtype=torch.float64))

    torch.testing.assert_close(scaled_sum(weight), weight.square().sum(), rtol=0, atol=0)
    slope = torch.func.grad(scaled_sum)(weight)
    torch.testing.assert_close(slope, 5 * 2 * weight, rtol=0, atol=1e-15)
