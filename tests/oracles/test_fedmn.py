"""FedMN against its algorithm box: noise and the router's examples as docs/randomness.md says."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedblocks.core.optimizers import SGD
from fedblocks.core.schedules import Exponential
from fedblocks.methods.fedmn.method import FedMN

from . import definition, fedmn
from .definition import Course
from .harness import (
    BATCH,
    COHORTS,
    ENGINES,
    SEED,
    SIZES,
    Experiment,
    agrees,
    federation,
    mlp_net,
    task_of,
)
from .plain import Ints, Outcome, Task

SMALL = {
    "summary_width": 4,
    "label_width": 3,
    "dropout": 0.0,
    "widths": (6, 5),
    "modules": (2, 3, 2),
}
CASES: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "hard gates, all examples": ({"router_samples": 0}, {}),
    "hard gates, five examples": ({"router_samples": 5}, {}),
    "blocks averaged as printed": (
        {"router_samples": 0, "normalise_blocks": False},
        {"normalise": False},
    ),
    "soft gates": ({"router_samples": 7, "gate_mode": "soft", "eval_gate": "soft"}, {"soft": True}),
    "a cold pool of other sizes": (
        {"modules": (1, 4, 3), "router_samples": 6, "temperature": Exponential(0.7, 0.2, 3)},
        {"start": 0.7, "end": 0.2, "rounds": 3},
    ),
    "dropout, and gates drawn for the evaluation": (
        {"router_samples": 0, "dropout": 0.4, "eval_gate": "sample"},
        {"dropout": 0.4, "sample": True},
    ),
    "soft gates drawn anew in each step": (
        {"router_samples": 5, "gate_mode": "soft", "eval_gate": "soft", "noise_per": "step"},
        {"soft": True, "per_step": True},
    ),
}
OPTIMIZERS = {
    "sgd": (0.3, SGD()),
    "momentum and decay": (0.1, SGD(momentum=0.9, weight_decay=0.05)),
}


def place(round: int, client: int) -> definition.Place:
    purpose = "train" if round < len(COHORTS) else "adapt"
    return SEED, round, client, purpose


def noises(method: FedMN) -> dict[tuple[int, int], Tensor]:
    """A number for each edge: in the rounds, and for everybody before the evaluation."""
    n = method.modules
    edges = n[0] * n[1] + n[1] * n[2] + n[2]
    cohorts = (*COHORTS, range(len(SIZES)))
    places = [(t, i) for t, cohort in enumerate(cohorts) for i in cohort]
    drawn = {p: definition.uniform(definition.client_key(place(*p)), edges) for p in places}
    return {p: torch.from_numpy(own) for p, own in drawn.items()}


def streams(task: Task, of_step: Callable[[tuple[int, int], int], Any]) -> dict[Any, list[Any]]:
    """Something for each step of each client in each round; `of_step` is given a key, too."""
    counts = {
        (t, i): len(batches)
        for t, cohort in enumerate(task.rounds)
        for i, (batches,) in cohort.items()
    }
    return {p: [of_step(p, step) for step in range(1, n + 1)] for p, n in counts.items()}


def looks(method: FedMN, task: Task) -> fedmn.Looks:
    """The examples with the lowest numbers, drawn anew in each step."""

    def look(at: tuple[int, int], step: int) -> Ints:
        key = definition.fold(definition.step_key(place(*at), 0, step), 2**20)
        order = definition.uniform(key, task.size(at[1]))
        return np.argsort(order, kind="stable")[: method.router_samples or None]

    return streams(task, look)


def step_keys(task: Task) -> dict[tuple[int, int], list[int]]:
    return streams(task, lambda at, step: definition.step_key(place(*at), 0, step))


def started(method: FedMN) -> fedmn.Pool:
    server = Experiment.of(method, federation(), SEED).start().server
    slots = {
        n: [{k: v[s] for k, v in b.items()} for s in range(len(next(iter(b.values()))))]
        for n, b in server.items()
    }
    return fedmn.Pool(slots["encoders"], slots["modules.2"], slots["outputs"], slots["router"][0])


def case(name: str, optimizer: str) -> tuple[FedMN, fedmn.Choices]:
    own, message = CASES[name]
    lr, sgd = OPTIMIZERS[optimizer]
    method = FedMN(mlp_net(), lr=lr, epochs=2, batch_size=BATCH, optimizer=sgd, **{**SMALL, **own})
    return method, fedmn.Choices(lr, sgd.momentum, sgd.weight_decay, **message)


@cache
def expected(name: str, optimizer: str) -> tuple[Outcome, list[str]]:
    """What the paper's box arrives at, and what it needed the fallback for."""
    method, choices = case(name, optimizer)
    task = task_of(method, courses=[Course(epochs=2)], adapting=[], joining=[])
    drawn = fedmn.Drawn(noises(method), looks(method, task), step_keys(task))
    return fedmn.run(task, started(method), drawn, choices), choices.dead


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", CASES)
def test_two_rounds_are_those_of_the_paper(name: str, optimizer: str, engine: str) -> None:
    agrees(case(name, optimizer)[0], expected(name, optimizer)[0], ENGINES[engine])


def test_the_cases_meet_the_fallback() -> None:
    """Else the comparison would prove less than it says."""
    seen = {layer for name in CASES for layer in expected(name, "sgd")[1]}
    assert {"prediction", "output"} <= seen
