"""All parts of the data are tried after one adaptation, with the numbers that each
would give alone.
"""

from __future__ import annotations

import pytest

from fedblocks.engines import local_work
from fedblocks.engines.processes.engine import Processes
from fedblocks.engines.round import evaluate, evaluate_parts, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.testing import EXAMPLES

PARTS = ["validation", "test", "train"]


def trained(name: str):
    example = EXAMPLES[name]()
    experiment = example.experiment()
    state, _ = run_round(experiment, experiment.start(), example.everybody, Sequential())
    return experiment, state, example.everybody


@pytest.mark.parametrize("joining", [False, True])
@pytest.mark.parametrize(
    "engine", [Sequential(), Vectorised(chunk=4)], ids=lambda engine: engine.name
)
@pytest.mark.parametrize("name", ["pfedmb", "fedavg_ft", "per_fedavg", "ditto", "fedmn", "modfl"])
def test_several_parts_at_once_have_the_numbers_of_each_alone(
    name: str, engine, joining: bool
) -> None:
    experiment, state, clients = trained(name)
    together = evaluate_parts(experiment, state, clients, engine, PARTS, joining)
    assert list(together.scores) == PARTS
    for part in PARTS:
        assert together.scores[part] == evaluate(experiment, state, clients, engine, part, joining)
    alone = evaluate_parts(experiment, state, clients, engine, ["test"], joining)
    assert together.portraits == alone.portraits


def test_workers_try_several_parts_as_one_process_does() -> None:
    experiment, state, clients = trained("pfedmb")
    engine = Processes(count=2)
    try:
        actual = evaluate_parts(experiment, state, clients, engine, PARTS)
    finally:
        engine.close()
    expected = evaluate_parts(experiment, state, clients, Sequential(), PARTS)
    assert actual.scores == expected.scores and actual.portraits == expected.portraits


def test_clients_adapt_once_for_all_parts(monkeypatch) -> None:
    experiment, state, clients = trained("fedavg_ft")
    calls, adapt = [], local_work.adapt
    monkeypatch.setattr(local_work, "adapt", lambda *args: calls.append(1) or adapt(*args))
    evaluate_parts(experiment, state, clients, Sequential(), PARTS)
    assert len(calls) == len(clients)
