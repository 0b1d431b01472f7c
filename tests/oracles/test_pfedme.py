"""pFedMe and mean-regularised multi-task learning, which some tables call pFedMe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.optimizers import SGD
from fedblocks.engines.round import evaluate
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.local import Local
from fedblocks.methods.mean_reg_mtl import MeanRegMTL
from fedblocks.methods.pfedme import PFedMe

from . import mean_reg_mtl, pfedme
from .harness import BATCH, COHORTS, ENGINES, FEATURES, SIZES, agrees, apart, mlp_net, play, task_of
from .plain import Descent

COMMON: dict[str, Any] = {"net": mlp_net(), "epochs": 2, "batch_size": BATCH}
OWN: dict[str, Any] = {"lr": 0.05, "inner_lr": 0.07, "strength": 6.0, "inner_steps": 3}
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))


@each_engine
@pytest.mark.parametrize("local_rounds", [7, 0])
def test_two_rounds_of_pfedme_are_those_of_the_paper(local_rounds: int, engine: Any) -> None:
    decay = SGD(weight_decay=0.001)  # of the inner steps, as in the authors' code
    method = PFedMe(**COMMON, **OWN, local_rounds=local_rounds, beta=1.5, optimizer=decay)
    task = task_of(method)
    expected = pfedme.run(
        task, eta=0.05, inner_eta=0.07, strength=6.0, inner=3, beta=1.5, decay=0.001
    )
    agrees(method, expected, engine)


def test_a_local_round_is_one_batch_even_for_a_client_of_one_batch() -> None:
    method = PFedMe(**COMMON, **OWN, local_rounds=7)
    for cohort in task_of(method).rounds:
        assert all(len(batches) == (7 if SIZES[i] else 0) for i, (batches,) in cohort.items())


def test_one_inner_step_and_one_local_round_are_a_step_of_fedavg() -> None:
    """theta = w - eta_p g, so that w_i = w - eta lambda (w - theta) = w - (eta lambda eta_p) g."""
    engine, whole = ENGINES["sequential"], {**COMMON, "epochs": 1, "batch_size": max(SIZES)}
    rates = {"lr": 0.05, "strength": 6.0, "inner_lr": 0.07}
    _, actual = play(PFedMe(**whole, **rates, inner_steps=1, local_rounds=1), engine)
    _, expected = play(FedAvg(**whole, lr=0.05 * 6.0 * 0.07), engine)
    for key, value in expected.server["model"].items():
        torch.testing.assert_close(actual.server["shared"][key], value, rtol=0, atol=1e-12)


def test_without_a_pull_the_shared_model_stays_and_the_personal_one_is_plain_descent_from_it() -> (
    None
):
    """lambda = 0 and K = 1: theta_i is an epoch of SGD from the model that was sent."""
    engine, options = ENGINES["sequential"], {**COMMON, "epochs": 1}
    method = PFedMe(**options, strength=0.0, inner_lr=0.07, inner_steps=1, local_rounds=0)
    assert method.degenerate()
    experiment, actual = play(method, engine, cohorts=COHORTS[:1])
    _, local = play(Local(**options, lr=0.07), engine, cohorts=COHORTS[:1])
    for key, value in experiment.start().server["shared"].items():
        torch.testing.assert_close(actual.server["shared"][key], value, rtol=0, atol=1e-12)
    for client, blocks in local.private.items():
        for key, value in blocks["model"].items():
            torch.testing.assert_close(
                actual.private[client]["personal"][key], value, rtol=0, atol=1e-12
            )


def test_a_strong_pull_keeps_the_personal_model_near_the_shared_one() -> None:
    def gap(strength: float) -> float:
        rates = {"lr": 1e-300, "inner_lr": 0.5 / (1 + strength)}
        method = PFedMe(**COMMON, **rates, strength=strength, inner_steps=20, local_rounds=1)
        experiment, state = play(method, ENGINES["sequential"], cohorts=((0,),))
        start = experiment.start().server["shared"]
        return max(
            float((v - start[k][0]).abs().max()) for k, v in state.private[0]["personal"].items()
        )

    assert gap(100.0) < gap(10.0) / 5 < gap(1.0) / 10


def test_what_is_reported_as_personal_is_the_personal_model() -> None:
    """Public code reports the shared model by mistake; here both are told apart."""
    experiment, state = play(PFedMe(**COMMON, **OWN, local_rounds=4), ENGINES["vectorised"])
    actual = evaluate(experiment, state, [0, 1, 2], ENGINES["vectorised"])
    assert all(abs(actual["personal"][i][2] - actual["shared"][i][2]) > 1e-3 for i in (0, 1, 2))


def test_the_shared_model_has_the_running_statistics_of_the_personal_ones() -> None:
    layers = (nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
    options = {
        **COMMON,
        **OWN,
        "net": Net.of(nn.Sequential(*layers), dtype=torch.float64),
        "batch_size": 7,
    }
    for engine in ENGINES.values():
        _, state = play(PFedMe(**options, local_rounds=4), engine, cohorts=((0, 1),))
        own = [state.private[i]["personal"]["1.running_var"] for i in (0, 1)]
        mean = (SIZES[0] * own[0] + SIZES[1] * own[1]) / (SIZES[0] + SIZES[1])
        torch.testing.assert_close(
            state.server["shared"]["1.running_var"][0], mean, rtol=0, atol=1e-12
        )
        assert (mean - 1).abs().max() > 1e-3


def test_a_new_client_of_pfedme_only_solves_for_its_personal_model() -> None:
    """Its shared view is the server's model; its personal one is nearer to its data."""
    experiment, state = play(PFedMe(**COMMON, **OWN, local_rounds=4), ENGINES["vectorised"])
    kept = evaluate(experiment, state, [5], ENGINES["vectorised"])
    joined = evaluate(experiment, state, [5], ENGINES["vectorised"], joining=True)
    assert joined["shared"][5] == kept["shared"][5]
    trained = evaluate(experiment, state, [5], ENGINES["vectorised"], part="train", joining=True)
    assert trained["personal"][5][2] < trained["shared"][5][2]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"strength": -1.0}, "strength"),
        ({"inner_steps": 0}, "inner_steps"),
        ({"local_rounds": -1}, "local_rounds"),
        ({"beta": 0.0}, "beta"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        PFedMe(mlp_net(), **options)


@each_engine
def test_two_rounds_of_mean_regularisation_are_those_of_its_formula(engine: Any) -> None:
    method = MeanRegMTL(**COMMON, lr=0.1, strength=0.8)
    agrees(method, mean_reg_mtl.run(task_of(method), Descent(0.1, decay=5e-4), mu=0.8), engine)


def test_mean_regularisation_without_a_pull_is_local() -> None:
    method = MeanRegMTL(**COMMON, lr=0.1, strength=0.0)
    assert method.degenerate()
    _, actual = play(method, ENGINES["sequential"])
    _, expected = play(
        Local(**COMMON, lr=0.1, optimizer=SGD(weight_decay=5e-4)), ENGINES["sequential"]
    )
    only = {i: {"model": blocks["model"]} for i, blocks in actual.private.items()}
    assert apart(replace(actual, server={}, private=only), replace(expected, server={})) < 1e-12


def test_clients_of_mean_regularisation_never_load_the_mean() -> None:
    """A tiny pull leaves them where Local leaves them, although they are sent the mean
    in every round.
    """
    _, actual = play(MeanRegMTL(**COMMON, lr=0.1, strength=1e-9), ENGINES["sequential"])
    _, expected = play(
        Local(**COMMON, lr=0.1, optimizer=SGD(weight_decay=5e-4)), ENGINES["sequential"]
    )
    for client, blocks in expected.private.items():
        for key, value in blocks["model"].items():
            torch.testing.assert_close(
                actual.private[client]["model"][key], value, rtol=0, atol=1e-7
            )


def test_a_new_client_of_mean_regularisation_starts_from_the_mean() -> None:
    """With steps that no weight notices, its answers are those of the mean."""
    method = MeanRegMTL(**COMMON, lr=1e-300)
    experiment, state = play(replace(method, lr=0.1), ENGINES["sequential"])
    idle = replace(experiment, methods={"all": method})
    joined = evaluate(idle, state, [5], ENGINES["sequential"], joining=True)["personal"][5]
    mean = {k: v[0] for k, v in state.server["mean"].items()}
    x, y = (values[experiment.data.test[5]] for values in (experiment.data.x, experiment.data.y))
    logits = method.net(mean, x)
    assert joined[0] == float((logits.argmax(-1) == y).sum())
    assert joined[2] == pytest.approx(
        float(torch.nn.functional.cross_entropy(logits, y, reduction="sum"))
    )


def test_a_negative_pull_is_refused() -> None:
    with pytest.raises(UserError, match="strength"):
        MeanRegMTL(mlp_net(), strength=-1.0)
