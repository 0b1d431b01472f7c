"""BatchNorm's running statistics are averaged, kept by each client, or refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.fedala import FedALA
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedem import FedEM
from fedblocks.methods.mean_reg_mtl import MeanRegMTL
from fedblocks.methods.scaffold import Scaffold

ENGINES = pytest.mark.parametrize(
    "engine", [Sequential(), Vectorised(chunk=2)], ids=lambda e: e.name
)


def net() -> Net:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)
        )

    return Net.of(make, dtype=torch.float64)


def experiment(images, statistics: str) -> Experiment:
    return Experiment.of(FedAvg(net(), batch_size=4, statistics=statistics), images, seed=1)


@ENGINES
def test_statistics_are_averaged_like_parameters_by_default(images, engine):
    one = experiment(images, "average")
    state, _ = run_round(one, one.start(), range(4), engine)
    alone = [
        run_round(one, one.start(), [c], engine)[0].server["model"]["1.running_mean"]
        for c in range(4)
    ]
    expected = sum(n * a for n, a in zip((9, 4, 7, 5), alone, strict=True)) / 25
    assert torch.allclose(state.server["model"]["1.running_mean"], expected, atol=1e-12)
    assert not torch.allclose(expected, torch.zeros_like(expected))


@ENGINES
def test_local_statistics_stay_on_the_client_and_are_not_sent(images, engine):
    kept, averaged = experiment(images, "local"), experiment(images, "average")
    state, report = run_round(kept, kept.start(), range(4), engine)
    _, full = run_round(averaged, averaged.start(), range(4), engine)
    means = [state.private[c]["model/statistics"]["1.running_mean"] for c in range(4)]
    assert not torch.allclose(means[0], means[1])
    assert torch.equal(
        state.server["model"]["1.running_mean"], torch.zeros(1, 2, dtype=torch.float64)
    )
    saved = 2 * 2 * 8  # mean and variance of two channels, as doubles
    assert full.bytes_up["model"][0] - report.bytes_up["model"][0] == saved
    assert full.bytes_down["model"][0] - report.bytes_down["model"][0] == saved
    again, _ = run_round(kept, state, [0], engine)
    assert torch.equal(again.private[1]["model/statistics"]["1.running_mean"], means[1])
    assert not torch.equal(again.private[0]["model/statistics"]["1.running_mean"], means[0])


@ENGINES
def test_a_client_keeps_the_statistics_of_every_slot_of_a_pool(images, engine):
    method = FedEM(net(), components=2, batch_size=4, statistics="local")
    one = Experiment.of(method, images, seed=1)
    state, _ = run_round(one, one.start(), range(4), engine)
    name = "1.running_mean"
    means = [state.private[c]["components/statistics"][name] for c in range(4)]
    assert all(mean.shape == (2, 2) and mean.all() for mean in means)  # [slots, channels]
    assert not torch.allclose(means[0], means[1])
    assert not state.server["components"][name].any()  # nothing was sent
    again, _ = run_round(one, state, [0], engine)
    assert torch.equal(again.private[1]["components/statistics"][name], means[1])
    assert not torch.equal(again.private[0]["components/statistics"][name], means[0])


def test_statistics_can_be_refused(images):
    with pytest.raises(UserError, match=r"running statistics \(1\)"):
        experiment(images, "refuse").start()
    with pytest.raises(
        UserError, match='statistics = "frist": must be "average" or "local" or "refuse"'
    ):
        experiment(images, "frist")


@ENGINES
@pytest.mark.parametrize("kind", [MeanRegMTL, FedALA, Scaffold])
def test_blocks_that_clients_upload_from_others_have_local_statistics_too(images, engine, kind):
    """Of what is uploaded in their place; a block without statistics has none."""
    method = kind(net(), batch_size=4, statistics="local")
    one = Experiment.of(method, images, seed=1)
    state, other = one.start(), one.start()
    for _ in range(2):
        state, _ = run_round(one, state, range(4), engine)
        other, _ = run_round(one, other, range(4), Sequential())
    for client in range(4):
        mine, theirs = state.private[client], other.private[client]
        assert mine.keys() == theirs.keys()
        for name, block in mine.items():
            for k, value in block.items():
                assert torch.allclose(value, theirs[name][k], rtol=0, atol=1e-10), (name, k)
    shared = {MeanRegMTL: "mean", FedALA: "model", Scaffold: "model"}[kind]
    kept = [state.private[c][f"{shared}/statistics"]["1.running_mean"] for c in range(4)]
    assert not torch.allclose(kept[0], kept[1])
    own = {MeanRegMTL: "model", FedALA: "local"}.get(kind)
    if own:
        assert torch.equal(kept[0], state.private[0][own]["1.running_mean"])
    assert "control/statistics" not in state.private[0]
    assert not state.server[shared]["1.running_mean"].any()  # as at the start
    assert evaluate(one, state, range(4), engine)["personal"].keys() == {0, 1, 2, 3}
