"""Splits and partitions where rounding, empty hands or missing classes decide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.data.dirichlets import (
    dirichlet_capped,
    dirichlet_clients,
    even_size,
    label_clusters,
    until_large_enough,
)
from fedblocks.data.partition import (
    Partition,
    as_labels,
    cut,
    names_arrays,
    names_from,
    names_header,
    one_label_per_row,
    partition_from_lists,
    positive,
)
from fedblocks.data.partitions import (
    alike,
    balanced_holders,
    by_user,
    classes_unequal,
    grouped_labels,
    iid,
    quantity,
    quantity_power,
    shards,
)
from fedblocks.data.rows import Numbered, Rows, starts
from fedblocks.data.splits import part_sizes, split_rows_stratified


@pytest.mark.parametrize(
    ("rows", "shares", "parts"),  # parts: train, validation, test
    [
        (0, (0.7, 0.1, 0.2), (0, 0, 0)),
        (1, (0.7, 0.1, 0.2), (1, 0, 0)),
        (2, (0.7, 0.1, 0.2), (1, 0, 1)),
        (2, (0.1, 0.8, 0.1), (1, 0, 1)),  # a row to train on before one to validate on
        (3, (0.1, 0.8, 0.1), (1, 1, 1)),
        (3, (0.1, 0.4, 0.5), (1, 0, 2)),  # half of 3 is rounded up, 1.2 is floored: 1 is left
        (10, (0.7, 0.1, 0.2), (7, 1, 2)),
        (10, (0.5, 0.5, 0.0), (5, 5, 0)),
        (10, (1.0, 0.0, 0.0), (10, 0, 0)),
        (4, (0.1, 0.0, 0.9), (1, 0, 3)),  # 3.6 would leave nothing to train on
    ],
)
def test_parts_are_rounded_so_that_everybody_trains_first(
    rows: int, shares: Any, parts: tuple[int, ...]
) -> None:
    train, validation = part_sizes(np.array([rows]), shares)
    assert (int(train[0]), int(validation[0]), rows - int(train[0] + validation[0])) == parts


@pytest.mark.parametrize(
    "shares",
    [(0.5, 0.5), (0.0, 0.5, 0.5), (1.1, -0.1, 0.0), (0.5, 0.2, 0.2), (0.7, 0.1, 0.200002)],
)
def test_shares_are_three_that_add_up_to_1(shares: Any) -> None:
    part_sizes(np.array([4]), (0.7, 0.1, 0.2 + 9e-7))
    with pytest.raises(DataError, match="not three shares that add up to 1"):
        part_sizes(np.array([4]), shares)


def test_nobody_and_nothing_can_be_split() -> None:
    parts = split_rows_stratified(Rows.none(2), np.zeros(0, np.int64), (0.5, 0.0, 0.5), 0)
    assert [part.sizes.tolist() for part in parts] == [[0, 0]] * 3


def test_a_stratified_split_has_the_labels_of_a_client_in_each_part() -> None:
    """Client 0 has labels 0 and 1, client 1 label 1 alone: numbers of both must not be mixed."""
    labels = np.array([0, 1] * 4 + [1] * 4)
    rows = Rows.of([range(8), range(8, 12)])
    for part in split_rows_stratified(rows, labels, (0.5, 0.25, 0.25), 3):
        assert np.bincount(labels[part[0]]).tolist() == [len(part[0]) // 2] * 2
    with pytest.raises(DataError, match="needs one label per row"):
        split_rows_stratified(rows, labels[:, None], (0.5, 0.25, 0.25), 3)


def test_a_cut_forgives_a_billionth_and_no_more() -> None:
    tiny = 1.5e-9
    assert cut(np.array([1 - tiny / 2]), 1).tolist() == [1]  # taken for 1
    assert cut(np.array([1 - tiny]), 1).tolist() == [0]
    assert cut(np.array([0.5 - tiny / 2, 0.5 + tiny / 2]), 2).tolist() == [0, 2]
    assert cut(np.array([0.5 - tiny / 4, 0.5 + tiny / 4]), 2).tolist() == [1, 1]


def test_clusters_of_a_small_sample_may_be_empty() -> None:
    labels = np.array([0, 1, 1, 0, 2])
    assert label_clusters(labels, 2, fraction=0.1).rows.sizes.tolist() == [0, 0]
    whole = label_clusters(labels, 2, clusters=3)
    assert sorted(whole.rows.index.tolist()) == [0, 1, 2, 3, 4] and whole.recipe["clusters"] == 3
    assert label_clusters(labels, 2).recipe["clusters"] == 3  # one for each class
    with pytest.raises(DataError, match="4 clusters of 3 classes"):
        label_clusters(labels, 2, clusters=4)


@pytest.mark.parametrize("seed", range(3))
def test_a_client_gets_classes_until_it_has_its_even_share(seed: int) -> None:
    """40 rows for 4 clients: whoever has 10 when a class is dealt gets nothing of it."""
    labels = np.repeat(np.arange(10), 4)
    hands = dirichlet_capped(labels, 4, 0.1, seed, 0).rows
    held = np.array([np.bincount(labels[own], minlength=10) for own in hands])  # [clients, classes]
    before = np.cumsum(held, 1) - held
    assert held.sum(0).tolist() == [4] * 10 and not held[before >= 10].any()


@pytest.mark.parametrize(("rows", "size", "each"), [(9, None, 2), (8, 2, 2), (4, 1, 1)])
def test_clients_take_as_many_rows_as_there_are_for_everybody(
    rows: int, size: int | None, each: int
) -> None:
    assert even_size(rows, 4, size) == each
    for wrong in (rows // 4 + 1, 0):
        with pytest.raises(DataError, match=f"4 clients of {wrong} rows from {rows} rows"):
            even_size(rows, 4, wrong)
    hands = dirichlet_clients(np.arange(rows) % 2, 4, size=size)
    assert hands.rows.sizes.tolist() == [each] * 4 and hands.recipe["size"] == each


def test_draws_are_repeated_until_the_smallest_client_has_enough() -> None:
    draws = [np.array([[1, 5], [1, 0]]), np.array([[1, 2], [2, 1]]), np.array([[9, 9]])]
    turn = iter(draws)
    assert until_large_enough(lambda: next(turn), 3, 2) is draws[1]  # sums 3 and 3
    turn = iter(draws)
    with pytest.raises(DataError, match=r"no draw of 2 gave every client 4 rows \(best: 3\)"):
        until_large_enough(lambda: next(turn), 4, 2)


@pytest.mark.parametrize("seed", range(4))
def test_clients_of_large_groups_have_their_least_rows_too(seed: int) -> None:
    labels = np.repeat(np.arange(4), 10)
    division = grouped_labels(labels, [5, 5, 5, 7], 0.3, seed, min_size=6)
    assert division.rows.sizes.min() >= 6 and division.rows.sizes.sum() == 40
    same = division.rows.sizes[:3]  # of one group: even
    assert same.max() - same.min() <= 1
    recipe = division.recipe
    assert (recipe["partition"], recipe["clients"], recipe["min_size"]) == ("grouped_labels", 4, 6)
    assert recipe["groups"] == [0, 0, 0, 1]


def test_a_class_that_was_not_there_is_dealt_to_nobody() -> None:
    here, names = np.array([0, 0, 1, 1]), ("a", "b")
    first = Partition(Rows.of([[0, 2], [1, 3]]), {"partition": "x"}, names)
    other = alike(first, here, np.array([2, 0, 0, 2, 1, 1]), 3)
    assert [sorted(np.array([2, 0, 0, 2, 1, 1])[own].tolist()) for own in other.rows] == [
        [0, 1]
    ] * 2
    assert other.recipe == {"partition": "x", "alike_seed": 3} and other.names == names
    assert alike(first, here, np.array([0])).rows.sizes.sum() == 1  # fewer classes than here


def test_holders_are_as_even_as_can_be() -> None:
    holders = balanced_holders(np.random.default_rng(0), 4, 3, 2)
    assert holders.sum(0).tolist() == [2] * 4 and sorted(holders.sum(1).tolist()) == [2, 3, 3]
    assert balanced_holders(np.random.default_rng(0), 2, 2, 2).tolist() == [[1, 1], [1, 1]]
    with pytest.raises(DataError, match="3 classes per client, but there are 2"):
        balanced_holders(np.random.default_rng(0), 2, 2, 3)
    labels = np.array([0, 0, 1, 1])
    assert classes_unequal(labels, 1, 2, 0.5, 0.5).rows.sizes.tolist() == [4]
    for per_client, low, high in ((3, 0.3, 0.7), (2, 0.6, 0.5)):
        with pytest.raises(DataError, match=f"{per_client} of 2 classes, weights {low} to {high}"):
            classes_unequal(labels, 1, per_client, low, high)


@pytest.mark.parametrize("divide", [iid, shards, quantity, quantity_power])
def test_there_may_be_just_as_many_clients_as_rows_suffice_for(divide: Any) -> None:
    each = 2 if divide is shards else 1
    labels = np.arange(3 * each)
    assert divide(labels, 3).rows.sizes.tolist() == [each] * 3
    with pytest.raises(DataError, match=f"4 clients x {each} need more than {3 * each} rows"):
        divide(labels, 4)


def test_sizes_fall_by_a_power_of_the_rank() -> None:
    """1 + 11 rows * (1, 1/2, 1/3) / (11/6): 1 + 6, 1 + 3 and 1 + 2."""
    assert sorted(quantity_power(np.zeros(14, int), 3, 1.0).rows.sizes.tolist()) == [3, 4, 7]
    assert by_user(["b", "a", "b"]).names == ("a", "b")
    assert [own.tolist() for own in by_user(["b", "a", "b"]).rows] == [[1], [0, 2]]


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "the partition is a list, empty"), ({}, "the partition is a dict, empty"),
        (7, "the partition is a int"), ("ab", "the partition is a str"),
        ([[0], [[1]]], r"client 1 of the partition is not a list of row numbers: \[\[1\]\]"),
        ([[0.5]], "client 0 of the partition is not a list"),
        ([[], [0, -1]], "client 1 of the partition has row -1"),
    ],
)  # fmt: skip
def test_a_listed_partition_has_row_numbers(clients: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        partition_from_lists(clients)


def test_a_partition_may_be_listed_by_name_or_in_turn() -> None:
    named = partition_from_lists({"b": [2, 0], 7: torch.tensor([1])})
    assert named.names == ("b", "7") and [own.tolist() for own in named.rows] == [[2, 0], [1]]
    listed = partition_from_lists(([], [0]))
    assert list(listed.names) == ["client-0", "client-1"]
    assert listed.recipe == {"partition": "listed", "clients": 2}
    with pytest.raises(DataError, match="1 names for 2 clients"):
        Partition(listed.rows, {}, ("a",))


def test_names_are_saved_as_they_are_made() -> None:
    numbered = Numbered(np.array([3, 5]), "phone-")
    assert names_header(numbered) == {"prefix": "phone-"} and names_header(["a"]) == {
        "names": ["a"]
    }
    again = names_from(names_header(numbered), dict(names_arrays(numbered)))
    assert isinstance(again, Numbered) and list(again) == ["phone-3", "phone-5"]
    assert names_arrays(["a"]) == {} and names_from({"names": ["a"]}, {}) == ("a",)
    assert starts([2, 0, 3]).tolist() == [0, 2, 2, 5]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a"], "labels are text, not whole numbers"),
        (np.array([1j]), "labels are of type complex128"),
        (None, "there are no labels: y is None"), ([1, None], "a label is None"),
        ([0.5, 1.5], "labels are not whole numbers: one is 0.5\n.*number the classes 0"),
        ([0, np.inf], "one is inf"), ([np.nan], "one is nan\n.*give -100 for a class"),
    ],
)  # fmt: skip
def test_labels_are_whole_numbers(labels: Any, message: str) -> None:
    assert as_labels([1.0, -100]).tolist() == [1, -100] and as_labels([True]).dtype == np.int64
    with pytest.raises(DataError, match=message):
        as_labels(labels)


def test_a_partition_by_label_needs_a_label_of_0_or_more_for_each_row() -> None:
    assert one_label_per_row([0, 1]).tolist() == [0, 1]
    for labels, message in (
        ([[0]], r"needs one label per row, not shape \[1, 1\]"), ([], "there are no rows"),
        ([0, -1], "the label -1 is below 0"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=message):
            one_label_per_row(labels)
    positive(a=0.1)
    for value in (0, -1.5, float("nan")):
        with pytest.raises(DataError, match=f"b is {value}\n.*b must be above 0"):
            positive(a=1, b=value)
