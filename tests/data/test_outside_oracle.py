"""Partitions against those of flwr-datasets, where it is installed: draws differ, their
distributions do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedblocks.data.partition import Partition
from fedblocks.data.partitions import dirichlet_capped, dirichlet_labels, iid

MISSING = "flwr-datasets is not installed: pip install flwr-datasets to compare with it"
partitioner = pytest.importorskip("flwr_datasets.partitioner", reason=MISSING)
datasets = pytest.importorskip("datasets", reason=MISSING)

LABELS = np.repeat(np.arange(8), 60)
CLIENTS, DRAWS = 6, 120
POOL = datasets.Dataset.from_dict({"label": LABELS, "row": np.arange(len(LABELS))})


def shares(owners: list[np.ndarray]) -> np.ndarray:
    """The share of each class at each client, [classes, clients]."""
    counts = np.stack([np.bincount(LABELS[rows], minlength=8) for rows in owners], 1)
    actual: np.ndarray = counts / counts.sum(1, keepdims=True)
    return actual


def ours(make: Callable[..., Partition], seed: int, **options: Any) -> np.ndarray:
    return shares(list(make(LABELS, CLIENTS, seed=seed, **options).rows))


def theirs(make: Callable[..., Any], **options: Any) -> np.ndarray:
    actual = make(num_partitions=CLIENTS, **options)
    actual.dataset = POOL
    return shares(
        [
            np.array(actual.load_partition(client)["row"], dtype=np.int64)
            for client in range(CLIENTS)
        ]
    )


def distance(first: np.ndarray, second: np.ndarray) -> float:
    """The largest gap between two empirical distribution functions (Kolmogorov and Smirnov)."""
    values = np.sort(np.concatenate([first.ravel(), second.ravel()]))
    below = [
        np.searchsorted(np.sort(own.ravel()), values, side="right") / own.size
        for own in (first, second)
    ]
    return float(np.abs(below[0] - below[1]).max())


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
@pytest.mark.parametrize(
    ("make", "balanced"), [(dirichlet_labels, False), (dirichlet_capped, True)]
)
def test_dirichlet_shares_are_distributed_as_theirs(
    make: Callable[..., Partition], balanced: bool, alpha: float
) -> None:
    options = {
        "partition_by": "label",
        "alpha": alpha,
        "min_partition_size": 0,
        "self_balancing": balanced,
    }
    other = np.stack(
        [theirs(partitioner.DirichletPartitioner, seed=seed, **options) for seed in range(DRAWS)]
    )
    own = np.stack([ours(make, seed, alpha=alpha, min_size=0) for seed in range(DRAWS)])
    # Two samples of n values that are alike differ by more than 1.95 sqrt(2 / n) once in a thousand
    # times.
    # clients of one draw are hardly dependent, its classes may be
    limit = 1.95 * np.sqrt(2 / (DRAWS * CLIENTS))
    assert distance(own, other) < limit
    # the last class is where balancing shows most
    assert distance(own[:, -1], other[:, -1]) < limit
    other_alpha = np.stack([ours(make, seed, alpha=3 * alpha, min_size=0) for seed in range(DRAWS)])
    assert distance(own, other_alpha) > limit  # the test would notice another alpha


def test_even_parts_have_their_sizes() -> None:
    actual = partitioner.IidPartitioner(num_partitions=7)
    actual.dataset = POOL
    sizes = sorted(len(actual.load_partition(client)) for client in range(7))
    assert sorted(iid(LABELS, 7).rows.sizes.tolist()) == sizes
