"""APFL against its algorithm box, and its two ends: FedAvg and Local."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.engines.round import evaluate
from fedblocks.methods.apfl import APFL
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.local import Local

from . import apfl
from .harness import BATCH, COHORTS, ENGINES, FEATURES, SIZES, agrees, mlp_net, play, task_of
from .plain import slope

COMMON: dict[str, Any] = {"net": mlp_net(), "lr": 0.2, "epochs": 2, "batch_size": BATCH}
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))


@each_engine
@pytest.mark.parametrize("adapt", ["never", "step", "round"])
def test_two_rounds_are_those_of_the_paper(adapt: str, engine: Any) -> None:
    method = APFL(**COMMON, alpha=0.3, adapt_alpha=adapt, alpha_lr=0.6, alpha_decay=0.02)
    expected = apfl.run(task_of(method), lr=0.2, alpha=0.3, adapt=adapt, alpha_lr=0.6, decay=0.02)
    agrees(method, expected, engine)


@pytest.mark.parametrize("adapt", ["step", "round"])
def test_alpha_really_adapts_and_differs_between_clients(adapt: str) -> None:
    _, state = play(APFL(**COMMON, adapt_alpha=adapt), ENGINES["sequential"])
    # in the first round v is still w
    shares = [float(state.private[i]["alpha"]["value"]) for i in (1, 3)]
    assert len({*shares, 0.5}) == 3


def test_alpha_stays_between_0_and_1_whatever_its_learning_rate() -> None:
    _, state = play(
        APFL(**COMMON, adapt_alpha="step", alpha_lr=1e3), ENGINES["vectorised"], cohorts=COHORTS * 2
    )
    shares = [float(blocks["alpha"]["value"]) for blocks in state.private.values()]
    assert all(0 <= share <= 1 for share in shares) and {0.0, 1.0} & set(shares)


@each_engine
def test_with_alpha_0_it_is_fedavg(engine: Any) -> None:
    method = APFL(**COMMON, alpha=0.0)
    assert method.degenerate()
    (experiment, actual), (plain, expected) = play(method, engine), play(FedAvg(**COMMON), engine)
    for key, value in expected.server["model"].items():
        torch.testing.assert_close(actual.server["shared"][key], value, rtol=0, atol=1e-12)
    views = evaluate(experiment, actual, range(len(SIZES)), engine)
    theirs = evaluate(plain, expected, range(len(SIZES)), engine)["personal"]
    for view in ("personal", "shared"):
        assert views[view] == {i: pytest.approx(counts, abs=1e-10) for i, counts in theirs.items()}


@each_engine
def test_with_alpha_1_it_is_local(engine: Any) -> None:
    method = APFL(**COMMON, alpha=1.0)
    assert method.degenerate()
    (experiment, actual), (alone, expected) = play(method, engine), play(Local(**COMMON), engine)
    for client, blocks in expected.private.items():
        for key, value in blocks["model"].items():
            torch.testing.assert_close(
                actual.private[client]["personal"][key], value, rtol=0, atol=1e-12
            )
    ours = evaluate(experiment, actual, range(len(SIZES)), engine)["personal"]
    theirs = evaluate(alone, expected, range(len(SIZES)), engine)["personal"]
    assert ours == {i: pytest.approx(counts, abs=1e-10) for i, counts in theirs.items()}


def test_the_personal_gradient_is_alpha_times_that_of_the_mixture() -> None:
    """One step on one client from two different models: v moves by -lr alpha grad
    f(alpha v + (1 - alpha) w).
    """
    method = APFL(**{**COMMON, "epochs": 1, "batch_size": max(SIZES)}, alpha=0.25)
    _, once = play(method, ENGINES["sequential"], cohorts=((0,),))
    _, twice = play(method, ENGINES["sequential"], cohorts=((0,), (0,)))
    x, y = task_of(method).train[0]
    v, w = (
        {k: p.numpy() for k, p in m.items()}
        for m in (once.private[0]["personal"], _first(twice.server["shared"]))
    )
    # w after its step of the second round: one client, so the average
    g = slope(apfl.mixture(0.25, v, w), x, y)
    for key, value in twice.private[0]["personal"].items():
        np.testing.assert_allclose(value.numpy(), v[key] - 0.2 * 0.25 * g[key], rtol=0, atol=1e-12)


def test_mixed_outputs_follow_their_own_gradient() -> None:
    method = APFL(**{**COMMON, "epochs": 1, "batch_size": max(SIZES)}, alpha=0.25, mixing="outputs")
    _, once = play(method, ENGINES["sequential"], cohorts=((3,),))
    _, twice = play(method, ENGINES["sequential"], cohorts=((3,), (3,)))
    x, y = task_of(method).train[3]
    v, w = (
        {k: p.numpy() for k, p in m.items()}
        for m in (once.private[3]["personal"], _first(twice.server["shared"]))
    )
    g = apfl.output_mixing_slope(0.25, v, w, x, y)
    for key, value in twice.private[3]["personal"].items():
        np.testing.assert_allclose(value.numpy(), v[key] - 0.2 * g[key], rtol=0, atol=1e-8)


def test_for_a_linear_model_both_mixings_are_one() -> None:
    linear = Net.of(lambda: nn.Linear(FEATURES, 4), dtype=torch.float64)
    actual = [
        play(
            APFL(**{**COMMON, "net": linear}, mixing=mixing, adapt_alpha="step"),
            ENGINES["sequential"],
        )[1]
        for mixing in ("parameters", "outputs")
    ]
    for client, blocks in actual[0].private.items():
        for name, block in blocks.items():
            for key, value in block.items():
                torch.testing.assert_close(
                    actual[1].private[client][name][key], value, rtol=0, atol=1e-12
                )


def test_the_mixture_keeps_running_statistics_of_its_own() -> None:
    """They move with the mixture's activations, and an evaluation uses them."""
    normed = Net.of(
        lambda: nn.Sequential(
            nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4)
        ),
        dtype=torch.float64,
    )
    options = {**COMMON, "net": normed, "batch_size": 7}  # no batch of a single example
    actual = [play(APFL(**options), engine)[1] for engine in ENGINES.values()]
    own = actual[0].private[0]["personal"]["1.running_mean"]
    assert own.abs().max() > 0.01
    assert (own - actual[0].server["shared"]["1.running_mean"][0]).abs().max() > 1e-3
    torch.testing.assert_close(
        own, actual[1].private[0]["personal"]["1.running_mean"], rtol=0, atol=1e-10
    )


def test_a_new_client_trains_its_personal_model_and_alpha_only() -> None:
    method = APFL(**COMMON, adapt_alpha="step")
    experiment, state = play(method, ENGINES["vectorised"])
    kept = evaluate(experiment, state, [5], ENGINES["vectorised"], part="train")
    joined = evaluate(experiment, state, [5], ENGINES["vectorised"], part="train", joining=True)
    assert joined["shared"] == kept["shared"]
    assert joined["personal"][5][2] < kept["personal"][5][2]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"alpha": 1.5}, "alpha"),
        ({"adapt_alpha": "always"}, "adapt_alpha"),
        ({"mixing": "losses"}, "mixing"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        APFL(mlp_net(), **options)


def test_an_end_of_alpha_that_adapts_is_not_degenerate() -> None:
    method = APFL(mlp_net(), alpha=1.0, adapt_alpha="step")
    assert not method.degenerate() and replace(method, adapt_alpha="never").degenerate()


def _first(slots: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {k: v[0] for k, v in slots.items()}
