"""pFedHN against its algorithm box: the hypernetwork's steps, and the models that it makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.methods.pfedhn import PFedHN, generate

from . import pfedhn
from .harness import (
    BATCH,
    COHORTS,
    ENGINES,
    FEATURES,
    SEED,
    SIZES,
    counts,
    federation,
    mlp_net,
    play,
    task_of,
)
from .plain import Descent

COMMON: dict[str, Any] = {
    "net": mlp_net(),
    "lr": 0.2,
    "epochs": 2,
    "batch_size": BATCH,
    "hidden": 9,
}
EMPTY = SIZES.index(0)  # a client without data
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))


@each_engine
@pytest.mark.parametrize("clip", [50.0, 0.01])
def test_two_rounds_are_those_of_the_paper(clip: float, engine: Any) -> None:
    method = PFedHN(
        **COMMON, embedding=3, hidden_layers=2, server_lr=0.1, server_decay=0.01, clip=clip
    )
    experiment, state = play(method, engine)
    start = {k: v.numpy() for k, v in experiment.start().server["hypernetwork"].items()}
    phi, outcome = pfedhn.run(task_of(method), Descent(0.2), start, 0.1, 0.9, 0.01, clip)
    actual = state.server["hypernetwork"]
    assert actual.keys() == phi.keys() and actual["embeddings"].shape == (len(SIZES), 3)
    for key, value in phi.items():
        torch.testing.assert_close(actual[key], value, rtol=0, atol=1e-10)
    scores = evaluate(experiment, state, range(len(SIZES)), engine)["personal"]
    for client, z in outcome.logits["personal"].items():
        right, scored, loss = counts(z, experiment.data.y.numpy()[experiment.data.test[client]])
        assert scores[client] == pytest.approx((right, scored, loss), abs=1e-8)


def test_the_smaller_clip_is_really_active() -> None:
    """Otherwise both cases above would be one."""
    options = {**COMMON, "embedding": 3, "hidden_layers": 2, "server_lr": 0.1}
    actual = [play(PFedHN(**options, clip=clip), ENGINES["vectorised"])[1] for clip in (50.0, 0.01)]
    first, second = (state.server["hypernetwork"]["embeddings"] for state in actual)
    assert (first - second).abs().max() > 1e-4


def test_a_model_nobody_changes_teaches_nothing() -> None:
    """A local learning rate that no weight notices, and no decay: the hypernetwork
    stays as it is.
    """
    experiment, state = play(
        PFedHN(**{**COMMON, "lr": 1e-300}, server_decay=0.0), ENGINES["vectorised"]
    )
    start = experiment.start()
    assert all(
        torch.equal(v, start.server["hypernetwork"][k])
        for k, v in state.server["hypernetwork"].items()
    )


@each_engine
def test_a_round_in_which_nobody_has_data_moves_nothing_not_even_by_momentum_and_decay(
    engine: Any,
) -> None:
    experiment, before = play(PFedHN(**COMMON, server_momentum=0.9, server_decay=0.1), engine)
    assert SIZES[EMPTY] == 0 and any(v.abs().max() > 0 for v in before.server["velocity"].values())
    after, _ = run_round(experiment, before, [EMPTY], engine)
    for name in ("hypernetwork", "velocity"):
        assert all(torch.equal(after.server[name][k], v) for k, v in before.server[name].items())


def test_a_small_step_moves_what_is_made_towards_what_was_trained() -> None:
    method = PFedHN(**COMMON, server_lr=1e-4, server_momentum=0.0, server_decay=0.0)
    experiment = Experiment.of(method, federation(), SEED)
    before = experiment.start()
    after, _ = run_round(experiment, before, [0], ENGINES["sequential"])
    old, new = (generate(s.server["hypernetwork"], torch.tensor([0]))[0] for s in (before, after))
    # one client: the mean is its model
    trained = torch.cat([v[0].flatten() for v in after.server["model"].values()])
    assert (new - trained).norm() < (old - trained).norm()


def test_the_embedding_is_a_quarter_of_the_clients_and_one() -> None:
    """1 + 6 // 4 = 2."""
    state = Experiment.of(PFedHN(**COMMON), federation(), SEED).start()
    assert state.server["hypernetwork"]["embeddings"].shape == (6, 2)
    assert state.server["hypernetwork"]["0.weight"].shape == (9, 2)


def test_clients_that_never_took_part_share_what_the_others_taught() -> None:
    experiment, state = play(PFedHN(**COMMON, server_lr=0.1), ENGINES["vectorised"])
    absent = torch.tensor([5])
    before, after = (
        generate(s.server["hypernetwork"], absent) for s in (experiment.start(), state)
    )
    assert (before - after).abs().max() > 1e-3


def test_only_the_made_model_travels() -> None:
    experiment = Experiment.of(PFedHN(**COMMON), federation(), SEED)
    _, report = run_round(experiment, experiment.start(), [0], ENGINES["vectorised"])
    assert report.bytes_down == {"model": {0: 8 * experiment.methods["all"].net.size()}}


@pytest.mark.parametrize("statistics", ["average", "local"])
def test_running_statistics_are_not_made_but_measured(statistics: str) -> None:
    layers = (nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
    net = Net.of(nn.Sequential(*layers), dtype=torch.float64)
    method = PFedHN(**{**COMMON, "net": net, "batch_size": 7}, statistics=statistics)
    actual = [play(method, engine)[1] for engine in ENGINES.values()]
    for state in actual:
        held = (
            state.server["statistics"]
            if statistics == "average"
            else state.private[0]["statistics"]
        )
        assert (held["1.running_var"] > 0).all() and held["1.running_mean"].abs().max() > 0.01
    for key, value in actual[0].server["hypernetwork"].items():
        torch.testing.assert_close(actual[1].server["hypernetwork"][key], value, rtol=0, atol=1e-10)


def test_local_steps_take_the_place_of_epochs() -> None:
    (phase,) = PFedHN(**COMMON, local_steps=50).phases()
    assert phase.steps == 50


@pytest.mark.parametrize(
    "options",
    [{"embedding": 0}, {"hidden": 0}, {"hidden_layers": 0}, {"server_lr": 0.0}, {"clip": 0.0}],
)
def test_values_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        PFedHN(mlp_net(), **options)


def test_the_task_has_an_empty_client() -> None:
    assert any(SIZES[i] == 0 for i in COHORTS[0]) and np.count_nonzero(SIZES) == 5
