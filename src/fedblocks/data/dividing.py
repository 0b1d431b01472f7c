"""How a pool is divided: what may be given as a partition, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
from torch import Tensor

from fedblocks.core.errors import DataError
from fedblocks.data.partition import Partition, listed
from fedblocks.data.rows import Ints

# the row numbers of each client, by name or in turn
Listed = Sequence[npt.ArrayLike] | Mapping[str, npt.ArrayLike]
# A partition, a function of the labels that makes one, or simply the row numbers of each client.
How = Partition | Callable[[Ints], Partition] | Listed


def rows_of(values: Any) -> int:
    """The length of an array, a tensor or a list."""
    return len(values) if hasattr(values, "__len__") else 0


def partition_of(partition: How, y: Tensor) -> Partition:
    """The partition of this pool; it must not name rows that the pool does not have."""
    clients = partition(y.numpy()) if callable(partition) else partition
    division = clients if isinstance(clients, Partition) else listed(clients)
    if len(division.rows.index) and int(division.rows.index.max()) >= len(y):
        message = f"the partition names row {division.rows.index.max()}, the pool has {len(y)} rows"
        raise DataError(message, "make the partition from the labels of this pool")
    return division


def recipe_of(partition: Partition) -> dict[str, Any]:
    """What a run records of a partition."""
    return {"partition": partition.recipe, "partition_hash": partition.hash()}


def count_classes(y: Tensor, classes: int | None) -> int:
    """The number of classes as given, or from the largest label."""
    return classes if classes is not None else int(y.max()) + 1 if len(y) else 1
