"""Local optimizers start anew in every round, unless a method keeps what they remember."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedblocks.core.net import Net
from fedblocks.core.optimizers import SGD, Adam
from fedblocks.core.schedules import Exponential, Milestones
from fedblocks.data.federation import Federation
from fedblocks.engines.batching import Draw, batches
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.local import Local

ENGINES = pytest.mark.parametrize(
    "engine", [Sequential(), Vectorised(chunk=3)], ids=lambda e: e.name
)
TORCH = {
    SGD(momentum=0.9): lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9),
    Adam(): torch.optim.Adam,
}


def net() -> Net:
    return Net.of(lambda: nn.Linear(6, 3), dtype=torch.float64)


def by_hand(
    experiment: Experiment, federation: Federation, client: int, rounds: list[int], make, keep: bool
) -> torch.Tensor:
    """Plain PyTorch: the same batches, one optimizer for all rounds or one for each."""
    method = experiment.methods["all"]
    model = nn.Linear(6, 3, dtype=torch.float64)
    model.load_state_dict(experiment.methods["all"].net.init(_seed()))
    optimizer = make(model.parameters(), 0.05)
    for round in rounds:
        optimizer = optimizer if keep else make(model.parameters(), 0.05)
        rows = torch.from_numpy(federation.train[client].copy())
        draw = Draw(0, round, client, "train")
        for batch in batches(method, method.phases()[0], 0, len(rows), draw):
            where = rows[torch.from_numpy(batch)]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(federation.x[where]), federation.y[where]).backward()
            optimizer.step()
    return model.weight.detach()


def _seed() -> int:
    from fedblocks.core.random import derive

    return derive(0, "init", 0)


@ENGINES
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("optimizer", list(TORCH), ids=lambda o: type(o).__name__)
def test_a_kept_optimizer_goes_on_where_it_was_and_a_fresh_one_does_not(
    federation, engine, keep, optimizer
):
    method = Local(net(), lr=0.05, batch_size=4, epochs=2, optimizer=optimizer, keep_optimizer=keep)
    experiment = Experiment.of(method, federation)
    state = experiment.start()
    # client 2 is away twice: clients count their own steps
    attendance = [[0, 1, 2, 3], [1, 3], [0, 1, 3]]
    for clients in attendance:
        state, _ = run_round(experiment, state, clients, engine)
    for client in range(4):
        there = [r for r, clients in enumerate(attendance) if client in clients]
        expected = by_hand(experiment, federation, client, there, TORCH[optimizer], keep)
        assert torch.allclose(state.private[client]["model"]["weight"], expected, atol=1e-10)


def test_schedules_are_functions_of_the_round():
    steps = Milestones(0.1, rounds=(2, 4), factor=0.1)
    assert [round(steps(r), 6) for r in range(6)] == [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    decay = Exponential(1.0, 0.1, rounds=10)
    assert decay(0) == 1.0 and decay(10) == pytest.approx(0.1) and decay(99) == pytest.approx(0.1)
    assert decay(5) == pytest.approx(0.1**0.5)


@ENGINES
def test_a_learning_rate_may_follow_a_schedule(federation, engine):
    def train(lr) -> torch.Tensor:
        experiment = Experiment.of(Local(net(), lr=lr, batch_size=4), federation)
        state = experiment.start()
        for _ in range(2):
            state, _ = run_round(experiment, state, [0], engine)
        return state.private[0]["model"]["weight"]

    stopped = Milestones(0.1, rounds=(1,), factor=1e-300)  # of which no weight notices anything
    experiment = Experiment.of(Local(net(), lr=0.1, batch_size=4), federation)
    once, _ = run_round(experiment, experiment.start(), [0], engine)
    assert torch.equal(train(stopped), once.private[0]["model"]["weight"])
    assert not torch.equal(train(0.1), once.private[0]["model"]["weight"])
