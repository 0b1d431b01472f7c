"""Pachinko allocation: clients that draw coarse labels, and fine labels within them."""

from __future__ import annotations

import numpy as np

from fedblocks.core.errors import DataError
from fedblocks.core.random import generator
from fedblocks.data.dirichlets import draw_counts, even_size
from fedblocks.data.options import Clients, CoarseAlpha, FineAlpha, Size, checked
from fedblocks.data.partition import Labels, Partition, deal, one_label_per_row, rows_of_classes
from fedblocks.data.rows import Ints, Rows


@checked
def pachinko(
    labels: Labels,
    coarse: Labels,
    clients: Clients,
    *,
    alpha: CoarseAlpha = 0.4,
    beta: FineAlpha = 10.0,
    seed: int = 0,
    size: Size = None,
) -> Partition:
    """Each client draws proportions of coarse labels and, within each, of fine labels
    (Li & McCallum, 2006).
    """
    fine = one_label_per_row(labels)
    parent = parents(fine, one_label_per_row(coarse))  # [classes]
    size = even_size(len(fine), clients, size)
    rng = generator(seed, "pachinko")
    classes = rows_of_classes(fine, rng)
    left = np.array([len(rows) for rows in classes])
    counts = np.zeros((clients, len(classes)), np.int64)
    for client in range(clients):
        counts[client] = pachinko_client(rng, left, parent, alpha, beta, size)
        left = left - counts[client]
    recipe = {
        "partition": "pachinko",
        "clients": clients,
        "alpha": alpha,
        "beta": beta,
        "seed": seed,
        "size": size,
    }
    return Partition(deal(classes, counts.T), recipe)


def pachinko_client(
    rng: np.random.Generator, left: Ints, parent: Ints, alpha: float, beta: float, size: int
) -> Ints:
    """How many rows of each class one client takes."""
    coarse_left = np.bincount(parent, left).astype(np.int64)
    taken = draw_counts(rng, rng.dirichlet(np.full(len(coarse_left), alpha)), coarse_left, size)
    counts = np.zeros(len(left), np.int64)
    for group, kinds in enumerate(Rows.by_owner(parent, len(coarse_left))):
        if taken[group]:
            weights = rng.dirichlet(np.full(len(kinds), beta))
            counts[kinds] = draw_counts(rng, weights, left[kinds], int(taken[group]))
    return counts


def parents(fine: Ints, coarse: Ints) -> Ints:
    """The one coarse label of each fine label."""
    if len(fine) != len(coarse):
        message = f"{len(fine)} fine labels but {len(coarse)} coarse ones"
        raise DataError(message, "give one coarse label per row")
    parent = np.zeros(int(fine.max()) + 1, np.int64)
    parent[fine] = coarse
    if (parent[fine] != coarse).any():
        fix = "each fine label belongs to one coarse label"
        raise DataError("a fine label has two coarse labels", fix)
    return parent
