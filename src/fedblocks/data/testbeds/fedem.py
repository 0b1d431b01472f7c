"""The test-bed of FedEM (Marfoq et al., 2021), which FedMN's tables use too: row for row where its
generators allow.

Official train and test rows are put together and divided over clients; each client then splits its
own 80/20.
"""

from __future__ import annotations

import math
import random
from typing import Annotated, Any

import numpy as np

from fedblocks.core.errors import DataError
from fedblocks.core.options import AtLeast, AtMost, Help, Positive
from fedblocks.data.dirichlets import label_clusters
from fedblocks.data.federation import Federation
from fedblocks.data.options import (
    Alpha,
    Clients,
    CoarseAlpha,
    FineAlpha,
    UsedFraction,
    Validation,
    checked,
)
from fedblocks.data.pachinko import pachinko
from fedblocks.data.partition import Partition
from fedblocks.data.partitions import by_user
from fedblocks.data.pools import DataPool
from fedblocks.data.rows import Ints, Rows, take_names
from fedblocks.data.testbeds.parts import federation_of, labels_of

SEED = 12345  # of the published splits
TRAIN = 0.8  # share of each client's rows


@checked
def fedem_cifar10(
    pool: DataPool,
    clients: Clients = 80,
    clusters: Annotated[int, AtLeast(1), Help("groups of labels")] = 3,
    alpha: Alpha = 0.4,
    validation: Validation = 0.0,
    seed: int = SEED,
) -> Federation:
    """Three groups of labels, each over 80 clients by one Dirichlet draw; for tuning
    set validation to 0.25.
    """
    partition = label_clusters(labels_of(pool), clients, clusters, alpha, 1.0, seed)
    return split_like_fedem(pool, partition, validation, seed)


@checked
def fedem_emnist(
    pool: DataPool,
    clients: Clients = 100,
    alpha: Alpha = 0.4,
    fraction: UsedFraction = 0.1,
    validation: Validation = 0.0,
    seed: int = SEED,
) -> Federation:
    """A tenth of the rows; every label over 100 clients by a Dirichlet draw of its own."""
    partition = label_clusters(labels_of(pool), clients, None, alpha, fraction, seed)
    return split_like_fedem(pool, partition, validation, seed).compact()


@checked
def fedem_cifar100(
    pool: DataPool,
    clients: Clients = 100,
    alpha: CoarseAlpha = 0.4,
    beta: FineAlpha = 10.0,
    validation: Validation = 0.0,
    seed: int = SEED,
) -> Federation:
    """Equally many rows for 100 clients by Pachinko allocation over coarse and fine labels."""
    if pool.coarse is None:
        raise DataError(
            "Pachinko allocation needs coarse labels", "use CIFAR-100, or a pool with coarse labels"
        )
    partition = pachinko(labels_of(pool), pool.coarse, clients, alpha=alpha, beta=beta, seed=seed)
    return split_like_fedem(pool, partition, validation, seed)


@checked
def fedem_femnist(
    pool: DataPool,
    share: Annotated[float, Positive(), AtMost(1), Help("of the writers")] = 0.15,
    more_than: Annotated[
        int, AtLeast(0), Help("a writer takes part with more images than this")
    ] = 2,
    validation: Validation = 0.0,
    seed: int = SEED,
) -> Federation:
    """Some of the writers, one client each; names are sorted before they are drawn,
    unlike a directory's order.
    """
    if pool.users is None:
        raise DataError(
            "this test-bed needs the writer of each row", "use FEMNIST or mnist_writers"
        )
    everybody = by_user(pool.users)
    writers = np.flatnonzero(everybody.rows.sizes > more_than).tolist()
    random.Random(seed).shuffle(writers)
    chosen = np.array(writers[: int(share * len(writers))])
    if not len(chosen):
        raise DataError(f"{share} of {len(writers)} writers is nobody", "use a larger share")
    recipe = {"partition": "writers", "share": share, "more_than": more_than, "seed": seed}
    partition = Partition(everybody.rows.take(chosen), recipe, take_names(everybody.names, chosen))
    return split_like_fedem(pool, partition, validation, seed).compact()


def split_like_fedem(
    pool: DataPool, partition: Partition, validation: float, seed: int
) -> Federation:
    """Train and test rows of each client, and validation rows out of the training ones;
    empty clients are left out.
    """
    held = partition.without_empty()
    first = [shuffled_split(rows, TRAIN, seed) for rows in held.rows]
    second = [shuffled_split(train, 1 - validation, seed) for train, _ in first]
    train = Rows.of([rows for rows, _ in second])
    held_back = Rows.of([rows for _, rows in second])
    test = Rows.of([rows for _, rows in first])
    recipe: dict[str, Any] = {
        "testbed": "fedem",
        "partition": held.recipe,
        "validation": validation,
        "seed": seed,
    }
    return federation_of(pool, train, test, recipe, held_back, names=tuple(held.names))


def shuffled_split(rows: Ints, share: float, seed: int) -> tuple[Ints, Ints]:
    """The split of the published test-bed, made as scikit-learn's train_test_split
    does; a lone row is trained on.
    """
    if share >= 1:
        return rows, rows[:0]
    kept = max(math.floor(share * len(rows)), min(1, len(rows)))
    order = np.random.RandomState(seed).permutation(len(rows))
    left = len(rows) - kept
    return rows[order[left:]], rows[order[:left]]
