"""The two-step download: a client gets a little, says which slots it wants, and gets only those."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from fedblocks.core.arithmetic import mix
from fedblocks.core.blocks import Pool, Shared
from fedblocks.core.method import Method
from fedblocks.core.net import Net
from fedblocks.core.parts import Value
from fedblocks.core.phases import Phase
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised

ENGINES = pytest.mark.parametrize(
    "engine", [Sequential(), Vectorised(chunk=3)], ids=lambda e: e.name
)


@dataclass(frozen=True, eq=False)
class ByParity(Method):
    """Clients of even and of odd number use one module each of a pool of three."""

    def blocks(self):
        return {
            "pool": Pool(self.net.whole, size=3, on_request=True),
            "note": Shared(Value(torch.ones(2, dtype=torch.float64))),
        }

    def wants(self, blocks, client):
        return {"pool": (torch.arange(3) == client.id % 2).to(client.size.dtype)}

    def predict(self, blocks, x):
        return self.net(mix(blocks["pool"], torch.ones(3)), x)  # slots that were not sent are zero

    def phases(self):
        return [Phase((self.step("pool"),), self.epochs)]


def experiment(federation) -> Experiment:
    return Experiment.of(
        ByParity(Net.of(lambda: nn.Linear(6, 3), dtype=torch.float64), batch_size=4),
        federation,
        seed=0,
    )


@ENGINES
def test_only_wanted_slots_travel_and_are_written(federation, engine):
    one = experiment(federation)
    start = one.start()
    state, report = run_round(one, start, range(4), engine)
    copy, note, weight = (6 * 3 + 3) * 8, 2 * 8, 8
    assert report.bytes_down == {
        "note": dict.fromkeys(range(4), note),
        "pool": dict.fromkeys(range(4), copy),
    }
    assert report.bytes_up["pool"] == dict.fromkeys(range(4), copy + 3 * weight)
    for slot, moved in enumerate((True, True, False)):
        same = torch.equal(
            state.server["pool"]["weight"][slot], start.server["pool"]["weight"][slot]
        )
        assert same is not moved
    assert evaluate(one, state, range(4), engine)["personal"][0][1] == 6


@ENGINES
def test_a_slot_holds_the_average_of_those_who_asked_for_it(federation, engine):
    one = experiment(federation)
    state, _ = run_round(one, one.start(), range(4), engine)
    alone = [
        run_round(one, one.start(), [c], engine)[0].server["pool"]["weight"][c % 2]
        for c in range(4)
    ]
    assert torch.allclose(
        state.server["pool"]["weight"][0], (9 * alone[0] + 7 * alone[2]) / 16, atol=1e-12
    )
    assert torch.allclose(
        state.server["pool"]["weight"][1], (4 * alone[1] + 5 * alone[3]) / 9, atol=1e-12
    )
