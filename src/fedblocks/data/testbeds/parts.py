"""Federations over one pool, with rows that were chosen beforehand for each part."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedblocks.core.errors import DataError
from fedblocks.data.federation import Federation
from fedblocks.data.partition import one_label_per_row
from fedblocks.data.pools import DataPool
from fedblocks.data.rows import Ints, Rows
from fedblocks.data.storage import content_hash


def labels_of(pool: DataPool) -> Ints:
    """One label per row of a pool."""
    return one_label_per_row(pool.y)


def official_parts(pool: DataPool) -> tuple[Ints, Ints]:
    """The official training and test rows of a pool that holds both."""
    train = int(pool.about.get("train_rows", 0))
    if not 0 < train < len(pool.y):
        fix = 'load the data set with part = "all", from files that hold both parts'
        raise DataError(f"the pool has {train} official training rows of {len(pool.y)}", fix)
    return np.arange(train), np.arange(train, len(pool.y))


def federation_of(
    pool: DataPool,
    train: Rows,
    test: Rows,
    recipe: dict[str, Any],
    validation: Rows | None = None,
    names: tuple[str, ...] = (),
) -> Federation:
    """A checked federation over a pool, with the hash of who holds which rows."""
    kept = validation if validation is not None else Rows.none(len(train))
    about = {**pool.about, **recipe, "partition_hash": rows_hash(train, kept, test)}
    return Federation(pool.x, pool.y, train, kept, test, pool.classes, names, {}, about).check()


def rows_hash(*parts: Rows) -> str:
    """SHA-256 of who holds which rows in the train, validation and test part."""
    arrays = {
        f"{place}_{kind}": getattr(rows, kind)
        for place, rows in enumerate(parts)
        for kind in ("index", "offsets")
    }
    return content_hash(**arrays)
