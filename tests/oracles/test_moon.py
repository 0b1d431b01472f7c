"""MOON against its algorithm box, and where it is FedAvg."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.optimizers import SGD
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.moon import Moon

from . import moon
from .harness import BATCH, COHORTS, ENGINES, FEATURES, agrees, mlp_net, play, task_of

COMMON: dict[str, Any] = {"net": mlp_net(), "lr": 0.2, "epochs": 2, "batch_size": BATCH}
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))


@each_engine
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_two_rounds_are_those_of_the_paper(momentum: float, engine: Any) -> None:
    method = Moon(
        **{**COMMON, "lr": 0.1}, strength=2.5, temperature=0.4, optimizer=SGD(momentum=momentum)
    )
    agrees(method, moon.run(task_of(method), 0.1, momentum, 2.5, 0.4), engine)


@each_engine
@pytest.mark.parametrize(("options", "cohorts"), [({"strength": 0.0}, COHORTS), ({}, COHORTS[:1])])
def test_without_strength_and_in_the_first_round_it_is_fedavg(
    options: Any, cohorts: Any, engine: Any
) -> None:
    """At first the previous model is the one that is sent, so that the contrast is log
    2 for any features.
    """
    _, actual = play(Moon(**COMMON, **options), engine, cohorts=cohorts)
    _, expected = play(FedAvg(**COMMON), engine, cohorts=cohorts)
    for key, value in expected.server["model"].items():
        torch.testing.assert_close(actual.server["model"][key], value, rtol=0, atol=1e-12)


def test_the_contrast_moves_the_model_from_the_second_round_on() -> None:
    (_, actual), (_, expected) = (play(m(**COMMON), ENGINES["sequential"]) for m in (Moon, FedAvg))
    gap = max(
        (actual.server["model"][k] - v).abs().max() for k, v in expected.server["model"].items()
    )
    assert gap > 1e-3


def test_statistics_move_once_in_a_step() -> None:
    """Logits and features come from one pass: with strength 0 the running statistics
    are FedAvg's.
    """
    layers = (nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
    net = Net.of(nn.Sequential(*layers), dtype=torch.float64)
    options = {**COMMON, "net": net, "batch_size": 7}  # no batch of a single example
    actual = [
        play(m, ENGINES["vectorised"])[1]
        for m in (Moon(**options, strength=0.0), FedAvg(**options))
    ]
    for key, value in actual[1].server["model"].items():
        torch.testing.assert_close(actual[0].server["model"][key], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "word"), [({"strength": -1.0}, "strength"), ({"temperature": 0.0}, "temperature")]
)
def test_values_out_of_range_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        Moon(mlp_net(), **options)


def test_strength_0_is_told_to_be_fedavg() -> None:
    assert Moon(mlp_net(), strength=0.0).degenerate() and not Moon(mlp_net()).degenerate()
