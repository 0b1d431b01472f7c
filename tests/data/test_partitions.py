"""Every partition: disjoint, covering where it should, a function of its seed; and each
one's own promise.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedblocks.core.errors import DataError
from fedblocks.data.partition import Partition
from fedblocks.data.partitions import (
    PARTITIONS,
    alike,
    by_user,
    classes,
    classes_unequal,
    dirichlet_labels,
    grouped_labels,
    iid,
    quantity,
    quantity_power,
    shards,
)

LABELS = np.random.default_rng(3).permutation(np.repeat(np.arange(10), 40))  # 400 rows

CASES = {
    "iid": lambda y, seed: iid(y, 7, seed),
    "dirichlet_labels": lambda y, seed: dirichlet_labels(y, 7, 0.5, seed),
    "dirichlet_clients": lambda y, seed: PARTITIONS["dirichlet_clients"](y, 7, 0.5, seed),
    "dirichlet_capped": lambda y, seed: PARTITIONS["dirichlet_capped"](y, 7, 0.5, seed),
    "label_clusters": lambda y, seed: PARTITIONS["label_clusters"](y, 7, 3, seed=seed),
    "pachinko": lambda y, seed: PARTITIONS["pachinko"](y, y // 2, 7, seed=seed),
    "classes": lambda y, seed: classes(y, 10, 2, seed),
    "classes_unequal": lambda y, seed: classes_unequal(y, 7, 4, seed=seed),
    "shards": lambda y, seed: shards(y, 7, 2, seed),
    "quantity": lambda y, seed: quantity(y, 7, seed=seed),
    "quantity_power": lambda y, seed: quantity_power(y, 7, seed=seed),
    "by_user": lambda y, seed: by_user((np.arange(len(y)) + seed) // 50),
    "grouped_labels": lambda y, seed: grouped_labels(y, [0, 0, 1, 1, 2, 2, 2], 0.5, seed),
}
COVERING = set(CASES) - {"dirichlet_clients", "pachinko", "classes", "classes_unequal"}


def test_every_partition_is_tested_here() -> None:
    assert set(CASES) == set(PARTITIONS)


@pytest.mark.parametrize("name", CASES)
def test_no_row_is_given_away_twice(name: str) -> None:
    index = CASES[name](LABELS, 0).rows.index
    assert len(np.unique(index)) == len(index) > 0
    assert index.min() >= 0 and index.max() < len(LABELS)


@pytest.mark.parametrize("name", CASES)
def test_a_partition_is_a_function_of_its_seed(name: str) -> None:
    make = CASES[name]
    assert make(LABELS, 4).hash() == make(LABELS, 4).hash() != make(LABELS, 5).hash()


@pytest.mark.parametrize("name", CASES)
def test_a_recipe_names_its_partition_and_survives_a_file(name: str, tmp_path: Path) -> None:
    partition = CASES[name](LABELS, 1)
    assert partition.recipe["partition"] == name
    partition.save(tmp_path / "p.npz")
    loaded = Partition.load(tmp_path / "p.npz")
    assert (loaded.hash(), loaded.recipe, list(loaded.names)) == (
        partition.hash(),
        partition.recipe,
        list(partition.names),
    )


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(sorted(COVERING)),
    st.lists(st.integers(0, 4), min_size=60, max_size=120),
    st.integers(0, 2**31),
)
def test_covering_partitions_use_every_row_exactly_once(
    name: str, labels: list[int], seed: int
) -> None:
    y = np.array([0, 1, 2, 3, 4, *labels])
    assert sorted(CASES[name](y, seed).rows.index.tolist()) == list(range(len(y)))


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 30), st.integers(1, 10), st.integers(0, 2**31))
def test_classes_are_held_equally_often_and_shared_equally(
    clients: int, per_client: int, seed: int
) -> None:
    partition = classes(LABELS, clients, per_client, seed)
    counts = np.stack([np.bincount(LABELS[rows], minlength=10) for rows in partition.rows])
    assert ((counts > 0).sum(1) == per_client).all()
    holders = (counts > 0).sum(0)
    assert holders.sum() == clients * per_client and holders.max() - holders.min() <= 1
    for held, number in zip(counts.T, holders):
        assert number == 0 or set(held[held > 0]) == {40 // number}


@pytest.mark.parametrize(("clients", "size"), [(15, 2666), (50, 800)])
def test_two_classes_per_client_have_the_sizes_of_pfedmb(clients: int, size: int) -> None:
    # the train part of CIFAR-10 in the paper: 2 x floor(4000 / 3), 2 x 400
    labels = np.repeat(np.arange(10), 4000)
    assert set(classes(labels, clients, 2).rows.sizes.tolist()) == {size}


def test_classes_are_not_paired_in_a_pattern() -> None:
    # each seed pairs classes at random: over 200 seeds, client 0 meets most of the 45 possible
    # pairs
    pairs = {tuple(np.unique(LABELS[classes(LABELS, 10, 2, seed).rows[0]])) for seed in range(200)}
    assert len(pairs) > 40


def test_unequal_classes_are_shared_by_weights_between_low_and_high() -> None:
    labels = np.repeat(np.arange(20), 1000)
    partition = classes_unequal(labels, 12, 8, low=0.3, high=0.7)
    counts = np.stack([np.bincount(labels[rows], minlength=20) for rows in partition.rows])
    assert ((counts > 0).sum(1) == 8).all()
    for held in counts.T:
        own = held[held > 0]
        assert own.sum() in (0, 1000)
        assert not len(own) or own.max() / own.min() < 0.7 / 0.3 + 0.1
    assert counts[counts > 0].std() > 0


def test_shards_hold_at_most_a_few_labels() -> None:
    labels = np.repeat(np.arange(10), 100)
    partition = shards(labels, 50, 2)
    assert {len(np.unique(labels[rows])) for rows in partition.rows} <= {1, 2}
    assert set(partition.rows.sizes.tolist()) == {20}


def test_power_law_sizes_fall_with_rank() -> None:
    sizes = np.sort(quantity_power(np.zeros(10000, int), 10, exponent=1.0, min_size=0).rows.sizes)[
        ::-1
    ]
    expected = 10000 / np.arange(1, 11) / (1 / np.arange(1, 11)).sum()
    assert np.abs(sizes - expected).max() <= 1


def test_quantity_skew_leaves_labels_alike() -> None:
    labels = np.tile(np.arange(2), 5000)
    partition = quantity(labels, 5, alpha=0.5, min_size=400)
    assert partition.rows.sizes.max() > 2 * partition.rows.sizes.min()
    # 4 standard deviations of 400 draws
    assert all(abs(labels[rows].mean() - 0.5) < 0.1 for rows in partition.rows)


def test_users_keep_their_names_and_rows() -> None:
    partition = by_user(np.array(["zoe", "amy", "zoe", "bob"]))
    assert list(partition.names) == ["amy", "bob", "zoe"]
    assert [rows.tolist() for rows in partition.rows] == [[1], [3], [0, 2]]


def test_alike_gives_each_client_the_same_share_of_every_class() -> None:
    train, test = np.repeat(np.arange(10), 4000), np.repeat(np.arange(10), 1000)
    partition = dirichlet_labels(train, 15, alpha=0.4, min_size=10)
    other = alike(partition, train, test, seed=1)
    here = np.stack([np.bincount(train[rows], minlength=10) for rows in partition.rows])
    there = np.stack([np.bincount(test[rows], minlength=10) for rows in other.rows])
    assert np.abs(there - here / 4).max() <= 1
    assert sorted(other.rows.index.tolist()) == list(range(10000))


def test_alike_leaves_out_what_was_left_out() -> None:
    train, test = np.repeat(np.arange(10), 4000), np.repeat(np.arange(10), 1000)
    other = alike(classes(train, 15, 2), train, test)
    assert set(other.rows.sizes.tolist()) == {666}  # 2 x floor(1000 / 3)


def test_groups_differ_in_labels_and_clients_inside_a_group_do_not() -> None:
    labels = np.repeat(np.arange(4), 1000)
    partition = grouped_labels(labels, [0, 1, 0, 1], alpha=0.2, seed=1)
    shares = np.stack(
        [np.bincount(labels[rows], minlength=4) / len(rows) for rows in partition.rows]
    )
    assert np.abs(shares[0] - shares[2]).max() < 0.1
    assert np.abs(shares[0] - shares[1]).max() > 0.3


def test_empty_clients_can_be_left_out_under_their_old_names() -> None:
    partition = PARTITIONS["label_clusters"](LABELS, 40, 2, alpha=0.02)
    kept = partition.without_empty()
    assert 0 < len(kept) < 40 and kept.rows.sizes.min() > 0
    assert list(kept.names) == [f"client-{c}" for c in np.flatnonzero(partition.rows.sizes)]


def test_a_preview_shows_rows_classes_and_the_top_share() -> None:
    partition = by_user([0, 0, 0, 1])
    assert partition.preview([5, 5, 2, 3]) == [
        {"client": "0", "rows": 3, "classes": 2, "top_share": 0.6667},
        {"client": "1", "rows": 1, "classes": 1, "top_share": 1.0},
    ]


BAD = {
    "no clients": lambda: iid(LABELS, 0),
    "more clients than rows": lambda: iid(LABELS, 401),
    "negative alpha": lambda: dirichlet_labels(LABELS, 3, alpha=-1.0),
    "labels with a fraction": lambda: shards([0.5, 1.5], 1),
    "sequence labels": lambda: dirichlet_labels(np.zeros((4, 3), int), 2),
    "labels below zero": lambda: shards([-1, 0, 1, 2], 2),
    "too many classes per client": lambda: classes(LABELS, 5, 11),
    "too large clients": lambda: PARTITIONS["dirichlet_clients"](LABELS, 5, size=81),
    "more clusters than classes": lambda: PARTITIONS["label_clusters"](LABELS, 5, 11),
    "users that are objects": lambda: by_user(np.array([None, "a"], dtype=object)),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_says_what_to_do(what: str) -> None:
    with pytest.raises(DataError) as caught:
        BAD[what]()
    assert caught.value.fix


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    iid(LABELS, 4).save(tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as file:
        arrays = dict(file)
    arrays["index"] = arrays["index"][::-1]
    np.savez(tmp_path / "p.npz", **arrays)
    with pytest.raises(DataError, match="damaged"):
        Partition.load(tmp_path / "p.npz")
