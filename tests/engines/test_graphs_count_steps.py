"""Recorded steps, in stacks, of nets whose tensors lack gradients in some steps, against torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import fedblocks as fb
from fedblocks.engines import cuda_graphs as captured
from fedblocks.engines.cuda_graphs import Captured, Graph
from fedblocks.engines.job import Job
from fedblocks.engines.replay.recording import Recorder
from fedblocks.engines.replay.running import Machine
from tests.core.test_tensors_count_their_steps import LARGE, TWINS, after, assert_like_torch, local


class Kernels:
    """A recording on a CPU: kernels on the same memory, and nothing that Python does. As on a GPU,
    a step whose numbers Python reads cannot be recorded.
    """

    def __init__(self, body: Callable[[], None], pool: Any) -> None:
        for _ in range(captured._WARM_UP):
            body()
        with Recorder([]) as recorder:
            body()
        program = recorder.program(0)
        if program is None:
            raise RuntimeError("a number was read")
        self.replay = Machine(program, {}).bound([])


@dataclass(frozen=True)
class StacksOfKernels(fb.Vectorised):
    """Graphs also where there is no GPU."""

    def runner(self, job: Job) -> Captured:
        return self.recorded.setdefault(id(job.method), Captured(job.method, pool=None))


@dataclass(frozen=True)
class OneByOneOfKernels(fb.Sequential):
    """The same for one client after another."""

    def runner(self, job: Job) -> Captured:
        kept = self.known.setdefault((id(job.method), ""), Captured(job.method, pool=None))
        assert isinstance(kept, Captured)
        return kept


def trained(method: fb.Method, engine: Any, runners: dict[Any, Any], make: Any) -> Captured:
    # graphs have learning rates in single precision
    assert_like_torch(method, make, after(method, engine), near=1e-6)
    (own,) = runners.values()
    assert any(isinstance(graph, Graph) for graph in own.graphs.values())
    return own


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch) -> None:
    monkeypatch.setattr(captured, "_capture", Kernels)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


@pytest.mark.parametrize("keep", [False, True], ids=["anew", "kept"])
@pytest.mark.parametrize("kind", ["momentum", "adam", "groups"])
def test_recorded_stacks_of_a_net_with_unused_layers_train_as_in_torch(kind, keep):
    """All batches have five rows, so that two of the layers never have a gradient."""
    engine, method = (
        StacksOfKernels(),
        local("Unused", kind, keep, batch_size=LARGE[0], drop_last=True),
    )
    own = trained(method, engine, engine.recorded, TWINS[kind][1])
    assert not own.refused


@pytest.mark.parametrize("keep", [False, True], ids=["anew", "kept"])
@pytest.mark.parametrize("kind", ["momentum", "adam", "groups"])
@pytest.mark.parametrize("net", ["EverySecondStep", "Unused"])
def test_recorded_steps_of_nets_that_use_a_layer_now_and_then_train_as_in_torch(net, kind, keep):
    """Four batches of 2 rows are recorded, and one of 1 row goes between them."""
    engine, method = OneByOneOfKernels(), local(net, kind, keep, batch_size=2)
    own = trained(method, engine, engine.known, TWINS[kind][1])
    # who was left out in the meantime has its count read, but for SGD, which asks for none
    reads = net == "EverySecondStep" and kind != "momentum"
    assert {*own.refused.values()} == ({"a number was read"} if reads else set())
