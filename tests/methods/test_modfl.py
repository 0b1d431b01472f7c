"""ModFL on digits whose clients have hidden groups: cohorts are found, and newcomers
find theirs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedblocks.core.state import State
from fedblocks.data.digits import digits
from fedblocks.data.federation import Federation
from fedblocks.data.partitions import iid
from fedblocks.data.shifts import joint
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.modfl import ModFL
from fedblocks.nets import mlp

ENGINE = Vectorised()
CLIENTS, GROUPS = 12, 3


@pytest.fixture(scope="module")
def shifted() -> Federation:
    x, y = digits()
    even = Federation.from_arrays(x, y, iid(y.numpy(), CLIENTS, seed=1), seed=1)
    return joint(even, GROUPS, seed=1)


def modfl(hidden: tuple[int, ...] = (32, 16), **options: Any) -> ModFL:
    net = mlp((1, 8, 8), 10, hidden=hidden)
    return ModFL(
        net,
        lr=0.1,
        epochs=2,
        batch_size=16,
        operations=GROUPS,
        cohorts="found",
        warmup=4,
        **options,
    )


def play(experiment: Experiment, cohorts: list[list[int]]) -> State:
    state = experiment.start()
    for clients in cohorts:
        state, _ = run_round(experiment, state, clients, ENGINE)
    return state


def members(state: State) -> np.ndarray:
    return state.server["membership"]["value"].squeeze(1).long().numpy()


def as_hidden(found: np.ndarray, hidden: np.ndarray) -> bool:
    """Whether two ways to group clients are the same, whatever the groups are called."""
    pairs = set(zip(found.tolist(), hidden.tolist()))
    return len(pairs) == len(set(found.tolist())) == len(set(hidden.tolist()))


def test_cohorts_are_the_hidden_groups(shifted: Federation) -> None:
    state = play(Experiment.of(modfl(), shifted, 0), [list(range(CLIENTS))] * 4)
    assert as_hidden(members(state), shifted.tags["group"])


def test_a_client_that_missed_the_warm_up_takes_the_module_of_lowest_loss(
    shifted: Federation,
) -> None:
    experiment = Experiment.of(modfl(), shifted, 0)
    late = CLIENTS - 1
    state = play(experiment, [list(range(late))] * 8)
    assert members(state)[late] == -1
    as_new = evaluate(experiment, state, [late], ENGINE, joining=True)["personal"][late]
    groups = shifted.tags["group"].tolist()
    known = {"value": state.server["membership"]["value"].clone()}
    # the cohort of another of its hidden group
    known["value"][late] = known["value"][groups.index(groups[late])]
    message = replace(state, server={**state.server, "membership": known})
    assert evaluate(experiment, message, [late], ENGINE)["personal"][late] == pytest.approx(as_new)
    state, report = run_round(experiment, state, [0, late], ENGINE)
    assert as_hidden(members(state), shifted.tags["group"])
    one = 4 * (16 * 10 + 10)
    # one of them has to choose
    assert report.bytes_down["operation"] == {0: GROUPS * one, late: GROUPS * one}
    _, report = run_round(experiment, state, [0, late], ENGINE)
    assert report.bytes_down["operation"] == {0: one, late: one}


def two_groups(shifted: Federation, small: ModFL, large: ModFL) -> Experiment:
    groups = ["small" if client < 8 else "large" for client in range(CLIENTS)]
    return Experiment({"small": small, "large": large}, shifted, 0, groups)


def test_another_architecture_joins_the_cohorts_that_the_first_has_found(
    shifted: Federation,
) -> None:
    small, large = modfl(configuration="small"), modfl((48, 16), configuration="large")
    experiment = two_groups(shifted, small, large)
    state = play(experiment, [list(range(CLIENTS))] * 4)
    assert (members(state)[:8] >= 0).all() and (members(state)[8:] == -1).all()
    state, _ = run_round(experiment, state, range(CLIENTS), ENGINE)
    assert as_hidden(members(state), shifted.tags["group"])


def test_groups_of_one_architecture_find_their_cohorts_together(shifted: Federation) -> None:
    one = modfl(configuration="small")
    experiment = two_groups(shifted, one, replace(one, lr=0.09))
    state = play(experiment, [list(range(CLIENTS))] * 4)
    assert as_hidden(members(state), shifted.tags["group"])


def test_found_cohorts_do_better_than_one_model_for_all(shifted: Federation) -> None:
    """One operation module for everybody cannot serve groups that mean other things by
    the same label.
    """
    right = {}
    for operations in (1, GROUPS):
        experiment = Experiment.of(replace(modfl((64,)), operations=operations), shifted, 0)
        found = evaluate(
            experiment, play(experiment, [list(range(CLIENTS))] * 12), range(CLIENTS), ENGINE
        )["personal"]
        right[operations] = np.mean([correct / scored for correct, scored, _ in found.values()])
    assert right[GROUPS] > right[1] + 0.2
