"""Recorded steps and hooks without a GPU: a recording that simply does everything
again, in the same memory.
"""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fedblocks.engines import cuda_graphs as captured
from fedblocks.engines.cuda_graphs import Captured, HookGraph
from fedblocks.engines.job import Job
from fedblocks.engines.round import run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.testing import EXAMPLES
from fedblocks.testing.compare import state_leaves
from tests.representatives import mark_others


class Again:
    """What a recording is on a CPU: results come where they were the first time, as on a device."""

    def __init__(self, body: Callable[[], None], pool: Any) -> None:
        body()
        self.body, self.results = body, inspect.getclosurevars(body).nonlocals.get("results", [])
        self.places = list(captured.leaves(self.results))

    def replay(self) -> None:
        before = list(self.results)
        self.body()
        captured._fill(self.places, [value.clone() for value in captured.leaves(self.results)])
        self.results[:] = before


@dataclass(frozen=True)
class Recorded(Vectorised):
    """Graphs also where there is no GPU."""

    def runner(self, job: Job) -> Captured:
        return self.recorded.setdefault(id(job.method), Captured(job.method, pool=None))


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch) -> None:
    monkeypatch.setattr(captured, "_capture", Again)
    monkeypatch.setattr(captured, "_WORTH_A_HOOK", 0.0)  # all hooks are worth it


def _last(name: str, engine: Vectorised) -> Any:
    example = EXAMPLES[name]()
    experiment = example.experiment()
    state = experiment.start()
    for _ in range(5):
        state, report = run_round(experiment, state, example.everybody, engine)
        assert not report.refusals
    return state


@pytest.mark.parametrize("name", mark_others(EXAMPLES))
def test_recorded_steps_and_hooks_end_where_plain_ones_end(name):
    """One method of each kind; all of them in `make test-rest`."""
    engine = Recorded()
    actual, expected = state_leaves(_last(name, engine)), state_leaves(_last(name, Vectorised()))
    assert actual.keys() == expected.keys()
    for leaf, value in expected.items():
        assert torch.allclose(actual[leaf], value, rtol=1e-5, atol=1e-6), leaf
    assert all(own.graphs for own in engine.recorded.values())


def test_what_a_hook_hands_through_is_not_copied():
    engine = Recorded()
    _last("fedfomo", engine)
    (own,) = engine.recorded.values()
    (graph,) = (graph for graph in own.graphs.values() if isinstance(graph, HookGraph))
    blocks = {
        name: {k: v.clone() for k, v in block.items()} for name, block in graph.args[0].items()
    }
    after = graph.run(graph.local, (blocks,))
    assert after["peers"]["0.weight"] is blocks["peers"]["0.weight"]
    assert after["model"]["0.weight"].data_ptr() != graph.results["model"]["0.weight"].data_ptr()


def test_an_engine_that_is_gone_takes_its_graphs_along():
    engine = Recorded()
    _last("fedfomo", engine)
    own = weakref.ref(next(iter(engine.recorded.values())))
    gc.disable()  # nobody goes looking for circles
    try:
        del engine
        assert own() is None
    finally:
        gc.enable()
