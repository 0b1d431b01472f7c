"""FedALA against its algorithm box, and the mixing weights at their ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import UserError
from fedblocks.core.optimizers import SGD
from fedblocks.core.random import uniform
from fedblocks.methods.fedala import FedALA
from fedblocks.methods.fedavg import FedAvg

from . import definition, fedala
from .definition import client_key
from .harness import BATCH, COHORTS, ENGINES, SEED, SIZES, agrees, mlp_net, play, task_of
from .plain import Descent

COMMON: dict[str, Any] = {"net": mlp_net(), "lr": 0.1, "epochs": 2, "batch_size": BATCH}
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))


def drawn(share: float) -> fedala.Drawn:
    """The examples that are drawn: a number for each from the client's key of the round."""
    purposes = ["train"] * len(COHORTS) + ["adapt"]
    places = [(SEED, t, i, p) for t, p in enumerate(purposes) for i in range(len(SIZES))]
    numbers = {place: definition.uniform(client_key(place), SIZES[place[2]]) for place in places}
    return {(t, i): own < share for (_, t, i, _), own in numbers.items()}


@each_engine
@pytest.mark.parametrize(("top", "share"), [(1, 1.0), (1, 0.6), (2, 0.6), (3, 0.8)])
def test_two_rounds_are_those_of_the_paper(top: int, share: float, engine: Any) -> None:
    sgd = SGD(momentum=0.5, weight_decay=0.01)
    method = FedALA(**COMMON, optimizer=sgd, top=top, mixing_lr=30.0, mixing_epochs=2, share=share)
    expected = fedala.run(task_of(method), Descent(0.1, 0.5, decay=0.01), top, 30.0, drawn(share))
    agrees(method, expected, engine)


def test_mixing_weights_differ_between_elements_and_stay_between_0_and_1() -> None:
    _, state = play(FedALA(**COMMON, mixing_lr=300.0), ENGINES["vectorised"], cohorts=COHORTS * 2)
    mixing = state.private[1]["mixing"]["4.weight"]
    assert mixing.min() == 0 and mixing.max() == 1 and len(mixing.unique()) > 4


@each_engine
@pytest.mark.parametrize(
    ("options", "cohorts"),
    [({"mixing_lr": 0.0}, COHORTS), ({"mixing_epochs": 0}, COHORTS), ({}, COHORTS[:1])],
)
def test_without_learnt_weights_and_in_the_first_round_it_is_fedavg(
    options: Any, cohorts: Any, engine: Any
) -> None:
    """Weights of 1 overwrite the local model; at first the local and the shared model are one."""
    # so that the second phase sees FedAvg's batches
    whole = {**COMMON, "epochs": 1, "batch_size": max(SIZES)}
    _, actual = play(FedALA(**whole, **options), engine, cohorts=cohorts)
    _, expected = play(FedAvg(**whole), engine, cohorts=cohorts)
    for key, value in expected.server["model"].items():
        torch.testing.assert_close(actual.server["model"][key], value, rtol=0, atol=1e-12)


def test_lower_layers_are_overwritten() -> None:
    method = FedALA(**COMMON, top=2)
    assert method.mixed.names == ("2.weight", "2.bias", "4.weight", "4.bias")
    shared, local = (
        {k: torch.full_like(v, c) for k, v in method.net.init(0).items()} for c in (1.0, 0.0)
    )
    mixing = {k: torch.full_like(shared[k], 0.25) for k in method.mixed.names}
    actual = method.mixture({"model": shared, "local": local, "mixing": mixing})
    assert {k: float(v.unique()) for k, v in actual.items()} == {
        k: 0.25 if k in method.mixed.names else 1.0 for k in shared
    }


def test_about_the_given_share_of_examples_is_drawn() -> None:
    """Of 10000 numbers, 0.6 +- 4 standard deviations of sqrt(0.24 / 10000)."""
    share = np.mean((uniform(torch.tensor(5), (10_000,)) < 0.6).numpy())
    assert abs(share - 0.6) < 4 * (0.24 / 10_000) ** 0.5


@pytest.mark.parametrize("options", [{"top": 0}, {"top": 4}, {"share": 0.0}, {"share": 1.5}])
def test_values_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        FedALA(mlp_net(), **options)


def test_still_mixing_weights_are_told_to_be_fedavg() -> None:
    method = FedALA(mlp_net())
    assert not method.degenerate() and replace(method, mixing_lr=0.0).degenerate()
