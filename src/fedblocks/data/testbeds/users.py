"""A small federation of some users of a data set: who they are is drawn anew with every seed, and
nobody has more than a few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np

from fedblocks.core.errors import DataError
from fedblocks.core.options import AtLeast, Help
from fedblocks.core.random import generator
from fedblocks.data.federation import Federation
from fedblocks.data.options import checked
from fedblocks.data.pools import DataPool
from fedblocks.data.rows import Ints, Rows
from fedblocks.data.sets.divided import DividedPool
from fedblocks.data.sets.har import hapt, wisdm51_watch

SPLIT = (0.6, 0.2, 0.2)
SIGNALS: Mapping[str, Callable[..., DividedPool]] = {"hapt": hapt, "wisdm51_watch": wisdm51_watch}

Users = Annotated[int, AtLeast(1), Help("how many users are drawn")]
Most = Annotated[int, AtLeast(1), Help("training rows of a user; a third of it for other parts")]
Least = Annotated[
    int, AtLeast(1), Help("training rows that a user must have; a quarter of it in other parts")
]


@checked
def some_users(
    pool: DataPool, users: Users = 50, most: Most = 80, least: Least = 20, seed: int = 0
) -> Federation:
    """Users drawn at random; their parts as the data set has them, else 60, 20 and 20 % at random.

    Rows beyond `most` are left out evenly over a user's rows, in whose order they stay.
    """
    if isinstance(pool, DividedPool):
        everybody = pool.federation()
    elif pool.users is None:
        raise DataError("the data set has no user ids", "choose a data set that has them")
    else:
        options: dict[str, Any] = {"classes": pool.classes, "about": pool.about}
        everybody = Federation.from_users(
            pool.x, pool.y, pool.users, split=SPLIT, seed=seed, **options
        )
    return thin_rows(draw_users(everybody, users, least, seed), most)


@checked
def some_people(
    signals: Annotated[Literal["hapt", "wisdm51_watch"], Help("the data set")] = "hapt",
    users: Users = 30,
    most: Most = 120,
    least: Least = 20,
    seed: int = 0,
) -> Federation:
    """People drawn at random; which of their recordings train, validate and test is drawn, too."""
    pool = SIGNALS[signals](split=SPLIT, seed=seed)
    return thin_rows(draw_users(pool.federation(), users, least, seed), most)


def draw_users(everybody: Federation, users: int, least: int, seed: int) -> Federation:
    """Some of the users that have enough rows in every part, in the order of the data set."""
    others = -(-least // 4)  # rounded up
    enough = (everybody.train.sizes >= least) & (everybody.test.sizes >= others)
    candidates = np.flatnonzero(enough & (everybody.validation.sizes >= others))
    if len(candidates) < users:
        message = f"{len(candidates)} users have {least} training rows and {others} in other parts"
        raise DataError(f"{message}, fewer than {users}", "ask for fewer users, or fewer rows")
    drawn = generator(seed, "some_users").choice(candidates, users, replace=False)
    return everybody.subset(np.sort(drawn))


def thin_rows(federation: Federation, most: int) -> Federation:
    """At most so many training rows of everybody, and a third of it in the other parts."""
    limits = {"train": most, "validation": -(-most // 3), "test": -(-most // 3)}
    parts: dict[str, Any] = {
        part: Rows.of([spread_out(own, limits[part]) for own in rows])
        for part, rows in federation.parts.items()
    }
    return replace(federation, **parts).compact()


def spread_out(rows: Ints, most: int) -> Ints:
    """At most so many of some rows, evenly from the first to the last."""
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)]
