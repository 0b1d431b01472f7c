"""What a client that never took part does before it is scored follows from its model,
not from its optimizer.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedblocks.core.optimizers import SGD
from fedblocks.core.phases import Phase
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.local import Local
from fedblocks.testing import small_federation, small_net
from fedblocks.testing.examples import EXAMPLES


def outline(phases: list[Phase]) -> list[tuple[object, ...]]:
    return [(phase.train, phase.epochs, phase.on, phase.steps) for phase in phases]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_kept_optimizer_does_not_change_what_a_newcomer_does(name: str) -> None:
    for method in EXAMPLES[name]().methods().values():
        keeps, forgets = (replace(method, keep_optimizer=keep) for keep in (True, False))
        assert outline(keeps.joining()) == outline(forgets.joining())


@pytest.mark.parametrize("keep", [False, True])
def test_a_newcomer_to_fedavg_is_scored_with_the_shared_model(keep: bool) -> None:
    method = FedAvg(small_net(), lr=0.5, optimizer=SGD(momentum=0.9), keep_optimizer=keep)
    experiment = Experiment.of(method, small_federation())
    state, _ = run_round(experiment, experiment.start(), [0, 1], Sequential())
    scores = evaluate(experiment, state, [2], Sequential(), "test", joining=True)["personal"][2]

    shared = {name: value[0] for name, value in state.server["model"].items()}
    rows = torch.from_numpy(experiment.data.test[2].copy())
    x, y = experiment.data.x[rows], experiment.data.y[rows]
    logits = method.net(shared, x)
    assert scores[0] == int((logits.argmax(-1) == y).sum())
    assert scores[2] == pytest.approx(
        float(torch.nn.functional.cross_entropy(logits, y, reduction="sum")), rel=1e-5
    )


def test_clients_keep_state_if_they_keep_a_model_or_an_optimizer() -> None:
    assert not FedAvg(small_net()).stateful and not FedAvg(small_net()).has_personal_state
    kept = FedAvg(small_net(), keep_optimizer=True)
    assert kept.stateful and not kept.has_personal_state and kept.joining() == []
    assert Local(small_net()).has_personal_state and Local(small_net()).joining()
