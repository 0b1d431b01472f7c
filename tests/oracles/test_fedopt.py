"""FedYogi, FedAdam and FedAdagrad against algorithm 2 of their paper."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedblocks.core.errors import UserError
from fedblocks.core.optimizers import SGD
from fedblocks.methods import METHODS
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedopt import FedAdagrad, FedAdam, FedYogi

from . import fedopt
from .harness import BATCH, COHORTS, ENGINES, agrees, mlp_net, play, task_of
from .plain import Descent

COMMON: dict[str, Any] = {"net": mlp_net(), "lr": 0.2, "epochs": 2, "batch_size": BATCH}
# tau among the changes, so that v meets changes on both sides of it
CASES: dict[str, dict[str, float]] = {
    "fedyogi": {"server_lr": 0.03, "beta1": 0.8, "beta2": 0.7, "tau": 0.02},
    "fedadam": {"server_lr": 0.03, "beta1": 0.8, "beta2": 0.7, "tau": 0.02},
    "fedadagrad": {"server_lr": 0.05, "beta1": 0.3, "tau": 0.02},
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CASES)
def test_two_rounds_are_those_of_the_paper(name: str, engine: str) -> None:
    method = METHODS[name](**COMMON, optimizer=SGD(momentum=0.9, weight_decay=0.05), **CASES[name])
    own = {
        "eta": CASES[name]["server_lr"],
        **{k: v for k, v in CASES[name].items() if k != "server_lr"},
    }
    descent = Descent(0.2, momentum=0.9, decay=0.05)
    agrees(
        method,
        fedopt.run(task_of(method), descent, kind=name.removeprefix("fed"), **own),
        ENGINES[engine],
    )


def test_the_defaults_are_those_of_the_paper() -> None:
    yogi, adam, adagrad = (kind(mlp_net()).rule() for kind in (FedYogi, FedAdam, FedAdagrad))
    assert (
        (yogi.beta1, yogi.beta2, yogi.tau)
        == (adam.beta1, adam.beta2, adam.tau)
        == (0.9, 0.99, 1e-3)
    )
    assert (adagrad.beta1, adagrad.tau) == (0.0, 1e-3)


@pytest.mark.parametrize("name", CASES)
def test_the_first_step_goes_where_the_average_goes(name: str) -> None:
    engine = ENGINES["sequential"]
    _, plain = play(FedAvg(**COMMON), engine, cohorts=COHORTS[:1])
    experiment, state = play(METHODS[name](**COMMON), engine, cohorts=COHORTS[:1])
    start = experiment.start().server["model"]
    for key, value in state.server["model"].items():
        change = plain.server["model"][key] - start[key]
        assert torch.equal((value - start[key]).sign(), change.sign())
        assert change.abs().max() > 0


@pytest.mark.parametrize("name", CASES)
def test_with_a_large_tau_it_is_fedavg(name: str) -> None:
    """sqrt(v) + tau is then 2 tau in all rounds, so that server_lr = 2 tau takes the
    whole average change.
    """
    engine, tau = ENGINES["sequential"], 1e5
    # a second moment that stays at tau squared
    slow = {"beta2": 1 - 1e-13} if "beta2" in CASES[name] else {}
    _, plain = play(FedAvg(**COMMON), engine)
    _, state = play(METHODS[name](**COMMON, server_lr=2 * tau, beta1=0.0, tau=tau, **slow), engine)
    for key, value in state.server["model"].items():
        torch.testing.assert_close(value, plain.server["model"][key], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_the_moments_have_a_row_for_each_slot_and_start_at_zero_and_tau_squared(name: str) -> None:
    _, state = play(METHODS[name](**COMMON, tau=0.02), ENGINES["sequential"], cohorts=())
    assert state.memory["model"].keys() == {"first", "second"}
    for key, value in state.server["model"].items():
        first, second = state.memory["model"]["first"][key], state.memory["model"]["second"][key]
        assert first.shape == second.shape == value.shape == (1, *value.shape[1:])
        assert first.abs().max() == 0 and torch.equal(second, torch.full_like(second, 0.02**2))


def test_a_round_of_empty_clients_leaves_the_model_and_its_moments() -> None:
    """Momentum alone must not move a model that nobody wrote."""
    method = FedAdam(**COMMON)
    _, state = play(method, ENGINES["sequential"], cohorts=((0, 1),))
    _, after = play(method, ENGINES["sequential"], cohorts=((0, 1), (4,)))
    for key, value in state.server["model"].items():
        assert torch.equal(after.server["model"][key], value)
        assert torch.equal(after.memory["model"]["first"][key], state.memory["model"]["first"][key])


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"server_lr": -1.0}, "server_lr"),
        ({"beta1": 1.0}, "beta1"),
        ({"beta2": -0.1}, "beta2"),
        ({"tau": 0.0}, "tau"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, float], word: str) -> None:
    with pytest.raises(UserError, match=word):
        FedYogi(mlp_net(), **options)


def test_a_server_that_takes_no_steps_says_so() -> None:
    assert FedAdam(mlp_net(), server_lr=0.0).degenerate() and not FedAdam(mlp_net()).degenerate()
