"""Schedules: over a number of rounds, or over the run's own rounds, whatever their number."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from fedblocks.config.model import Config
from fedblocks.config.presets import read_config
from fedblocks.core.errors import UserError
from fedblocks.core.schedules import Cosine, Exponential, Ramp, at
from fedblocks.engines.round import Experiment
from fedblocks.methods.fedavg import FedAvg
from fedblocks.recipes.running.longer import lengthen
from fedblocks.runs.build import prepare
from fedblocks.runs.run import run
from fedblocks.testing.federations import small_federation, small_net

HALF = Ramp(1.0, 0.0, 0.5)


def test_a_line_falls_by_the_same_amount_each_round_and_then_stays() -> None:
    assert [at(Ramp(1.0, 0.2, 4), t) for t in (0, 1, 2, 4, 9)] == pytest.approx(
        [1.0, 0.8, 0.6, 0.2, 0.2]
    )


def test_a_fraction_is_of_the_runs_own_rounds() -> None:
    """Half of 8 rounds is 4 rounds: 1, 3/4, 1/2, 1/4, 0."""
    short, long = HALF.over(8), HALF.over(80)
    assert [at(short, t) for t in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert [at(long, 10 * t) for t in range(6)] == [at(short, t) for t in range(6)]
    assert at(Exponential(1.0, 0.01).over(10), 5) == pytest.approx(0.1)


def test_a_whole_number_of_rounds_stays_whatever_the_run() -> None:
    fixed = Exponential(1.0, 0.1, 150)
    assert fixed.over(20) is fixed
    assert not fixed.is_open and HALF.is_open


def test_a_cosine_rises_in_its_warm_up_and_falls_to_the_end() -> None:
    """Warm-up of 3 rounds: 1/4, 1/2, 3/4 of the start; then (1 + cos(pi s)) / 2 of the way."""
    rate = Cosine(0.8, 0.2, 7, warmup=3)
    rise = [0.2, 0.4, 0.6]
    fall = [0.2 + 0.6 * (1 + math.cos(math.pi * s / 4)) / 2 for s in range(5)]
    assert [at(rate, t) for t in range(9)] == pytest.approx([*rise, *fall, 0.2])
    assert rate(torch.arange(9.0)).tolist() == pytest.approx([at(rate, t) for t in range(9)])
    assert at(Cosine(1.0).over(10), 5) == pytest.approx(0.5)


def test_a_warm_up_as_long_as_the_schedule_is_refused() -> None:
    with pytest.raises(UserError, match="leaves no round to fall in"):
        Cosine(0.1, 0.0, 5, warmup=5)
    assert FedAvg(small_net(), lr=Cosine(0.1, 0.01, 5, warmup=2))


def test_a_warm_up_in_rounds_goes_with_a_fall_over_the_rest_of_the_run() -> None:
    method = FedAvg(small_net(), lr=Cosine(0.8, warmup=3))
    assert at(method.over(7).lr, 2) == pytest.approx(0.6) and at(method.over(7).lr, 7) == 0
    with pytest.raises(UserError, match="leaves no round to fall in"):
        method.over(3)
    cosine = 'method.lr={name = "cosine", start = 0.1, end = 0.001, warmup = 5}'
    assert read_config("digits-fedavg", [cosine, "rounds=9"]).method.table["lr"]["warmup"] == 5


def test_the_round_of_a_captured_graph_may_be_a_tensor() -> None:
    rounds = torch.tensor([0.0, 2.0, 7.0])
    assert HALF.over(8)(rounds).tolist() == [1.0, 0.5, 0.0]


def test_even_the_shortest_run_has_a_round_for_it() -> None:
    assert HALF.over(1).rounds == 1


def test_more_than_the_whole_run_is_refused() -> None:
    with pytest.raises(UserError, match="more than the whole run"):
        Ramp(1.0, 0.0, 1.5)


def test_limits_hold_for_the_values_of_a_schedule_without_a_run() -> None:
    with pytest.raises(UserError, match=r"FedAvg.lr = .* must be above 0 in every round"):
        FedAvg(small_net(), lr=Ramp(0.1, 0.0))


def test_a_method_over_some_rounds_has_no_open_schedules() -> None:
    method = FedAvg(small_net(), lr=Exponential(0.4, 0.1, 0.5))
    assert list(method.open_schedules) == ["lr"]
    bound = method.over(20)
    assert bound.lr == Exponential(0.4, 0.1, 10) and bound.open_schedules == {}
    assert bound.over(30) is bound


def test_an_experiment_that_does_not_know_its_rounds_is_refused() -> None:
    method = FedAvg(small_net(), lr=Exponential(0.4, 0.1))
    with pytest.raises(UserError, match=r"FedAvg\.lr goes over the rounds of the run"):
        Experiment.of(method, small_federation())
    known = Experiment.of(method, small_federation(), rounds=7).methods["all"]
    assert known.lr == Exponential(0.4, 0.1, 7)


def config(rounds: int) -> Config:
    schedule = {"name": "exponential", "start": 0.4, "end": 0.1}
    return Config.of(
        {
            "rounds": rounds,
            "data": {"name": "digits", "clients": 3, "partition": {"name": "iid"}},
            "net": {"name": "mlp", "hidden": [4]},
            "method": {"name": "fedavg", "lr": schedule},
            "checkpoint": {"every": 1},
        }
    )


def test_a_run_tells_its_schedules_how_many_rounds_it_has() -> None:
    (method,) = prepare(config(6)).experiment.methods.values()
    assert method.lr == Exponential(0.4, 0.1, 6)
    assert config(6).resolved()["method"]["lr"]["rounds"] == 1.0


def test_a_run_whose_schedule_ends_with_it_does_not_begin_a_longer_one(tmp_path: Path) -> None:
    run(config(1), tmp_path / "short")
    lengthen(tmp_path / "short", tmp_path / "long", config(2))
    assert not (tmp_path / "long").exists()
