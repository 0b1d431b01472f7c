"""How numbers lie in memory between two rounds: in their order, as they do in a checkpoint. On some
processors last bits of a product depend on it, and a resumed run would be another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedblocks.core.blocks import Private, Shared
from fedblocks.core.method import Method
from fedblocks.core.net import Net
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.phases import Phase
from fedblocks.core.state import initial_copy
from fedblocks.core.trees import leaves, map_leaves
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.fedavg import FedAvg
from fedblocks.testing.compare import state_leaves
from fedblocks.testing.federations import CLASSES, FEATURES, SIZES, small_federation, small_net

ENGINES = [Sequential(), Vectorised()]
COHORTS = [[*range(len(SIZES))], [1, 3]]


def turned(tensor: Tensor) -> Tensor:
    """The same numbers, column by column."""
    return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor


@dataclass(frozen=True, eq=False)
class Turning(Method):
    """Whatever a method may return lies in another order."""

    def blocks(self) -> dict[str, Any]:
        return {"body": Shared(self.net.body, rule=TurningRule()), "head": Private(self.net.head)}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net({**blocks["body"], **blocks["head"]}, x)

    def phases(self) -> list[Phase]:
        return [Phase((self.step("body", "head"),), self.epochs)]

    def finish(self, blocks: Blocks, start: Blocks, client: Any) -> Blocks:
        finished: Blocks = map_leaves(turned, blocks)
        return finished

    def conclude(self, server: Blocks, before: Blocks, uploads: Any, cohort: Any) -> Blocks:
        concluded: Blocks = map_leaves(turned, server)
        return concluded


class TurningRule:
    def memory(self, old: Params) -> Blocks:
        return {"seen": map_leaves(turned, old)}

    def apply(self, memory: Blocks, old: Params, mean: Params) -> tuple[Blocks, Params]:
        return {"seen": map_leaves(turned, mean)}, map_leaves(turned, mean)


class Turned(nn.Module):
    """Its matrix is made as a transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(FEATURES, CLASSES).T)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


def is_in_order(tree: Any) -> bool:
    return all(tensor.is_contiguous() for tensor in leaves(tree))


@pytest.mark.parametrize("clients", COHORTS, ids=["all", "some"])
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_what_a_round_leaves_lies_in_its_order(engine: Any, clients: list[int]) -> None:
    method = Turning(small_net(), lr=0.1, batch_size=4)
    experiment = Experiment.of(method, small_federation(), seed=0)
    start = experiment.start()
    assert is_in_order([*start.server.values(), *start.memory.values()])
    state, report = run_round(experiment, start, clients, engine)
    assert not report.refusals and len(state.private) == len(clients)
    assert any(tensor.dim() > 2 for tensor in leaves(state.server))
    assert is_in_order([state.server, state.memory, [state.private[c] for c in clients]])


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_a_net_of_transposes_starts_in_order_and_learns_the_same(engine: Any) -> None:
    learned: dict[str, dict[str, Tensor]] = {}
    plain: Callable[[], nn.Module] = lambda: nn.Linear(FEATURES, CLASSES, bias=False)
    for name, make in (("turned", Turned), ("plain", plain)):
        net = Net.of(make, dtype=torch.float64)
        assert is_in_order(initial_copy(net, 0))
        experiment = Experiment.of(FedAvg(net, lr=0.1, batch_size=4), small_federation(), seed=0)
        start = experiment.start()
        start.server["model"] = {"weight": torch.ones(1, CLASSES, FEATURES).double()}
        learned[name] = dict(state_leaves(run_round(experiment, start, [0, 1], engine)[0]))
    assert learned["turned"].keys() == learned["plain"].keys()
    for name, value in learned["plain"].items():
        assert torch.equal(learned["turned"][name], value), name
