"""A client whose own function raises is absent in its round, and says why."""

import sys
from typing import Any

import pytest
import torch

from fedblocks.engines import sequential
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.processes.engine import Processes
from fedblocks.engines.round import run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.testing import EXAMPLES
from fedblocks.testing.compare import state_leaves

ENGINES = [
    Sequential,
    lambda: Sequential(replay=False),
    pytest.param(
        lambda: Processes(count=2),
        marks=pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux"),
    ),
]


def break_client(
    monkeypatch: pytest.MonkeyPatch, name: str, clients: set[int], error: Exception
) -> None:
    """Let a function of the engine raise for some clients."""
    whole = getattr(sequential, name)

    def work(job: Any, stack: Any, *others: Any) -> Any:
        if int(stack.tensors["id"]) in clients:
            raise error
        return whole(job, stack, *others)

    monkeypatch.setattr(sequential, name, work)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["fedavg", "pfedmb"])
def test_a_client_that_raises_is_absent_and_the_round_is_that_of_the_others(
    engine: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = EXAMPLES[name]()
    experiment, engine = example.experiment(), engine()
    start, everybody = experiment.start(), list(example.everybody)
    expected, _ = run_round(experiment, start, everybody[1:], Sequential(replay=False))
    break_client(monkeypatch, "train_locally", {everybody[0]}, ValueError("no such word"))
    ((after, report),) = Lanes([experiment]).run_round([start], [everybody], engine)
    (refusal,) = report.refusals
    assert (refusal.client, refusal.reason) == (everybody[0], "failed")
    assert "ValueError: no such word" in refusal.detail and "\n" not in refusal.detail
    assert report.clients == everybody[1:]
    ours, theirs = state_leaves(after), state_leaves(expected)
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[key], theirs[key], atol=1e-6) for key in ours)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_that_raises_in_an_evaluation_has_no_score(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = EXAMPLES["fedavg"]()
    experiment, engine = example.experiment(), engine()
    state, everybody = experiment.start(), list(example.everybody)
    break_client(monkeypatch, "evaluate_locally", {everybody[1]}, KeyError("x"))
    (evaluation,) = Lanes([experiment]).evaluate_parts([state], [everybody], engine, ["test"])
    scores = next(iter(evaluation.scores["test"].values()))
    assert sorted(scores) == [client for client in everybody if client != everybody[1]]
    assert [refusal.client for refusal in evaluation.failures] == [everybody[1]]


def test_an_error_of_every_client_ends_the_round_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    example = EXAMPLES["fedavg"]()
    experiment = example.experiment()
    everybody = list(example.everybody)
    break_client(monkeypatch, "train_locally", set(everybody), ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        Lanes([experiment]).run_round([experiment.start()], [everybody], Sequential())
