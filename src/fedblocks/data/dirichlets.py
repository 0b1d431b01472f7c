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
from fedblocks.data.options import Alpha, CoarseAlpha, FineAlpha, MinSize, Size, Tries, UsedFraction
from fedblocks.data.partition import (
    Labels,
    Partition,
    deal,
    one_label_per_row,
    positive,
    rows_of_classes,
    share_out,
)
from fedblocks.data.rows import Floats, Ints, Mask, Rows

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


def dirichlet_labels(
    labels: Labels,
    clients: int,
    alpha: Alpha = 0.5,
    seed: int = 0,
    min_size: MinSize = 1,
    tries: Tries = 1000,
) -> Partition:
    """Each class is divided over the clients by its own Dirichlet draw (Yurochkin et al., 2019)."""
    return divide_by_class(labels, clients, alpha, seed, min_size, tries, share_out_all)


def divide_by_class(
    labels: Labels,
    clients: int,
    alpha: float,
    seed: int,
    min_size: int,
    tries: int,
    rounded: Rounding,
) -> Partition:
    """Each class by its own Dirichlet draw; `rounded` turns shares into whole rows."""
    values = one_label_per_row(labels)
    positive(clients=clients, alpha=alpha, tries=tries)
    rng = generator(seed, "dirichlet_labels")
    classes = rows_of_classes(values, rng)
    sizes = [len(rows) for rows in classes]

    def draw() -> Ints:
        # [classes, clients]
        return rounded(rng.dirichlet(np.full(clients, alpha), len(classes)), sizes)

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
    counts, owed = np.zeros(shares.shape, np.int64), np.zeros(shares.shape[1])
    for label, (share, rows) in enumerate(zip(shares, sizes)):
        counts[label], owed = share_out(share, rows, owed)
    return counts


def dirichlet_capped(
    labels: Labels,
    clients: int,
    alpha: Alpha = 0.1,
    seed: int = 0,
    min_size: MinSize = 1,
    tries: Tries = 1000,
) -> Partition:
    """Like dirichlet_labels, but a client that has its even share of all rows gets no
    further class.
    """
    values = one_label_per_row(labels)
    positive(clients=clients, alpha=alpha, tries=tries)
    rng = generator(seed, "dirichlet_capped")
    classes = rows_of_classes(values, rng)

    def draw() -> Ints:
        counts, owed = np.zeros((len(classes), clients), np.int64), np.zeros(clients)
        for label, rows in enumerate(classes):
            hungry = counts.sum(0) < len(values) / clients
            shares = normalised(rng.dirichlet(np.full(clients, alpha)), hungry)
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


def normalised(weights: Floats, allowed: Mask) -> Floats:
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
        extra = rng.multinomial(missing, normalised(weights, counts < left))
        counts = np.minimum(counts + extra, left)
    return counts


def even_size(rows: int, clients: int, size: int | None) -> int:
    """Rows per client; by default as many as there are for everybody."""
    positive(clients=clients)
    chosen = rows // clients if size is None else size
    if chosen < 1 or chosen * clients > rows:
        raise DataError(
            f"{clients} clients of {chosen} rows from {rows} rows",
            "use fewer clients or a smaller size",
        )
    return chosen


def dirichlet_clients(
    labels: Labels,
    clients: int,
    alpha: Alpha = 0.5,
    seed: int = 0,
    size: Size = None,
) -> Partition:
    """Each client draws its own class proportions and takes `size` rows, without
    replacement (Hsu et al., 2019).
    """
    values = one_label_per_row(labels)
    positive(alpha=alpha)
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


def label_clusters(
    labels: Labels,
    clients: int,
    clusters: Annotated[
        int | None, AtLeast(1), Help("groups of classes; default: one per class")
    ] = None,
    alpha: Alpha = 0.4,
    fraction: UsedFraction = 1.0,
    seed: int = 12345,
) -> Partition:
    """Groups of classes, each divided over the clients by its own Dirichlet draw
    (test-bed of Marfoq et al., 2021).
    """
    values = one_label_per_row(labels)
    classes = int(values.max()) + 1
    clusters = classes if clusters is None else clusters
    positive(clients=clients, alpha=alpha, fraction=fraction, clusters=clusters)
    if clusters > classes or fraction > 1 or seed < 0:
        message = f"{clusters} clusters of {classes} classes, fraction {fraction}, seed {seed}"
        raise DataError(
            message,
            "use at most one cluster per class, a fraction up to 1, and a seed of 0 or more",
        )
    # the published test-bed's own generators
    shuffler, legacy = random.Random(seed), np.random.RandomState(seed)
    groups = label_groups(classes, clusters, shuffler)
    sample = np.array(
        shuffler.sample(range(len(values)), int(len(values) * fraction)), dtype=np.int64
    )
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
    }
    recipe |= {"fraction": fraction, "seed": seed, "label_groups": groups}
    return Partition(
        deal([np.array(rows, dtype=np.int64) for rows in members], np.stack(draws)), recipe
    )


def pachinko(
    labels: Labels,
    coarse: Labels,
    clients: int,
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
    positive(alpha=alpha, beta=beta)
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
        raise DataError(
            f"{len(fine)} fine labels but {len(coarse)} coarse ones",
            "give one coarse label per row",
        )
    parent = np.zeros(int(fine.max()) + 1, np.int64)
    parent[fine] = coarse
    if (parent[fine] != coarse).any():
        raise DataError(
            "a fine label has two coarse labels", "each fine label belongs to one coarse label"
        )
    return parent
