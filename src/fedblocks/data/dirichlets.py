"""The different things that the field calls "Dirichlet", each under a name of its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated

import numpy as np

from fedblocks.core.errors import DataError
from fedblocks.core.options import AtLeast, Help
from fedblocks.core.random import generator
from fedblocks.data.options import Alpha, Clients, MinSize, Seed, Size, Tries, UsedFraction, checked
from fedblocks.data.partition import (
    Labels,
    Partition,
    deal,
    one_label_per_row,
    rows_of_classes,
    share_out,
)
from fedblocks.data.rows import Floats, Ints, Mask

# shares [classes, clients] and rows of each class -> counts
Rounding = Callable[[Floats, Sequence[int]], Ints]


def until_large_enough(draw: Callable[[], Ints], min_size: int, tries: int) -> Ints:
    """Draw counts [classes, clients] until every client has `min_size` rows."""
    smallest = -1
    for _ in range(tries):
        counts = draw()
        smallest = max(smallest, int(counts.sum(0).min()))
        if smallest >= min_size:
            return counts
    fix = "use fewer clients, a larger alpha, or a smaller min_size (0 allows empty clients)"
    raise DataError(f"no draw of {tries} gave every client {min_size} rows (best: {smallest})", fix)


@checked
def dirichlet_labels(
    labels: Labels,
    clients: Clients,
    alpha: Alpha = 0.5,
    seed: int = 0,
    min_size: MinSize = 1,
    tries: Tries = 1000,
) -> Partition:
    """Each class is divided over the clients by its own Dirichlet draw (Yurochkin et al., 2019)."""
    return divide_by_class(
        labels,
        clients,
        alpha=alpha,
        seed=seed,
        min_size=min_size,
        tries=tries,
        whole_rows=share_out_all,
    )


def divide_by_class(
    labels: Labels,
    clients: int,
    *,
    alpha: float,
    seed: int,
    min_size: int,
    tries: int,
    whole_rows: Rounding,
) -> Partition:
    """Each class by its own Dirichlet draw; `whole_rows` turns shares into numbers of rows."""
    values = one_label_per_row(labels)
    rng = generator(seed, "dirichlet_labels")
    classes = rows_of_classes(values, rng)
    sizes = [len(rows) for rows in classes]

    def draw() -> Ints:
        shares = rng.dirichlet(np.full(clients, alpha), len(classes))  # [classes, clients]
        return whole_rows(shares, sizes)

    recipe = {
        "partition": "dirichlet_labels",
        "clients": clients,
        "alpha": alpha,
        "seed": seed,
        "min_size": min_size,
    }
    return Partition(deal(classes, until_large_enough(draw, min_size, tries)), recipe)


def share_out_all(shares: Floats, sizes: Sequence[int]) -> Ints:
    """Whole rows by shares [classes, clients]: each client has as many in all as its
    shares say, within about one.
    """
    counts = np.empty(shares.shape, np.int64)
    owed = np.zeros(shares.shape[1])  # [clients]
    for label, (share, rows) in enumerate(zip(shares, sizes)):
        counts[label], owed = share_out(share, rows, owed)
    return counts


@checked
def dirichlet_capped(
    labels: Labels,
    clients: Clients,
    alpha: Alpha = 0.1,
    seed: int = 0,
    min_size: MinSize = 1,
    tries: Tries = 1000,
) -> Partition:
    """Like dirichlet_labels, but a client that has its even share of all rows gets no
    further class.
    """
    values = one_label_per_row(labels)
    rng = generator(seed, "dirichlet_capped")
    classes = rows_of_classes(values, rng)

    def draw() -> Ints:
        counts = np.zeros((len(classes), clients), np.int64)
        owed = np.zeros(clients)
        for label, rows in enumerate(classes):
            hungry = counts.sum(0) < len(values) / clients
            shares = normalise(rng.dirichlet(np.full(clients, alpha)), hungry)
            counts[label], owed = share_out(shares, len(rows), owed)
        return counts

    recipe = {
        "partition": "dirichlet_capped",
        "clients": clients,
        "alpha": alpha,
        "seed": seed,
        "min_size": min_size,
    }
    return Partition(deal(classes, until_large_enough(draw, min_size, tries)), recipe)


def normalise(weights: Floats, allowed: Mask) -> Floats:
    """Shares over the allowed entries; even shares if their weights have all underflowed to 0."""
    kept = np.where(allowed, weights, 0.0)
    shares: Floats = kept / kept.sum() if kept.sum() > 0 else allowed / allowed.sum()
    return shares


def draw_counts(rng: np.random.Generator, weights: Floats, left: Ints, size: int) -> Ints:
    """Draw `size` things without replacement; a kind that runs out is removed and the
    weights renormalised.
    """
    counts = np.zeros(len(left), np.int64)
    while (missing := size - int(counts.sum())) > 0:  # the law is that of one draw after the other
        extra = rng.multinomial(missing, normalise(weights, counts < left))
        counts = np.minimum(counts + extra, left)
    return counts


def even_size(rows: int, clients: int, size: int | None) -> int:
    """Rows per client; by default as many as there are for everybody."""
    chosen = rows // clients if size is None else size
    if chosen < 1 or chosen * clients > rows:
        message = f"{clients} clients of {chosen} rows from {rows} rows"
        raise DataError(message, "use fewer clients or a smaller size")
    return chosen


@checked
def dirichlet_clients(
    labels: Labels,
    clients: Clients,
    alpha: Alpha = 0.5,
    seed: int = 0,
    size: Size = None,
) -> Partition:
    """Each client draws its own class proportions and takes `size` rows, without
    replacement (Hsu et al., 2019).
    """
    values = one_label_per_row(labels)
    size = even_size(len(values), clients, size)
    rng = generator(seed, "dirichlet_clients")
    classes = rows_of_classes(values, rng)
    left = np.array([len(rows) for rows in classes])
    counts = np.zeros((clients, len(classes)), np.int64)
    for client in range(clients):
        counts[client] = draw_counts(rng, rng.dirichlet(np.full(len(classes), alpha)), left, size)
        left = left - counts[client]
    recipe = {
        "partition": "dirichlet_clients",
        "clients": clients,
        "alpha": alpha,
        "seed": seed,
        "size": size,
    }
    return Partition(deal(classes, counts.T), recipe)


def label_groups(classes: int, clusters: int, shuffler: random.Random) -> list[list[int]]:
    """Shuffled classes in groups as even as can be, the larger ones last."""
    order = list(range(classes))
    shuffler.shuffle(order)
    small, larger = divmod(classes, clusters)
    sizes = [small] * (clusters - larger) + [small + 1] * larger
    edges = np.cumsum([0, *sizes])
    return [order[a:b] for a, b in pairwise(edges)]


@checked
def label_clusters(
    labels: Labels,
    clients: Clients,
    clusters: Annotated[
        int | None, AtLeast(1), Help("groups of classes; default: one per class")
    ] = None,
    alpha: Alpha = 0.4,
    fraction: UsedFraction = 1.0,
    seed: Seed = 12345,
) -> Partition:
    """Groups of classes, each divided over the clients by its own Dirichlet draw
    (test-bed of Marfoq et al., 2021).
    """
    values = one_label_per_row(labels)
    classes = int(values.max()) + 1
    clusters = classes if clusters is None else clusters
    if clusters > classes:
        message = f"{clusters} clusters of {classes} classes"
        raise DataError(message, "use at most one cluster per class")
    # the published test-bed's own generators
    shuffler = random.Random(seed)
    legacy = np.random.RandomState(seed)
    groups = label_groups(classes, clusters, shuffler)
    drawn = shuffler.sample(range(len(values)), int(len(values) * fraction))
    sample = np.array(drawn, dtype=np.int64)
    members = [sample[np.isin(values[sample], group)].tolist() for group in groups]
    for rows in members:
        shuffler.shuffle(rows)
    draws = [
        legacy.multinomial(len(rows), legacy.dirichlet(np.full(clients, alpha))) for rows in members
    ]
    recipe = {
        "partition": "label_clusters",
        "clients": clients,
        "clusters": clusters,
        "alpha": alpha,
        "fraction": fraction,
        "seed": seed,
        "label_groups": groups,
    }
    arrays = [np.array(rows, dtype=np.int64) for rows in members]
    return Partition(deal(arrays, np.stack(draws)), recipe)
