"""What a run with adapters warns of: options that are allowed, and hardly meant."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fedblocks as fb
from fedblocks.engines.round import Experiment, run_round
from fedblocks.testing.adapters import adapted_net

NET = adapted_net()  # of rank 2 and alpha 4
SHARED: dict[str, Any] = {"head": "shared"}
QUIET = [
    fb.FedAvgLoRA(NET, **SHARED),
    fb.FedAvgLoRA(NET, ranks=(1, 2), **SHARED),
    fb.ProductLoRA(NET, **SHARED),
    fb.ProductLoRA(NET, keep="residual", keep_optimizer=True, **SHARED),
    fb.DualLoRA(NET, order="final", **SHARED),
    fb.DualLoRA(NET, head="private"),
]


@pytest.mark.parametrize("method", QUIET, ids=lambda m: type(m).__name__)
def test_usual_options_have_no_remark(method: fb.Method) -> None:
    assert method.remarks({}) == []


def test_ranks_that_are_all_below_the_nets_are_remarked_on() -> None:
    for kind in (fb.FedAvgLoRA, fb.ProductLoRA):
        (said,) = kind(NET, ranks=(1, 1), **SHARED).remarks({})
        assert said.startswith("ranks = [1, 1] are all below the net's rank 2")
        assert said.endswith("make the net with rank=1 and alpha=4")


@pytest.mark.parametrize("keep", ["svd", "stack"])
def test_moments_of_factors_that_are_made_anew_are_remarked_on(keep: str) -> None:
    (said,) = fb.ProductLoRA(NET, keep=keep, keep_optimizer=True, **SHARED).remarks({})
    assert said.startswith(f'keep_optimizer with keep = "{keep}": the server makes new factors')


def test_heads_that_no_round_trains_are_remarked_on() -> None:
    (said,) = fb.DualLoRA(NET, order="final", head="private").remarks({})
    assert said.startswith('order = "final" trains heads')


def test_the_others_of_fedalt_are_those_who_have_trained() -> None:
    """Clients 0 and 1 train; then 2 reads the mean of the two, 0 reads 1's, and nobody reads the
    start of clients 3, 4 and 5.
    """
    method = fb.DualLoRA(NET, other="rest", head="private", lr=0.2, batch_size=4, epochs=2)
    experiment = Experiment.of(method, fb.small_federation())
    start = experiment.start()
    cohort = experiment.cohort(range(6), 0)
    first = method.reads(start.server, cohort)["lora.A"].weights
    assert not first.any()
    state, _ = run_round(experiment, start, [0, 1], fb.Vectorised())
    weights = method.reads(state.server, cohort)["lora.B"].weights
    expected = torch.zeros(6, 6, dtype=torch.double)
    expected[0, 1] = expected[1, 0] = 1.0
    expected[2:, :2] = 0.5
    assert torch.equal(weights, expected)
