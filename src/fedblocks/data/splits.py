"""Divide every client's rows into train, validation and test, all clients at once."""

from __future__ import annotations

import numpy as np

from fedblocks.core.errors import DataError
from fedblocks.core.random import generator
from fedblocks.data.rows import Floats, Ints, Rows

Parts = tuple[Rows, Rows, Rows]
Fractions = tuple[float, float, float]  # train, validation, test


def split_rows(rows: Rows, fractions: Fractions, seed: int) -> Parts:
    """A random split of each client's rows."""
    return cut_parts(rows, generator(seed, "split").random(len(rows.index)), fractions)


def split_rows_stratified(rows: Rows, labels: Ints, fractions: Fractions, seed: int) -> Parts:
    """A random split in which each client's parts have its own label proportions, as
    far as rounding allows.
    """
    if labels.ndim != 1:
        raise DataError(
            "a stratified split needs one label per row", "use stratified=False for sequences"
        )
    rng = generator(seed, "split_stratified")
    shuffled = rng.permutation(len(rows.index))
    # one number per (client, label)
    kind = rows.owners * (labels.max(initial=0) + 1) + labels[rows.index]
    order = shuffled[np.argsort(kind[shuffled], kind="stable")]
    _, group, sizes = np.unique(kind[order], return_inverse=True, return_counts=True)
    # place within its (client, label)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    place = np.empty(len(order))
    # every label is spread evenly over [0, 1)
    place[order] = (rank + rng.random(len(sizes))[group]) / sizes[group]
    return cut_parts(rows, place, fractions)


def cut_parts(rows: Rows, place: Floats, fractions: Fractions) -> Parts:
    """Order each client's rows by place and cut them into the three parts."""
    order = np.lexsort((place, rows.owners))
    position = np.arange(len(order)) - np.repeat(rows.offsets[:-1], rows.sizes)
    train, validation = (
        np.repeat(count, rows.sizes) for count in part_sizes(rows.sizes, fractions)
    )
    sorted_rows = rows.renumber(rows.index[order])
    return (
        sorted_rows.where(position < train),
        sorted_rows.where((position >= train) & (position < train + validation)),
        sorted_rows.where(position >= train + validation),
    )


def part_sizes(sizes: Ints, fractions: Fractions) -> tuple[Ints, Ints]:
    """Train and validation rows of each client; two rows are enough for a train and a test row."""
    if (
        len(fractions) != 3
        or min(fractions) < 0
        or abs(sum(fractions) - 1) > 1e-6
        or fractions[0] == 0
    ):
        raise DataError(
            f"split is {fractions}, not three shares that add up to 1",
            "give shares for train (above 0), validation and test, such as (0.7, 0.1, 0.2)",
        )
    test = np.floor(sizes * fractions[2] + 0.5).astype(np.int64)
    test = np.minimum(np.maximum(test, int(fractions[2] > 0)), np.maximum(sizes - 1, 0))
    validation = np.minimum(
        np.floor(sizes * fractions[1] + 1e-9).astype(np.int64), np.maximum(sizes - test - 1, 0)
    )
    return sizes - test - validation, validation
