"""The image clients of ModFL: nine classes that CIFAR-10 and STL-10 have in common, in
groups round a circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.options import AtLeast, Help
from fedblocks.core.random import generator
from fedblocks.data.federation import Federation
from fedblocks.data.options import checked
from fedblocks.data.partition import rows_of_classes
from fedblocks.data.pools import DataPool
from fedblocks.data.rows import Ints
from fedblocks.data.sets.cyclic import cyclic
from fedblocks.data.storage import content_hash
from fedblocks.data.testbeds.parts import labels_of, rows_hash

# airplane, car, bird, cat, deer, dog, horse, ship, truck, as each data set numbers them; frog and
# monkey are left out
COMMON = {"cifar10": (0, 1, 2, 3, 4, 5, 7, 8, 9), "stl10": (0, 2, 1, 3, 4, 5, 6, 8, 9)}
PER_LABEL = 1300  # images of each class and data set
TRAIN = 0.75  # share of them


@checked
def modfl_images(
    pool: DataPool,
    clients: Annotated[
        int, AtLeast(1), Help("of this data set; the paper's N is twice as many")
    ] = 36,
    per_group: Annotated[int, AtLeast(1), Help("classes of a group")] = 3,
    per_label: Annotated[int, AtLeast(1), Help("images of each class")] = PER_LABEL,
    skip: Annotated[
        int,
        AtLeast(0),
        Help(
            "images of each class to leave out first, as when another data set is made from the "
            "same images"
        ),
    ] = 0,
    seed: int = 0,
) -> Federation:
    """One of the two image sets over clients in nine groups of classes; the tag
    `operation` is a client's group.
    """
    known = COMMON.get(str(pool.about.get("name")))
    if known is None:
        raise DataError(
            f"the nine common classes of {pool.about.get('name')} are not known",
            "use cifar10 or stl10",
        )
    own = sample(pool, known, per_label, skip, seed)
    return modfl_clients(own, clients, per_group, seed)


def modfl_clients(pool: DataPool, clients: int, per_group: int, seed: int = 0) -> Federation:
    """A pool with equally many rows of each label over clients in groups, three
    quarters of each label for training.
    """
    drawn = rows_of_classes(labels_of(pool), generator(seed, "modfl_split"))
    cuts = [int(TRAIN * len(rows)) for rows in drawn]
    train = np.concatenate([rows[:cut] for rows, cut in zip(drawn, cuts)])
    test = np.concatenate([rows[cut:] for rows, cut in zip(drawn, cuts)])
    federation = cyclic(pairs(pool, train), pairs(pool, test), clients, per_group, seed)
    about = {**pool.about, **federation.about, "testbed": "modfl", "seed": seed}
    parts_hash = rows_hash(federation.train, federation.validation, federation.test)
    return replace(federation, about={**about, "partition_hash": parts_hash})


def pairs(pool: DataPool, rows: Ints) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels of some rows."""
    chosen = torch.from_numpy(rows)
    return pool.x[chosen], pool.y[chosen]


def sample(
    pool: DataPool, labels: Sequence[int], per_label: int, skip: int = 0, seed: int = 0
) -> DataPool:
    """`per_label` random rows of each of some labels, which become 0, 1, 2, ...; `skip`
    leaves out the first drawn.
    """
    rows = rows_of_classes(labels_of(pool), generator(seed, "modfl_sample"))
    short = [label for label in labels if label >= len(rows) or len(rows[label]) < skip + per_label]
    if short:
        message = f"label {short[0]} has fewer than {skip + per_label} rows"
        raise DataError(message, "use a smaller number of rows per label, or a larger data set")
    chosen = np.concatenate([rows[label][skip : skip + per_label] for label in labels])
    about = {
        **pool.about,
        "labels": list(labels),
        "per_label": per_label,
        "skip": skip,
        "train_rows": 0,
    }
    about["sample_hash"] = content_hash(rows=chosen)  # which rows of the whole pool these are
    y = torch.arange(len(labels)).repeat_interleave(per_label)
    return DataPool(pool.x[torch.from_numpy(chosen)], y, len(labels), about=about)
