"""A phase moves the blocks that it names, and nothing that a method does in it can move another."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from fedblocks.core.net import Net
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.ditto import Ditto

ENGINES = pytest.mark.parametrize(
    "engine", [Sequential(), Vectorised(chunk=3)], ids=lambda e: e.name
)


def net() -> Net:
    return Net.of(lambda: nn.Linear(6, 3), dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class WritesElsewhere(Ditto):
    """The phase of the shared model tries to write the personal one: at its start, or
    after every step.
    """

    when: str = "begin"

    def phases(self):
        first, second = super().phases()
        if self.when == "begin":
            return [first, replace(second, begin=self.overwrite)]
        return [
            first,
            replace(second, updates=(replace(second.updates[0], project=self.overwrite),)),
        ]

    def overwrite(self, blocks):
        return {**blocks, "personal": {k: 0 * v for k, v in blocks["shared"].items()}}


@ENGINES
@pytest.mark.parametrize("when", ["begin", "project"])
def test_a_phase_cannot_write_a_block_that_it_does_not_name(federation, engine, when):
    states = []
    for method in (Ditto(net(), batch_size=4), WritesElsewhere(net(), batch_size=4, when=when)):
        experiment = Experiment.of(method, federation)
        states.append(run_round(experiment, experiment.start(), range(4), engine)[0])
    honest, other = states
    for client in range(4):
        personal = honest.private[client]["personal"]
        assert all(
            torch.equal(other.private[client]["personal"][k], v) for k, v in personal.items()
        )
