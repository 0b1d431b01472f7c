"""Small federations of some users: who is drawn, and which of their rows stay."""

from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.data.pools import DataPool
from fedblocks.data.sets.divided import DividedPool
from fedblocks.data.testbeds import TESTBEDS
from fedblocks.data.testbeds.users import SIGNALS, some_people, some_users, spread_out

USERS, ROWS = 6, 40


def divided(users: int = USERS) -> DividedPool:
    """Users of 24 training, 8 validation and 8 test rows; an input is the number of its row."""
    count = users * ROWS
    part = np.tile(np.repeat([0, 1, 2], [24, 8, 8]), users)
    x = torch.arange(count, dtype=torch.float32).view(count, 1)
    return DividedPool(x, torch.arange(count) % 2, 2, np.repeat(np.arange(users), ROWS), part=part)


def test_rows_are_left_out_evenly_and_stay_in_their_order() -> None:
    assert spread_out(np.arange(5), 5).tolist() == [0, 1, 2, 3, 4]
    assert spread_out(np.arange(9), 5).tolist() == [0, 2, 4, 6, 8]
    assert spread_out(np.arange(10, 20), 2).tolist() == [10, 19]


def test_everybody_drawn_has_at_most_so_many_rows_of_the_data_sets_own_parts() -> None:
    federation = some_users(divided(), users=3, most=12, least=20, seed=1)
    assert federation.clients == 3 and len(federation.x) == 3 * (12 + 4 + 4)
    assert [rows.sizes.tolist() for rows in federation.parts.values()] == [
        [12] * 3,
        [4] * 3,
        [4] * 3,
    ]
    for client, name in enumerate(federation.names):
        for part, (low, high) in {
            "train": (0, 24),
            "validation": (24, 32),
            "test": (32, 40),
        }.items():
            place = federation.x[federation.parts[part][client]].view(-1) - int(name) * ROWS
            assert low <= place.min() and place.max() < high and (place.diff() > 0).all()


def test_another_seed_draws_other_users_and_the_same_seed_the_same() -> None:
    draw = lambda seed: some_users(divided(20), users=5, seed=seed)
    assert draw(0).hash() == draw(0).hash() and draw(0).names != draw(1).names


def test_users_without_parts_are_split_at_random_by_the_seed() -> None:
    plain = divided()
    pool = DataPool(plain.x, plain.y, 2, plain.users)
    first, second = (some_users(pool, users=USERS, most=99, seed=seed) for seed in (0, 1))
    assert [rows.sizes.tolist() for rows in first.parts.values()] == [[24] * 6, [8] * 6, [8] * 6]
    assert first.names == second.names and first.hash() != second.hash()


def test_a_user_with_too_few_rows_in_any_part_is_never_drawn() -> None:
    pool = divided()
    part = pool.part.copy()
    for user, kind in enumerate((0, 1, 2)):  # these three lack rows of one part each
        own = np.flatnonzero((pool.users == user) & (pool.part == kind))
        part[own[1:]] = (kind + 1) % 3
    some = DividedPool(pool.x, pool.y, 2, pool.users, part=part)
    federation = some_users(some, users=3, most=99, least=24)
    assert list(federation.names) == ["3", "4", "5"]


def test_too_few_users_with_enough_rows_are_refused() -> None:
    with pytest.raises(
        DataError, match="6 users have 24 training rows and 6 in other parts, fewer"
    ):
        some_users(divided(), users=7, least=24)
    with pytest.raises(DataError, match="0 users have 25 training rows"):
        some_users(divided(), users=1, least=25)
    with pytest.raises(DataError, match="no user ids"):
        some_users(DataPool(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64), 1))


def test_which_recordings_of_a_person_train_is_drawn_by_the_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def signals(split: tuple[float, ...], seed: int) -> DividedPool:
        asked.append((split, seed))
        return divided()

    monkeypatch.setitem(SIGNALS, "hapt", signals)  # type: ignore[arg-type]
    federation = some_people("hapt", users=4, most=6, seed=3)
    assert asked == [((0.6, 0.2, 0.2), 3)]
    assert federation.clients == 4 and federation.train.sizes.tolist() == [6] * 4


def test_a_configuration_can_name_them() -> None:
    assert {"some_users", "some_people"} <= TESTBEDS.keys()
