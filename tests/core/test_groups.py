"""Groups of clients with different architectures federate the blocks whose server names
they share.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from fedblocks.core.blocks import Shared
from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.fedper import FedPer


@dataclass(frozen=True, eq=False)
class TwoParts(FedPer):
    """A body for each generation of devices, one head for all."""

    generation: str = "old"

    def blocks(self):
        return {
            "body": Shared(self.net.body, name=f"body/{self.generation}"),
            "head": Shared(self.net.head),
        }


def net(hidden: int, features: int = 4) -> Net:
    layers = [nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, features), nn.Tanh()]
    return Net.of(
        lambda: nn.Sequential(nn.Sequential(*layers), nn.Linear(features, 3)),
        head="1",
        dtype=torch.float64,
    )


def two_generations(federation, wide: Net) -> Experiment:
    methods = {"old": TwoParts(net(5), generation="old"), "new": TwoParts(wide, generation="new")}
    return Experiment(methods, federation, seed=3, groups=("old", "new", "old", "new"))


@pytest.mark.parametrize("engine", [Sequential(), Vectorised(chunk=3)], ids=lambda e: e.name)
def test_a_head_is_averaged_over_architectures_and_a_body_is_not(federation, engine):
    experiment = two_generations(federation, net(8))
    state, report = run_round(experiment, experiment.start(), range(4), engine)
    alone = []
    for client in range(4):
        one, _ = run_round(experiment, experiment.start(), [client], engine)
        alone.append(one.server)
    sizes = torch.tensor([9.0, 4, 7, 5], dtype=torch.float64)
    weight = torch.stack([a["head"]["1.weight"] for a in alone])
    expected = (weight * (sizes / sizes.sum()).view(-1, 1, 1, 1)).sum(0)
    assert torch.allclose(state.server["head"]["1.weight"], expected, atol=1e-12)
    old = {c: a["body/old"]["0.0.weight"] for c, a in enumerate(alone) if c in (0, 2)}
    assert torch.allclose(
        state.server["body/old"]["0.0.weight"], (9 * old[0] + 7 * old[2]) / 16, atol=1e-12
    )
    assert set(report.bytes_up["body"]) == {0, 1, 2, 3}
    assert set(evaluate(experiment, state, range(4), engine)["personal"]) == {0, 1, 2, 3}


def test_modules_that_do_not_fit_together_are_refused_by_name(federation):
    with pytest.raises(UserError, match='group "new" shares "head"'):
        two_generations(federation, net(8, features=7)).start()
