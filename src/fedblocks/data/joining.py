"""Several arrays joined into one pool, with the rows that each client has in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fedblocks.core.errors import DataError
from fedblocks.core.fields import Fields
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.data.arrays import FieldInputs, Inputs, as_rows, as_targets
from fedblocks.data.partition import Partition
from fedblocks.data.partitions import alike
from fedblocks.data.rows import Rows

Pair = tuple[Inputs | FieldInputs, Inputs]  # inputs and labels


@dataclass(frozen=True, eq=False)
class Parts:
    """One client's own inputs and labels for each part."""

    train: Pair
    validation: Pair | None = None
    test: Pair | None = None


@dataclass(frozen=True, eq=False)
class Joined:
    """A pool, and the train, validation and test rows of each client in it."""

    x: Tensor
    y: Tensor
    rows: tuple[Rows, Rows, Rows]
    fields: Fields | None  # of an example that has several


def join(
    pairs: Sequence[Pair], owners: Sequence[str], task: Task = CLASSIFICATION
) -> tuple[Tensor, Tensor, list[int], Fields | None]:
    """One pool out of many, where each begins, and the fields of an example that has several."""
    y = [as_targets(pair[1], task) for pair in pairs]
    both = [as_rows(pair[0], len(targets)) for pair, targets in zip(pairs, y, strict=True)]
    x, fields = [inputs for inputs, _ in both], both[0][1]
    for owner, inputs, targets in zip(owners, x, y):
        if len(inputs) != len(targets):
            raise DataError(
                f"{owner}: {len(inputs)} inputs, {len(targets)} labels", "give one label per row"
            )
        if (
            inputs.shape[1:] != x[0].shape[1:]
            or inputs.dtype != x[0].dtype
            or targets.shape[1:] != y[0].shape[1:]
        ):
            here = f"{list(inputs.shape[1:])} {inputs.dtype}"
            elsewhere = f"{list(x[0].shape[1:])} {x[0].dtype}"
            message = f"{owner}: rows are {here}, elsewhere {elsewhere}"
            raise DataError(message, "give all clients rows of one shape and type")
    begins = np.cumsum([0, *(len(targets) for targets in y)]).tolist()
    if any(own != fields for _, own in both):
        raise DataError("the fields of the inputs differ", "give all clients the same fields")
    return torch.cat(x), torch.cat(y), begins, fields


def join_parts(
    clients: Sequence[Parts], names: Sequence[str], task: Task = CLASSIFICATION
) -> Joined:
    """Clients that bring their own arrays, one after the other."""
    if not clients:
        raise DataError("there are no clients", "give at least one")
    parts = [part.name for part in fields(Parts)]
    brought = [
        (part, c)
        for part in parts
        for c, own in enumerate(clients)
        if getattr(own, part) is not None
    ]
    owners = [f"{names[c]} ({part})" for part, c in brought]
    x, y, begins, of_example = join(
        [getattr(clients[c], part) for part, c in brought], owners, task
    )
    stretch = {key: np.arange(a, b) for key, a, b in zip(brought, begins, begins[1:])}
    nothing = np.zeros(0, np.int64)
    train, validation, test = (
        Rows.of([stretch.get((p, c), nothing) for c in range(len(clients))]) for p in parts
    )
    return Joined(x, y, (train, validation, test), of_example)


def join_pools(
    partition: Partition, train: Pair, validation: Pair | None, test: Pair, seed: int
) -> Joined:
    """Official pools: the partition divides the train pool, and the others by the same
    shares of every class.
    """
    pools = [train, validation, test] if validation is not None else [train, test]
    names = ["train pool", "validation pool", "test pool"]
    x, y, begins, of_example = join([pool for pool in pools if pool is not None], names)
    labels = [y[a:b].numpy() for a, b in pairwise(begins)]
    others = [alike(partition, labels[0], other, seed).rows for other in labels[1:]]
    shifted = [rows.renumber(rows.index + begin) for rows, begin in zip(others, begins[1:])]
    middle = shifted[0] if len(shifted) == 2 else Rows.none(len(partition))
    return Joined(x, y, (partition.rows, middle, shifted[-1]), of_example)
