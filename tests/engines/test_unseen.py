"""Clients that never train do not count: a run with them learns what a run without them learns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedblocks.core.server import Cohort
from fedblocks.core.state import State
from fedblocks.engines import speculation
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.methods.fedfomo import epsilon_greedy
from fedblocks.testing import EXAMPLES
from fedblocks.testing.compare import state_leaves

SEEN = [0, 1, 2]


def final_state(name: str, with_unseen: bool, rounds: list[list[int]], **changes) -> State:
    """The last state of an example in which clients after the third never train, or are
    not there at all.
    """
    example = EXAMPLES[name]()
    whole = example.experiment()
    methods = {group: replace(method, **changes) for group, method in whole.methods.items()}
    unseen = [client for client in range(whole.data.clients) if client not in SEEN]
    experiment = replace(whole, methods=methods, unseen=unseen)
    if not with_unseen:
        experiment = Experiment(
            methods, whole.data.subset(SEEN), whole.seed, whole.groups[: len(SEEN)]
        )
    state = experiment.start()
    for clients in rounds:
        state, report = run_round(experiment, state, clients, Sequential())
        assert not report.refusals
    return state


@pytest.mark.parametrize(
    ("name", "changes", "rounds"),
    [
        ("scaffold", {}, [[0, 1], [1, 2], SEEN]),
        ("fedamp", {}, [SEEN] * 3),
        ("fedamp", {"relative": True}, [SEEN] * 3),
        ("heur_fedamp", {}, [SEEN] * 3),
        ("fedmn_reference", {"client_order": "sequential"}, [[0], [1], [2], [0]]),
    ],
)
def test_clients_that_never_train_change_nothing(
    name: str, changes: dict, rounds: list[list[int]]
) -> None:
    with_them, without = (
        state_leaves(final_state(name, unseen, rounds, **changes)) for unseen in (True, False)
    )
    assert with_them.keys() == without.keys()
    for leaf, value in without.items():
        theirs = with_them[leaf]
        # slots of the clients that train
        rows = theirs[: len(value)] if theirs.shape != value.shape else theirs
        torch.testing.assert_close(rows, value, rtol=1e-9, atol=1e-12, msg=leaf)


def test_nobody_is_sent_the_model_of_a_client_that_never_trains() -> None:
    affinity, own, unseen = torch.zeros(4, 8), torch.arange(4), torch.tensor([4, 6, 7])
    for seed in range(50):
        chosen = epsilon_greedy(affinity, own, 3, 0.5, seed, unseen)
        assert not torch.isin(chosen, unseen).any()
        assert all(len(set(row)) == 3 for row in chosen.tolist())


def test_what_all_clients_that_train_keep_is_one_stack() -> None:
    example = EXAMPLES["fedper"]()
    whole = example.experiment()
    experiment = replace(
        whole, unseen=[client for client in range(whole.data.clients) if client not in SEEN]
    )
    state, _ = run_round(experiment, experiment.start(), SEEN, Sequential())
    assert list(state.private) == SEEN and type(state.private).__name__ == "StackedState"


def test_a_cohort_counts_and_masks_without_unseen_clients() -> None:
    cohort = Cohort(torch.arange(2), torch.ones(2), {}, 2, 0, 0, torch.tensor([1, 3]))
    assert cohort.mask_unseen(torch.ones(2, 4), 0.0).tolist() == [[1, 0, 1, 0]] * 2
    assert cohort.without_unseen(torch.arange(4)).tolist() == [0, 2]


@pytest.mark.parametrize("name", ["scaffold", "fedamp"])
def test_a_gpu_counts_them_as_a_cpu_does(name: str, monkeypatch) -> None:
    straight = state_leaves(final_state(name, True, [SEEN] * 2))
    monkeypatch.setattr(speculation, "pays_on", lambda device: True)
    queued = state_leaves(final_state(name, True, [SEEN] * 2))
    assert all(torch.equal(queued[leaf], value) for leaf, value in straight.items())
