"""Ways to divide a pool of rows over clients, and the table of all of them by name."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt

from fedblocks.core.errors import DataError
from fedblocks.core.options import AtLeast, Help, Positive
from fedblocks.core.random import generator
from fedblocks.data.dirichlets import (
    dirichlet_capped,
    dirichlet_clients,
    dirichlet_labels,
    label_clusters,
    until_large_enough,
)
from fedblocks.data.options import ClassesEach, Clients, High, Low, MinSize, Tries, checked
from fedblocks.data.pachinko import pachinko
from fedblocks.data.partition import (
    Labels,
    Partition,
    PartitionFunction,
    count_rows,
    cut,
    cut_all,
    deal,
    one_label_per_row,
    rows_of_classes,
)
from fedblocks.data.rows import Floats, Ints, Rows, starts
from fedblocks.data.user_ids import user_ids


def enough(rows: int, clients: int, per_client: int = 1) -> None:
    """Refuse more clients than there are rows for."""
    if clients * per_client > rows:
        message = f"{clients} clients x {per_client} need more than {rows} rows"
        raise DataError(message, "use fewer clients")


@checked
def iid(labels: Labels, clients: Clients, seed: int = 0) -> Partition:
    """Shuffle all rows and divide them evenly."""
    rows = count_rows(labels)
    enough(rows, clients)
    order = generator(seed, "iid").permutation(rows)
    sizes = rows // clients + (np.arange(clients) < rows % clients)
    recipe = {"partition": "iid", "clients": clients, "seed": seed}
    return Partition(Rows(order, starts(sizes)), recipe)


@checked
def shards(
    labels: Labels,
    clients: Clients,
    per_client: Annotated[int, AtLeast(1), Help("shards of each client", usual="2")] = 2,
    seed: int = 0,
) -> Partition:
    """Sort rows by label, cut them into clients x per_client shards, give each client
    some (McMahan et al., 2017).
    """
    values = one_label_per_row(labels)
    enough(len(values), clients, per_client)
    rng = generator(seed, "shards")
    shuffled = rng.permutation(len(values))
    ordered = shuffled[np.argsort(values[shuffled], kind="stable")]
    pieces = np.array_split(ordered, clients * per_client)
    hands = rng.permutation(len(pieces)).reshape(clients, per_client)
    rows = Rows.of([np.concatenate([pieces[shard] for shard in hand]) for hand in hands])
    recipe = {"partition": "shards", "clients": clients, "per_client": per_client, "seed": seed}
    return Partition(rows, recipe)


@checked
def quantity(
    labels: Labels,
    clients: Clients,
    alpha: Annotated[
        float,
        Positive(),
        Help("of the Dirichlet draw of sizes: smaller is more unequal", usual="0.1 to 10"),
    ] = 0.5,
    seed: int = 0,
    min_size: MinSize = 1,
    tries: Tries = 1000,
) -> Partition:
    """Client sizes from one Dirichlet draw; labels are alike everywhere."""
    rows = count_rows(labels)
    enough(rows, clients, max(min_size, 1))
    rng = generator(seed, "quantity")
    order = rng.permutation(rows)
    draw = lambda: cut(rng.dirichlet(np.full(clients, alpha)), rows)[None]  # [1, clients]
    counts = until_large_enough(draw, min_size, tries)
    recipe = {
        "partition": "quantity",
        "clients": clients,
        "alpha": alpha,
        "seed": seed,
        "min_size": min_size,
    }
    return Partition(deal([order], counts), recipe)


@checked
def quantity_power(
    labels: Labels,
    clients: Clients,
    exponent: Annotated[
        float, Positive(), Help("how fast sizes fall: larger is more unequal", usual="1")
    ] = 1.0,
    seed: int = 0,
    min_size: MinSize = 1,
) -> Partition:
    """The r-th largest client has a size in proportion to r ** -exponent, beyond
    `min_size`; labels are alike.
    """
    rows = count_rows(labels)
    enough(rows, clients, max(min_size, 1))
    rng = generator(seed, "quantity_power")
    weights = rng.permutation(np.arange(1, clients + 1) ** -float(exponent))
    counts = min_size + cut(weights / weights.sum(), rows - clients * min_size)
    recipe = {"partition": "quantity_power", "clients": clients, "exponent": exponent, "seed": seed}
    return Partition(deal([rng.permutation(rows)], counts[None]), {**recipe, "min_size": min_size})


def by_user(users: npt.ArrayLike) -> Partition:
    """One client per user id, named after it."""
    ids = user_ids(users)
    names, owner = np.unique(ids, return_inverse=True)
    recipe = {"partition": "by_user", "clients": len(names)}
    return Partition(Rows.by_owner(owner, len(names)), recipe, tuple(str(name) for name in names))


@checked
def classes(
    labels: Labels,
    clients: Clients,
    per_client: ClassesEach = 2,
    seed: int = 0,
) -> Partition:
    """Each client holds `per_client` classes, each class has equally many holders, who share it
    equally.

    What does not divide evenly is left out, so that holders of a class hold the same number of
    rows.
    """
    values = one_label_per_row(labels)
    rng = generator(seed, "classes")
    pools = rows_of_classes(values, rng)
    # [classes, clients] of 0 and 1
    holders = balanced_holders(rng, clients, len(pools), per_client)
    each = np.array([len(rows) for rows in pools]) // np.maximum(holders.sum(1), 1)
    recipe = {"partition": "classes", "clients": clients, "per_client": per_client, "seed": seed}
    return Partition(deal(pools, holders * each[:, None]), recipe)


def balanced_holders(rng: np.random.Generator, clients: int, classes: int, per_client: int) -> Ints:
    """Which client holds which class: `per_client` each, and all classes equally often,
    or some once more.
    """
    if per_client > classes:
        message = f"{per_client} classes per client, but there are {classes}"
        raise DataError(message, "lower per_client")
    base, more = divmod(clients * per_client, classes)
    # holders still to be found for each class
    left = base + (rng.permutation(classes) < more).astype(np.int64)
    holders = np.zeros((classes, clients), np.int64)
    for client in range(clients):
        # the smallest: drawn in proportion to `left`
        keys = rng.exponential(size=classes) / np.maximum(left, 1e-9)
        # must be held by every client from here on, or it cannot be dealt out
        keys[left == clients - client] = -1
        holders[np.argsort(keys)[:per_client], client] = 1
        left = left - holders[:, client]
    return holders


@checked
def classes_unequal(
    labels: Labels,
    clients: Clients,
    per_client: ClassesEach = 20,
    low: Low = 0.3,
    high: High = 0.7,
    seed: int = 0,
) -> Partition:
    """Each client draws `per_client` classes freely; the holders of a class share it by
    weights from U(low, high).
    """
    values = one_label_per_row(labels)
    rng = generator(seed, "classes_unequal")
    pools = rows_of_classes(values, rng)
    if per_client > len(pools) or low > high:
        message = f"{per_client} of {len(pools)} classes, weights {low} to {high}"
        raise DataError(message, "lower per_client or low")
    weights = np.zeros((len(pools), clients))
    for client in range(clients):
        drawn = rng.uniform(low, high, per_client)
        weights[rng.choice(len(pools), per_client, replace=False), client] = drawn
    # a class that nobody holds is unused
    shares: Floats = weights / np.maximum(weights.sum(1, keepdims=True), low)
    counts = cut_all(shares, [len(rows) for rows in pools])
    recipe = {
        "partition": "classes_unequal",
        "clients": clients,
        "per_client": per_client,
        "low": low,
        "high": high,
        "seed": seed,
    }
    return Partition(deal(pools, counts), recipe)


@checked
def grouped_labels(
    labels: Labels,
    groups: Annotated[npt.ArrayLike, Help("the group of each client")],
    alpha: Annotated[
        float,
        Positive(),
        Help("of the Dirichlet draw between groups: smaller is more skewed", usual="0.1 to 1"),
    ] = 0.5,
    seed: int = 0,
    min_size: MinSize = 1,
    tries: Tries = 1000,
) -> Partition:
    """Label skew between groups of clients: a Dirichlet draw divides each class over
    groups, evenly inside one.
    """
    # [clients]: the group of each
    _, group = np.unique(_group_numbers(groups), return_inverse=True)
    sizes = np.bincount(group)
    base = dirichlet_labels(labels, len(sizes), alpha, seed, min_size * int(sizes.max()), tries)
    rng = generator(seed, "grouped_labels")
    pieces = [
        np.array_split(rng.permutation(rows), max(size, 1)) for rows, size in zip(base.rows, sizes)
    ]
    hands = [pieces[g].pop() for g in group]
    recipe = {
        **base.recipe,
        "partition": "grouped_labels",
        "clients": len(group),
        "groups": group.tolist(),
    }
    return Partition(Rows.of(hands), {**recipe, "min_size": min_size})


def _group_numbers(groups: npt.ArrayLike) -> Ints:
    """The group of each client as it was given; their number alone does not say who is in which."""
    array = np.asarray(groups)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iub":
        fix = (
            "give a whole number for each client, [0, 0, 1, ...]; hidden_groups(clients, 2) draws "
            "two groups"
        )
        raise DataError(f"groups = {groups!r:.60} is not the group of each client", fix)
    return array.astype(np.int64)


def alike(partition: Partition, labels: Labels, other_labels: Labels, seed: int = 0) -> Partition:
    """Divide another pool (validation, test) so that each client gets the same share of
    every class as it has here.
    """
    here, other = one_label_per_row(labels), one_label_per_row(other_labels)
    kinds = int(max(here.max(), other.max())) + 1
    pairs = here[partition.rows.index] * len(partition) + partition.rows.owners
    # [classes, clients]
    held = np.bincount(pairs, minlength=kinds * len(partition)).reshape(kinds, -1)
    shares = held / np.maximum(np.bincount(here, minlength=kinds), 1)[:, None]
    pools = rows_of_classes(other, generator(seed, "alike"))
    counts = cut_all(shares, [len(rows) for rows in pools])
    return Partition(deal(pools, counts), {**partition.recipe, "alike_seed": seed}, partition.names)


PARTITIONS: dict[str, PartitionFunction] = {
    "iid": iid,
    "dirichlet_labels": dirichlet_labels,
    "dirichlet_clients": dirichlet_clients,
    "dirichlet_capped": dirichlet_capped,
    "label_clusters": label_clusters,
    "pachinko": pachinko,
    "classes": classes,
    "classes_unequal": classes_unequal,
    "shards": shards,
    "quantity": quantity,
    "quantity_power": quantity_power,
    "by_user": by_user,
    "grouped_labels": grouped_labels,
}
