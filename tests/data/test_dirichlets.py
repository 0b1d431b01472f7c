"""The partitions that are called Dirichlet, and how they differ."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fedblocks.core.errors import DataError
from fedblocks.data.dirichlets import (
    dirichlet_capped,
    dirichlet_clients,
    dirichlet_labels,
    draw_counts,
    label_clusters,
)
from fedblocks.data.pachinko import pachinko
from fedblocks.data.partition import Partition, share_out

BALANCED = np.tile(np.arange(10), 600)  # 6,000 rows, 600 of each class


def table(labels: np.ndarray, partition) -> np.ndarray:  # [clients, classes]
    return np.stack(
        [np.bincount(labels[rows], minlength=labels.max() + 1) for rows in partition.rows]
    )


def test_label_clusters_gives_the_published_test_bed() -> None:
    # CIFAR-10 as FedEM divides it: 80 clients, 3 clusters, alpha 0.4, seed 12345. Sizes depend on
    # the class counts alone, so 10 x 6,000 labels in any order must give them; the numbers are
    # those of the authors' recipe.
    labels = np.random.default_rng(7).permutation(np.repeat(np.arange(10), 6000))
    partition = label_clusters(labels, clients=80, clusters=3, alpha=0.4, fraction=1.0, seed=12345)
    sizes = partition.rows.sizes
    assert partition.recipe["label_groups"] == [[8, 7, 3], [5, 1, 2], [9, 4, 0, 6]]
    assert sizes[:10].tolist() == [1033, 511, 1855, 1748, 207, 416, 360, 47, 329, 1382]
    assert (sizes.min(), np.median(sizes), sizes.max(), sizes.sum()) == (8, 532, 2470, 60000)
    assert (sizes < 128).sum() == 10


def test_label_clusters_keeps_the_proportions_inside_a_cluster() -> None:
    labels = np.repeat(np.arange(10), 6000)
    counts = table(labels, label_clusters(labels, clients=4, clusters=3, alpha=0.4))
    for group in ([8, 7, 3], [5, 1, 2], [9, 4, 0, 6]):
        inside = counts[:, group] / counts[:, group].sum(1, keepdims=True)
        large = counts[:, group].sum(1) > 1000
        # 4 standard deviations of 1,000 draws
        assert np.abs(inside[large] - 1 / len(group)).max() < 0.06


def test_label_clusters_takes_a_fraction_without_repeats() -> None:
    partition = label_clusters(BALANCED, clients=20, fraction=0.1)
    assert len(np.unique(partition.rows.index)) == len(partition.rows.index) == 600
    assert len(partition.recipe["label_groups"]) == 10  # without `clusters`: one per class


def test_dirichlet_labels_is_even_for_a_large_alpha_and_skewed_for_a_small_one() -> None:
    even = table(BALANCED, dirichlet_labels(BALANCED, 10, alpha=1e6))
    skewed = table(BALANCED, dirichlet_labels(BALANCED, 10, alpha=0.05))
    assert np.abs(even - 60).max() <= 2
    assert skewed.max(0).mean() > 300  # on average one client holds more than half of a class


def test_dirichlet_labels_shares_have_the_variance_of_their_alpha() -> None:
    # a share of Dir(a, ..., a) over n clients has variance (1/n)(1 - 1/n) / (n a + 1)
    labels = np.repeat(np.arange(400), 100)
    shares = table(labels, dirichlet_labels(labels, 10, alpha=0.5)) / 100
    assert shares.var() == pytest.approx(0.1 * 0.9 / 6, rel=0.1)


def test_min_size_holds_or_the_error_says_what_to_do() -> None:
    assert dirichlet_labels(BALANCED, 20, alpha=0.3, min_size=50).rows.sizes.min() >= 50
    with pytest.raises(DataError, match="larger alpha"):
        dirichlet_labels(BALANCED, 20, alpha=0.1, min_size=299, tries=5)


def test_dirichlet_clients_have_one_size_and_their_own_proportions() -> None:
    partition = dirichlet_clients(BALANCED, 30, alpha=0.1, size=100)
    counts = table(BALANCED, partition)
    assert (counts.sum(1) == 100).all()
    assert np.median(counts.max(1)) > 40
    assert len(np.unique(partition.rows.index)) == 3000


def test_dirichlet_clients_can_use_up_the_pool() -> None:
    partition = dirichlet_clients(BALANCED, 60, alpha=0.1)
    assert sorted(partition.rows.index.tolist()) == list(range(6000))


def test_dirichlet_capped_gives_a_client_that_has_its_share_nothing_more() -> None:
    # a client crosses n / N with its last class, so the classes before it sum to less than n / N
    labels = np.repeat(np.arange(10), 600)
    counts = table(labels, dirichlet_capped(labels, 10, alpha=0.1))
    for own in counts:
        last = np.flatnonzero(own).max()
        assert own[:last].sum() < 600
    assert counts.sum() == 6000


def test_dirichlet_capped_is_more_even_than_dirichlet_labels() -> None:
    capped = [dirichlet_capped(BALANCED, 20, alpha=0.1, seed=s).rows.sizes.std() for s in range(10)]
    free = [dirichlet_labels(BALANCED, 20, alpha=0.1, seed=s).rows.sizes.std() for s in range(10)]
    assert np.mean(capped) < 0.8 * np.mean(free)


def test_pachinko_clients_have_few_coarse_labels_but_many_fine_ones_inside() -> None:
    labels = np.tile(np.arange(20), 60)
    partition = pachinko(labels, labels // 5, clients=12, alpha=0.1, beta=100.0, size=60)
    counts = table(labels, partition)
    coarse = counts.reshape(12, 4, 5).sum(2)
    assert (counts.sum(1) == 60).all() and len(np.unique(partition.rows.index)) == 720
    assert np.median(coarse.max(1)) > 40
    favourite = counts.reshape(12, 4, 5)[0, coarse[0].argmax()]
    assert (favourite > 0).all()


def test_pachinko_can_use_up_the_pool() -> None:
    labels = np.tile(np.arange(20), 60)
    partition = pachinko(labels, labels // 5, clients=20)
    assert sorted(partition.rows.index.tolist()) == list(range(1200))


def test_pachinko_refuses_a_fine_label_with_two_parents() -> None:
    with pytest.raises(DataError, match="two coarse"):
        pachinko([0, 0, 1, 1], [0, 1, 1, 1], clients=2)


def test_drawing_without_replacement_has_the_law_of_one_draw_after_the_other() -> None:
    # oracle: draw singly, renormalising over what is left
    rng = np.random.default_rng(0)
    weights, left, size, runs = np.array([0.7, 0.2, 0.1]), np.array([2, 3, 5]), 4, 4000
    ours = np.mean([draw_counts(rng, weights, left, size) for _ in range(runs)], 0)
    total = np.zeros(3)
    for _ in range(runs):
        counts = np.zeros(3, int)
        for _ in range(size):
            p = weights * (counts < left)
            counts[rng.choice(3, p=p / p.sum())] += 1
        total += counts
    # standard error of a mean is at most 0.015, of the difference 0.02
    assert np.abs(ours - total / runs).max() < 0.06


@pytest.mark.parametrize("divide", [dirichlet_labels, dirichlet_capped])
def test_sizes_become_even_as_alpha_grows(divide: Callable[..., Partition]) -> None:
    # 500 rows over 75 clients are 6.67 each: a client that lost a row to rounding in one class gets
    # it in another
    sizes = divide(np.repeat(np.arange(10), 50), 75, alpha=1e6).rows.sizes
    assert sorted(set(sizes.tolist())) == [6, 7] and sizes.sum() == 500


@pytest.mark.parametrize("alpha", [1.0, 10.0, 1000.0])
def test_a_larger_alpha_is_never_what_leaves_a_client_empty(alpha: float) -> None:
    # 4 rows each, of 10 classes
    partition = dirichlet_labels(np.repeat(np.arange(10), 20), 50, alpha=alpha)
    assert partition.rows.sizes.min() >= 1 and sorted(partition.rows.index.tolist()) == list(
        range(200)
    )


def test_rounding_takes_from_nobody_in_all_classes() -> None:
    # 62 classes x 0.5 rows are 31 for each of two clients; always rounding down would leave the
    # first with none
    owed, total = np.zeros(2), np.zeros(2, np.int64)
    for _ in range(62):
        counts, owed = share_out(np.array([0.5, 0.5]), 1, owed)
        total += counts
    assert total.tolist() == [31, 31]


def test_a_client_without_a_share_of_a_class_gets_none_of_its_rows() -> None:
    counts, owed = share_out(np.array([0.0, 0.3, 0.7]), 5, np.array([0.9, 0.0, 0.0]))
    # of 1.5 and 3.5 rows
    assert counts.tolist() == [0, 2, 3] and owed.tolist() == pytest.approx([0.9, -0.5, 0.5])
