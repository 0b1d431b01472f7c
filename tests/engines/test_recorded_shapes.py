"""Unequal clients in changing cohorts need few recordings, without a GPU: a recording that simply
does everything again.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core.trees import leaves
from fedblocks.engines import cuda_graphs as captured
from fedblocks.engines.cuda_graphs import Graph, stack_size
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.row_tables import table_length
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.testing.compare import state_leaves
from tests.engines.test_captured import Again, Recorded

SIZES = [90, 71, 64, 50, 41, 33, 24, 17, 12, 9, 8, 5]  # rows of each client, few alike


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch) -> None:
    monkeypatch.setattr(captured, "_capture", Again)


def _experiment(optimizer: fb.Optimizer | None = None) -> Experiment:
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(sum(SIZES), 6, generator=noise, dtype=torch.float64)
    y = torch.randint(0, 3, (sum(SIZES),), generator=noise)
    ends = torch.tensor(SIZES).cumsum(0).tolist()
    rows = [list(range(end - size, end)) for size, end in zip(SIZES, ends, strict=True)]
    data = fb.Federation.from_arrays(x, y, rows)
    make = lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    net = fb.Net.of(make, dtype=torch.float64)
    method = fb.FedAvg(net, lr=0.1, epochs=2, batch_size=8)
    if optimizer is not None:
        method = replace(method, optimizer=optimizer)
    return Experiment({"all": method}, data, seed=3)


def _cohort(round: int) -> list[int]:
    """Five or six of the twelve, others in every round."""
    return [client for client in range(12) if (client + round) % 2 == 0]


def _run(experiment: Experiment, engine: Vectorised | Sequential, rounds: int):
    state = experiment.start()
    for round in range(rounds):
        state, report = run_round(experiment, state, _cohort(round), engine)
        assert not report.refusals
    return state


@pytest.mark.parametrize("optimizer", [None, fb.SGD(momentum=0.9), fb.Adam()])
def test_clients_that_end_one_after_another_end_where_plain_steps_end(optimizer):
    """Momentum and Adam would move a client on with a batch of nothing."""
    recorded = Recorded()
    actual = state_leaves(_run(_experiment(optimizer), recorded, 4))
    expected = state_leaves(_run(_experiment(optimizer), Vectorised(), 4))
    assert any(
        isinstance(g, Graph) for own in recorded.recorded.values() for g in own.graphs.values()
    )
    for leaf, value in expected.items():
        assert torch.allclose(actual[leaf], value, rtol=1e-6, atol=1e-7), leaf


def test_changing_cohorts_of_unequal_clients_need_no_new_recordings(monkeypatch):
    """As on a GPU, where tables of rows have few lengths: stacks of 6, 4, 3, 2 and 1 clients."""
    monkeypatch.setattr("fedblocks.engines.job.records_graphs", lambda device: True)
    recorded, experiment = Recorded(), _experiment()
    _run(experiment, recorded, 6)
    (own,) = recorded.recorded.values()
    before = dict(own.graphs)
    _run(experiment, recorded, 12)
    assert len(before) <= 10
    assert own.graphs.keys() == before.keys()


def test_one_client_is_recorded_where_batches_of_one_width_follow_each_other(monkeypatch):
    monkeypatch.setattr("fedblocks.engines.sequential.Captured", _captured)
    monkeypatch.setattr("fedblocks.engines.sequential.records_graphs", lambda device: True)
    engine, experiment = Sequential(), _experiment()
    actual = state_leaves(_run(experiment, engine, 3))
    expected = state_leaves(_run(_experiment(), Sequential(replay=False), 3))
    (own,) = engine.known.values()
    widths = {graph.step.index.shape for graph in own.graphs.values()}
    assert widths == {torch.Size([8])}  # not the last batches, of 1 to 7 rows
    for leaf, value in expected.items():
        assert torch.allclose(actual[leaf], value, rtol=1e-6, atol=1e-7), leaf


def _captured(method):
    return captured.Captured(method, pool=None)


def test_recordings_are_for_few_numbers_of_clients():
    sizes = [stack_size(active, 100) for active in range(1, 26)]
    assert sizes == [1, 2, 3, 4, 6, 6, 8, 8] + [12] * 4 + [16] * 4 + [24] * 8 + [32]
    assert stack_size(25, 30) == 30  # there are no more
    assert stack_size(None, None) is None  # one client is no stack


def test_tables_of_rows_have_four_lengths_from_each_power_of_two_to_the_next():
    assert [table_length(n) for n in range(1, 18)] == [
        *range(1, 9),
        *(10, 10, 12, 12, 14, 14, 16, 16),
        20,
    ]
    assert table_length(1025) == 1280 and table_length(1024) == 1024


def test_a_table_of_rows_is_never_longer_than_that_of_the_client_with_most_rows():
    experiment = _experiment()
    tables, rows = experiment.tables, experiment.data.train
    pad = lambda ids, few: tables.pad(rows, ids, torch.device("cpu"), torch.float32, few)[0]
    sizes = rows.sizes.tolist()
    assert pad([0, 1], True).shape == (2, sizes[0])  # 0 has most
    assert pad([1, 2], True).shape == (2, min(table_length(sizes[1]), sizes[0]))
    assert pad([1, 2], False).shape == (2, sizes[1])
    table = pad([2, 11], True)
    assert all((table[1, sizes[11] :] == table[1, 0]).tolist())  # a row of its own
    assert all(len(leaf) == 2 for leaf in leaves([table]))
