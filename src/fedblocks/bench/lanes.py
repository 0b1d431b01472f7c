"""J9: three seeds and four learning rates of J1 with a cohort of 10, as lanes of one
run and one lane alone.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, replace

import torch

from fedblocks.bench.jobs import J1
from fedblocks.bench.materials import materials
from fedblocks.bench.measure import Round, take_turns
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.vectorised import Vectorised

NAME = "J9"
SEEDS = 3
RATES = (0.003, 0.01, 0.03, 0.1)


@dataclass(frozen=True)
class LanesResult:
    """One round of all lanes beside one round of one of them."""

    device: str
    lanes: int
    clients: int  # a round, of one lane
    one_seconds: list[float]
    all_seconds: list[float]
    times_one: float  # of the medians: all lanes over one lane
    gain: float  # all lanes one after another over all lanes at once


def measure_lanes(device: str, repeat: int) -> dict[str, object]:
    """Both in turn, in one process, after one round of each to warm up."""
    ready = materials(replace(J1, cohort=10), device)
    settings = [
        Experiment.of(replace(ready.method, lr=lr), ready.experiment.data, seed)
        for seed in range(SEEDS)
        for lr in RATES
    ]
    rounds = {"one": _one(settings[0], ready.cohort), "all": _all(settings, ready.cohort)}
    sides = take_turns(rounds, repeat, torch.device(device))
    one, every = (statistics.median(sides[who].seconds) for who in rounds)
    result = LanesResult(
        device=device,
        lanes=len(settings),
        clients=len(ready.cohort),
        one_seconds=sides["one"].seconds,
        all_seconds=sides["all"].seconds,
        times_one=every / one,
        gain=len(settings) * one / every,
    )
    return asdict(result)


def _one(experiment: Experiment, cohort: list[int]) -> Round:
    state = experiment.start()
    engine = Vectorised()

    def round() -> int:
        nonlocal state
        state, _ = run_round(experiment, state, cohort, engine, coming=cohort)
        return len(cohort) * J1.examples

    return round


def _all(settings: list[Experiment], cohort: list[int]) -> Round:
    lanes = Lanes(settings)
    engine = Vectorised(chunk=512)
    states = [experiment.start() for experiment in settings]

    def round() -> int:
        nonlocal states
        cohorts = [cohort] * len(settings)
        states = [end[0] for end in lanes.run_round(states, cohorts, engine, coming=cohorts)]
        return len(settings) * len(cohort) * J1.examples

    return round
