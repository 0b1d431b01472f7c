"""The settings of pFedMB on CIFAR: every client has the same shares of each class in
all its parts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import numpy as np

from fedblocks.core.errors import DataError
from fedblocks.core.options import AtLeast, Help
from fedblocks.core.random import derive, generator
from fedblocks.data.dirichlets import divide_by_class
from fedblocks.data.federation import Federation
from fedblocks.data.options import Alpha, ClassesEach, Clients, Fraction, High, Low, Tries, checked
from fedblocks.data.partition import Partition, cut_all, deal, rows_of_classes
from fedblocks.data.partitions import alike, classes, classes_unequal
from fedblocks.data.pools import DataPool
from fedblocks.data.rows import Ints
from fedblocks.data.testbeds.parts import federation_of, labels_of, official_parts

VALIDATION = 0.2  # share of the official training rows, the same of every class


@checked
def pfedmb_two_classes(
    pool: DataPool,
    clients: Clients = 15,
    per_client: ClassesEach = 2,
    fraction: Fraction = 1.0,
    seed: int = 0,
) -> Federation:
    """Two random classes per client, all classes held equally often, holders share a
    class equally.
    """
    draw = lambda labels: classes(labels, clients, per_client, seed)
    return alike_in_all_parts(pool, draw, seed, fraction)


@checked
def pfedmb_dirichlet(
    pool: DataPool,
    clients: Clients = 15,
    *,
    alpha: Alpha = 0.4,
    seed: int = 0,
    min_size: Annotated[int, AtLeast(0), Help("training rows that everybody has")] = 10,
    tries: Tries = 100,
    fraction: Fraction = 1.0,
) -> Federation:
    """A Dirichlet draw per class, again until everybody has `min_size` training rows
    and a test row.
    """
    for attempt in range(tries):
        divide = partial(
            divide_by_class,
            clients=clients,
            alpha=alpha,
            seed=derive(seed, "pfedmb", attempt),
            min_size=min_size,
            tries=1000,
            whole_rows=cut_all,
        )
        federation = alike_in_all_parts(pool, divide, seed, fraction)
        if federation.test.sizes.min() >= 1:
            return federation
    raise DataError(
        f"no draw of {tries} gave every client a test row", "use fewer clients or a larger alpha"
    )


@checked
def pfedmb_twenty_classes(
    pool: DataPool,
    clients: Clients = 15,
    *,
    per_client: ClassesEach = 20,
    low: Low = 0.3,
    high: High = 0.7,
    fraction: Fraction = 1.0,
    seed: int = 0,
) -> Federation:
    """Twenty random classes per client; holders share a class by weights from U(low, high)."""
    draw = partial(
        classes_unequal, clients=clients, per_client=per_client, low=low, high=high, seed=seed
    )
    return alike_in_all_parts(pool, draw, seed, fraction)


@checked
def pfedmb_pairs(
    pool: DataPool,
    fraction: Fraction = 1.0,
    seed: int = 0,
) -> Federation:
    """Two clients for every two classes, each with half of both: the clients 2p and 2p
    + 1 are alike.
    """
    return alike_in_all_parts(pool, lambda labels: pairs(labels, seed), seed, fraction)


def pairs(labels: Ints, seed: int = 0) -> Partition:
    """As many clients as classes; clients 2p and 2p + 1 hold equal halves of the
    classes 2p and 2p + 1.
    """
    pools = rows_of_classes(labels, generator(seed, "pairs"))
    if len(pools) % 2:
        raise DataError(f"{len(pools)} classes cannot be paired", "use an even number of classes")
    mates = np.arange(len(pools)) // 2
    together = (mates[:, None] == mates).astype(np.int64)  # [classes, clients]
    halves = np.array([len(rows) // 2 for rows in pools])
    return Partition(deal(pools, together * halves[:, None]), {"partition": "pairs", "seed": seed})


def alike_in_all_parts(
    pool: DataPool, partition: Callable[[Ints], Partition], seed: int, fraction: float = 1.0
) -> Federation:
    """Divide the training rows, and validation and test rows by the same shares of every class."""
    labels = labels_of(pool)
    official, test = (thin(labels, rows, fraction, seed) for rows in official_parts(pool))
    train, validation = hold_out_alike(labels, official, seed)
    first = partition(labels[train])
    others = [alike(first, labels[train], labels[rows], seed).rows for rows in (validation, test)]
    pools = zip([first.rows, *others], (train, validation, test))
    parts = [own.renumber(rows[own.index]) for own, rows in pools]
    recipe = {"testbed": "pfedmb", "partition": first.recipe}
    federation = federation_of(pool, parts[0], parts[2], recipe, parts[1])
    return federation if fraction == 1 else federation.compact()


def thin(labels: Ints, rows: Ints, fraction: float, seed: int) -> Ints:
    """A random share of the rows of every class, in their order."""
    if fraction == 1:
        return rows
    pools = rows_of_classes(labels[rows], generator(seed, "pfedmb_fraction"))
    kept: Ints = np.sort(np.concatenate([own[: int(len(own) * fraction)] for own in pools]))
    return rows[kept]


def hold_out_alike(labels: Ints, rows: Ints, seed: int) -> tuple[Ints, Ints]:
    """Training and validation rows; validation has a fifth of every class."""
    pools = rows_of_classes(labels[rows], generator(seed, "pfedmb_validation"))
    cuts = [int(len(own) * VALIDATION) for own in pools]
    validation = np.concatenate([own[:cut] for own, cut in zip(pools, cuts)])
    train = np.concatenate([own[cut:] for own, cut in zip(pools, cuts)])
    return rows[np.sort(train)], rows[np.sort(validation)]
