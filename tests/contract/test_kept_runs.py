"""Checks share runs, and no check sees what another has done to them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedblocks.core.trees import leaves, map_leaves
from fedblocks.engines.job import Job, Trained
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.ditto import Ditto
from fedblocks.testing import Example, example_for
from fedblocks.testing.compare import copy_leaves, differences, state_leaves
from fedblocks.testing.rigged import Remembering
from fedblocks.testing.rounds import ENGINES, run
from fedblocks.testing.usual import full_run, usual_run


class Counting:
    """The vectorised engine, which counts what it trains."""

    name = "counting"

    def __init__(self) -> None:
        self.trained = 0

    def train(self, job: Job, score: str | None = None) -> Trained:
        self.trained += 1
        return ENGINES[1].train(job, score)

    evaluate = ENGINES[1].evaluate


@pytest.fixture
def example() -> Example:
    return example_for(Ditto, strength=0.5)


@pytest.mark.parametrize("shared", [usual_run, full_run])
def test_a_shared_run_is_done_once_and_is_a_run_like_any_other(shared, example) -> None:
    engine = Counting()
    done = shared(example, engine)
    assert shared(example, engine) is done and engine.trained == example.rounds
    cohorts = example.cohorts() if shared is usual_run else [example.everybody] * 3
    plain = run(example.experiment(), ENGINES[1], cohorts)
    for kept, expected in zip(done.states, plain.states, strict=True):
        assert differences(state_leaves(kept), state_leaves(expected)) == []


@pytest.mark.parametrize("place", ["server", "private"])
def test_a_run_whose_states_somebody_wrote_to_is_done_again(place, example) -> None:
    done = usual_run(example, ENGINES[0])
    expected = [copy_leaves(state) for state in done.states]
    state = done.states[1]
    blocks = state.server if place == "server" else next(iter(state.private.values()))
    next(iter(next(iter(blocks.values())).values())).add_(1.0)
    again = usual_run(example, ENGINES[0])
    assert again is not done and usual_run(example, ENGINES[0]) is again
    for state, before in zip(again.states, expected, strict=True):
        assert differences(state_leaves(state), before) == []


def test_other_options_have_runs_of_their_own(example) -> None:
    usual_run(example, ENGINES[0])
    assert example.runs and not replace(example, rounds=2).runs


def test_what_was_trained_from_the_same_start_is_remembered_as_it_was(example) -> None:
    counting = Counting()
    engine = Remembering(counting)
    experiment = example.experiment()
    job = experiment.training_job("all", [0, 1, 2], experiment.start())
    expected = Vectorised().train(job)
    for _ in range(3):  # whoever is given a result may write to it
        trained = engine.train(job)
        for value, right in zip(leaves(trained.blocks), leaves(expected.blocks), strict=True):
            assert torch.equal(value, right)
            value.add_(1.0)
    assert counting.trained == 1


@pytest.mark.parametrize("change", ["clients", "round", "state"])
def test_what_starts_otherwise_is_trained_anew(change: str, example) -> None:
    counting = Counting()
    engine = Remembering(counting)
    experiment = example.experiment()
    start = experiment.start()
    engine.train(experiment.training_job("all", [0, 1, 2], start))
    moved = {name: map_leaves(lambda v: v + 1, block) for name, block in start.server.items()}
    states = {"round": replace(start, round=1), "state": replace(start, server=moved)}
    clients = [0, 1, 3] if change == "clients" else [0, 1, 2]
    job = experiment.training_job("all", clients, states.get(change, start))
    trained = engine.train(job)
    assert counting.trained == 2
    expected = Vectorised().train(job)
    for value, right in zip(leaves(trained.blocks), leaves(expected.blocks), strict=True):
        assert torch.equal(value, right)
