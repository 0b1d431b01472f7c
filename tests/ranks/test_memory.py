"""Each of four ranks holds a quarter of a population: of its data, and of what clients keep."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedblocks.core.errors import UserError
from fedblocks.runs.federations import federation_of
from fedblocks.runs.ranks.ownership import owners_of, part_of

from .players import MANY, config_of_steps
from .processes import PLAYERS, end_ranks, run_ranks, start_ranks


@pytest.mark.soak
def test_each_of_four_ranks_holds_about_a_quarter_of_the_memory(tmp_path) -> None:
    alone = start_ranks(1, str(PLAYERS), MANY, str(tmp_path / "alone"))
    (code, output, errors), *_ = end_ranks(alone, 600)
    assert code == 0, errors
    ends = run_ranks(4, str(PLAYERS), MANY, str(tmp_path / "ranks"), seconds=600)
    assert [code for code, _, _ in ends] == [0] * 4, ends
    whole = json.loads(output)
    parts = [json.loads(output) for _, output, _ in ends]
    assert sum(part["kept"] for part in parts) == whole["kept"]
    # a quarter, and what all ranks know of every client: size, rank, name and number
    assert max(part["megabytes"] for part in parts) < 0.4 * whole["megabytes"], (whole, parts)


def test_every_client_has_one_rank_and_its_data_are_there_alone() -> None:
    federation = federation_of(config_of_steps())
    owners = owners_of(federation.train.sizes, [1, 5], 3)
    parts = [part_of(federation, owners == rank) for rank in range(3)]
    assert sum(len(part.x) for part in parts) == len(federation.x)
    for client, rank in enumerate(owners.tolist()):
        for number, part in enumerate(parts):
            for name, rows in federation.parts.items():
                own = part.x[part.parts[name][client]]
                wanted = federation.x[rows[client]] if number == rank else federation.x[:0]
                assert own.equal(wanted)


def test_ranks_have_equal_shares_of_those_who_train_and_of_those_who_do_not() -> None:
    sizes = np.arange(1, 41)
    unseen = list(range(30, 40))  # the largest
    owners = owners_of(sizes, unseen, 4)
    rows = [int(sizes[:30][owners[:30] == rank].sum()) for rank in range(4)]
    assert max(rows) - min(rows) <= 4  # of 465
    assert np.bincount(owners[30:], minlength=4).min() >= 2


def test_neighbours_of_a_large_federation_stay_together() -> None:
    owners = owners_of(np.full(5000, 3), [], 4)
    assert all(len(set(owners[start : start + 64])) == 1 for start in range(0, 5000, 64))
    assert np.bincount(owners).min() > 1100


def test_more_ranks_than_clients_that_train_are_refused() -> None:
    with pytest.raises(UserError, match="4 ranks, but only 3 clients to train on"):
        owners_of(np.full(5, 3), [0, 1], 4)
