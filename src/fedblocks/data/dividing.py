"""How a pool is divided: what may be given as a partition, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from torch import Tensor

from fedblocks.core.errors import DataError, count_of
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.data.array_kinds import refuse_iterator
from fedblocks.data.arrays import (
    FieldInputs,
    Inputs,
    about_fields,
    as_rows,
    as_targets,
    name_targets,
    warn_of_lost_digits,
)
from fedblocks.data.field_bytes import about_bytes, bytes_as_they_are
from fedblocks.data.partition import Partition, partition_from_lists
from fedblocks.data.rows import Ints, same_length
from fedblocks.data.splits import Fractions, Parts, split_rows, split_rows_stratified
from fedblocks.data.streaming import is_in_file, share_file

# the row numbers of each client, by name or in turn
Listed = Sequence[npt.ArrayLike] | Mapping[str, npt.ArrayLike]
# A partition, a function of the labels that makes one, or simply the row numbers of each client.
How = Partition | Callable[[Ints], Partition] | Listed


def rows_of(values: Any) -> int:
    """The length of an array, a tensor or a list; of several fields, of the first."""
    if values is None:
        raise DataError("x, y or users are None", "give an array with an entry for each row")
    if isinstance(values, Mapping):
        return rows_of(next(iter(values.values()), []))
    return len(values) if hasattr(values, "__len__") else 0


def partition_of(partition: How, y: Tensor) -> Partition:
    """The partition of this pool; it must not name rows that the pool does not have."""
    clients = partition(y.numpy()) if callable(partition) else partition
    division = clients if isinstance(clients, Partition) else partition_from_lists(clients)
    if len(division.rows.index) and int(division.rows.index.max()) >= len(y):
        last = division.rows.index.max()
        message = f"the partition names row {last}, the pool has {count_of(len(y), 'row')}"
        raise DataError(message, "make the partition from the labels of this pool")
    return division


@dataclass(frozen=True, eq=False)
class Divided:
    """A pool, and who trains, validates and tests on which of its rows."""

    x: Tensor
    y: Tensor
    parts: Parts
    names: Sequence[str]
    recipe: dict[str, Any]
    streamed: bool  # the inputs stay in their file


def divide(
    pool: tuple[Inputs | FieldInputs, Inputs],
    task: Task,
    partition: How,
    split: Fractions,
    seed: int,
    stratified: bool,
) -> Divided:
    """Divide a pool over clients, and each client's rows into train, validation and test."""
    for name, values in zip("xy", pool):
        refuse_iterator(values, name)
    numbered, words = name_targets(pool[1], task)
    targets = as_targets(numbered, task)
    streamed = is_in_file(pool[0])
    if streamed:
        warn_of_lost_digits(pool[0])
    inputs, fields = (share_file(pool[0]), None) if streamed else as_rows(pool[0], len(targets))
    same_length(x=len(inputs), y=len(targets))
    division = partition_of(partition, targets)
    if stratified and not task.of_classes:
        raise DataError(f"a stratified split needs classes, not {task.kind}", "leave it out")
    if stratified:
        parts = split_rows_stratified(division.rows, targets.numpy(), split, seed)
    else:
        parts = split_rows(division.rows, split, seed)
    how_split = {"split": list(split), "split_seed": seed, "stratified": stratified}
    recipe = {**recipe_of(division), **how_split}
    recipe |= {**about_fields(fields), **about_bytes(bytes_as_they_are(pool[0], len(targets)))}
    recipe |= {"class_names": words} if words else {}
    return Divided(inputs, targets, parts, division.names, recipe, streamed)


def recipe_of(partition: Partition) -> dict[str, Any]:
    """What a run records of a partition."""
    return {"partition": partition.recipe, "partition_hash": partition.hash()}


def count_classes(y: Tensor, classes: int | None, task: Task = CLASSIFICATION) -> int:
    """The number of classes as given, or from the largest label; of other tasks, of outputs."""
    if not task.of_classes:
        return int(y.shape[-1])
    if classes is not None:
        return classes
    return int(y.max()) + 1 if len(y) else 1
