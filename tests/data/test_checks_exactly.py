"""Targets, checks, shifts and partitions at their edges, each by a case computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.task import Task
from fedblocks.data import shifts
from fedblocks.data.checks import _first_odd, _verb
from fedblocks.data.federation import Federation
from fedblocks.data.partition import (
    Partition,
    as_labels,
    cut,
    deal,
    one_label_per_row,
    partition_from_lists,
    positive,
    share_out,
)
from fedblocks.data.partitions import grouped_labels
from fedblocks.data.rows import Rows
from fedblocks.data.targets import gaps_in_labels, has_known_targets, lost_digits


def federation(y: Any, clients: int = 2, **options: Any) -> Federation:
    """A row of four numbers for each label, all trained on, dealt out in turn."""
    x = np.random.default_rng(0).random((len(y), 4)).astype(np.float32)
    parts = [list(range(who, len(y), clients)) for who in range(clients)]
    return Federation.from_arrays(x, np.array(y), parts, split=(1, 0, 0), **options)


def test_gaps_in_labels_are_listed_up_to_five() -> None:
    assert gaps_in_labels(federation([0, 1, 2, -100])) == ""
    few = federation([1, 3, 3, -100], classes=4)
    assert gaps_in_labels(few) == "no row has label 0, 2 (labels present: 1, 3)"
    five, six = federation([0, 0], classes=6), federation([0, 0], classes=7)
    assert gaps_in_labels(five) == "no row has label 1, 2, 3, 4, 5 (labels present: 0)"
    assert gaps_in_labels(six) == "no row has label 1, 2, 3, 4, 5, ... (labels present: 0)"


def test_targets_that_a_net_cannot_tell_apart_are_counted() -> None:
    """1e9 + 0..3 are one number in float32, off by at most 3; the deviation is sqrt(5 / 4). What
    is not known and a column of one number are no matter.
    """
    steps = torch.arange(4, dtype=torch.float64)
    y = torch.stack([torch.full_like(steps, torch.nan), steps * 0 + 0.1, steps, 1e9 + steps], 1)
    y = torch.cat([y, torch.full_like(y[:1], torch.nan)])
    assert lost_digits(y, torch.float32) == [
        "4 different targets become 1 in float32, which rounds them by up to 3 (their standard "
        "deviation is 1.12): subtract their mean, or use Net.of(..., dtype=torch.float64)"
    ]
    assert lost_digits(y, torch.float64) == lost_digits(y[:, :3], torch.float32) == []
    assert lost_digits(y.float(), torch.float16) == []


def test_a_part_has_known_targets_if_one_is_known() -> None:
    data = federation([0, -100, 1, -100], clients=1)
    assert has_known_targets(data, "train")
    assert not has_known_targets(replace(data, train=Rows.of([[1, 3]])), "train")
    assert not has_known_targets(data, "test")


def test_the_first_value_that_is_no_number_is_told_with_its_place() -> None:
    x = torch.zeros(4, 3)
    x[0, 0] = torch.nan  # of a row that is not asked about
    x[2, 1] = torch.inf
    bad = np.array([False, False, True, True])
    assert _first_odd(x, bad) == "row 2, column 1 is inf"
    x[2, 2], x[3, 0] = torch.nan, torch.nan
    assert _first_odd(x, bad) == "row 2, column 1 is inf, and 2 more values"
    assert _first_odd(x[:, None], bad) == "row 2, at [0, 1] is inf, and 2 more values"
    assert _first_odd(x[:, 1], bad) == "row 2 is inf"


@pytest.mark.parametrize(
    ("rows", "message"),
    [([[0], [3]], None), ([[0], [4]], 'train rows out of range at "client-1"')],
)
def test_row_numbers_end_with_the_pool(rows: Any, message: str | None) -> None:
    data = replace(federation([0, 1, 0, 1]), train=Rows.of(rows))
    if message is None:
        data.check()
        return
    with pytest.raises(DataError, match=f"{message}\n.*row numbers go from 0 to 3"):
        data.check()


def test_a_wrong_label_is_told_with_its_row_and_the_range_of_all() -> None:
    data = federation([0, -100, 1, 1], classes=2)
    wrong = replace(data, y=torch.tensor([0, -100, 1, 2]))
    with pytest.raises(DataError) as error:
        wrong.check()
    assert error.value.message == (
        'labels outside 0..1: row 3 has label 2 (clients: "client-1"); all go from 0 to 2'
    )
    replace(wrong, train=Rows.of([[0], [1, 2]])).check()  # nobody has that row


def test_clients_with_few_rows_are_told_from_those_with_none() -> None:
    data = federation([0, 1] * 5, clients=1)
    rows = Rows.of([[0, 1, 2], [4, 5], [], [6, 8, 9]])
    none = Rows.none(4)
    several = Federation(data.x, data.y, rows, none, none, 2)
    told = several.warnings(few=3)
    assert '1 client has no training rows: "client-2"' in told
    assert '1 client has fewer than 3 training rows: "client-1"' in told
    assert not any("have no test rows" in text for text in told)
    assert "no client has test rows: split=(0.6, 0.2, 0.2) gives everybody some" in told
    assert _verb("hold one class only", 1) == "holds one class only"
    assert _verb("hold one class only", 2) == "hold one class only"


def test_a_row_in_two_parts_is_counted_once() -> None:
    data = federation([0, 1] * 5, clients=2)
    both = replace(data, test=Rows.of([[0], [1]]))
    assert "2 rows are both trained and tested on" in both.warnings()
    one = replace(data, train=Rows.of([[0], [3]]), test=Rows.of([[0], [5]]))
    assert "1 row is both trained and tested on" in one.warnings()
    assert not any("both trained" in text for text in data.warnings())


def test_groups_are_as_many_as_clients_at_most() -> None:
    assert sorted(shifts.hidden_groups(3, 3).tolist()) == [0, 1, 2]
    assert shifts.hidden_groups(3, 1).tolist() == [0, 0, 0]
    assert shifts.hidden_groups(2, [0, 5]).tolist() == [0, 5]
    for groups in (0, 4, [0, -1, 0], [0, 1]):
        with pytest.raises(DataError, match="groups"):
            shifts.hidden_groups(3, groups)
    with pytest.raises(DataError, match="are not whole numbers"):
        shifts.hidden_groups(2, [0, 1.5])


def images(clients: int = 4, labels: int = 4) -> Federation:
    y = np.arange(8 * clients) % labels
    x = np.random.default_rng(0).random((len(y), 1, 4, 4)).astype(np.float32)
    parts = [list(range(8 * who, 8 * who + 8)) for who in range(clients)]
    return Federation.from_arrays(x, y, parts)


def test_angles_beyond_the_groups_are_left_out_and_too_few_refused() -> None:
    turned = shifts.rotate(images(), [0, 1, 0, 1], degrees=[0, 90, 180])
    assert turned.about["shifts"] == [{"shift": "rotate", "degrees": [0.0, 90.0], "tag": "group"}]
    with pytest.raises(DataError, match="1 angles for 2 groups"):
        shifts.rotate(images(), [0, 1, 0, 1], degrees=[0])


def test_there_are_as_many_orders_as_the_factorial() -> None:
    orders = shifts.permutations(6, 3)
    assert len({tuple(order) for order in orders.tolist()}) == 6
    assert orders[0].tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="7 groups, but 3 labels have 6 orders"):
        shifts.permutations(7, 3)


def test_the_joint_shift_is_the_three_one_after_the_other() -> None:
    data = images()
    members = shifts.hidden_groups(4, 2, 3)
    skewed = shifts.skew_labels(data, members, 0.75, seed=3, tag="t")
    turned = shifts.rotate(skewed, members, (0, 90), tag="t")
    by_hand = shifts.permute_labels(turned, members, 3, "t")
    joint = shifts.joint(data, 2, 3, (0, 90), 0.75, "t")
    assert joint.hash() == by_hand.hash() and joint.about == by_hand.about
    assert list(joint.tags) == ["t"]


def test_the_joint_shift_of_a_pool_divides_it_by_its_groups() -> None:
    data = images(10)
    members = shifts.hidden_groups(4, 2, 3)
    partition = grouped_labels(data.y, members, 5.0, 3, 2)
    made = Federation.from_arrays(data.x, data.y, partition, seed=3)
    turned = shifts.rotate(made, members, (0, 90))
    by_hand = shifts.permute_labels(turned, members, 3)
    options: dict[str, Any] = {"alpha": 5.0, "degrees": (0, 90), "seed": 3, "min_size": 2}
    pool = shifts.joint_pool(data.x, data.y, 4, 2, **options)
    assert pool.hash() == by_hand.hash()


def test_weights_of_a_skew_are_shares() -> None:
    whole = shifts.skew_labels(images(), 1, weights=[[1, 1, 0, 1]])
    assert np.unique(whole.y.numpy()[whole.train.index]).tolist() == [0, 1, 3]
    assert len(whole.train.index) == (images().y.numpy()[images().train.index] != 2).sum()
    for weights in ([[1, 1, 1, 1.5]], [[-1, 1, 1, 1]], [[1, 1, 1]]):
        with pytest.raises(DataError, match="weights of shape"):
            shifts.skew_labels(images(), 1, weights=weights)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "the partition is a list, empty"),
        ({}, "the partition is a dict, empty"),
        (3, "the partition is a int\n"),
        ([[0], [1.0]], r"client 1 of the partition is not a list of row numbers: \[1.0\]"),
        ([[0], [[1]]], "client 1 of the partition is not a list"),
        ([[0], [2, -1]], "client 1 of the partition has row -1"),
    ],
)
def test_partitions_that_are_none_are_refused(clients: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        partition_from_lists(clients)


def test_a_partition_by_lists_keeps_empty_clients_until_they_are_left_out() -> None:
    made = partition_from_lists({"a": torch.tensor([0, 2]), "b": [], 7: (1,)})
    assert made.rows.sizes.tolist() == [2, 0, 1] and made.names == ("a", "b", "7")
    assert made.recipe == {"partition": "listed", "clients": 3}
    left = made.without_empty()
    assert [*left.names] == ["a", "7"] and left.recipe["without_empty"] is True
    lines = made.preview([5, 5, 6])
    assert lines[0] == {"client": "a", "rows": 2, "classes": 2, "top_share": 0.5}
    with pytest.raises(DataError, match="1 names for 3 clients"):
        Partition(made.rows, {}, ("a",))


def test_labels_are_whole_numbers_of_any_kind() -> None:
    for labels in ([1.0, -100.0], torch.tensor([1, -100]), np.array([1, -100], np.int8)):
        array = as_labels(labels)  # type: ignore[arg-type]
        assert array.tolist() == [1, -100] and array.dtype == np.int64
    given = np.array([1, 2])
    assert as_labels(given) is given
    with pytest.raises(DataError, match=r"one is 1\.5\n.*number the classes"):
        as_labels([1.0, 1.5, np.nan])
    with pytest.raises(DataError, match=r"one is nan\n.*give -100 for a class"):
        as_labels([1.0, np.nan])
    with pytest.raises(DataError, match="one is inf"):
        as_labels([np.inf, 1.0])
    with pytest.raises(DataError, match="there are no labels: y is None"):
        as_labels(None)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="a label is None"):
        as_labels(np.array([1, None]))
    with pytest.raises(DataError, match="there are no rows"):
        one_label_per_row([])
    with pytest.raises(DataError, match="the label -1 is below 0"):
        one_label_per_row([0, -1])
    assert one_label_per_row([0]).tolist() == [0]


def test_what_is_left_by_rounding_goes_to_the_first_of_equals_that_have_a_share() -> None:
    """Of 128 equal shares of 128 + 37 rows each has one and is owed 37/128, every second one 1/4
    more: the first 37 of these get one. Without a share nobody gets what is owed.
    """
    counts, owed = share_out(np.full(128, 1 / 128), 165, np.arange(128) % 2 / 4)
    assert counts.tolist() == [1, 2] * 37 + [1] * 54
    few, much = 37 / 128, 37 / 128 + 1 / 4
    assert owed.tolist() == [few, much - 1] * 37 + [few, much] * 27
    counts, owed = share_out(np.array([0.5, 0.0, 0.5]), 3, np.array([0, 9.0, 0.1]))
    assert counts.tolist() == [1, 0, 2] and owed.tolist() == pytest.approx([0.5, 9, -0.4])


def test_shares_below_one_leave_rows_and_shares_of_one_leave_none() -> None:
    assert cut(np.array([0.25, 0.25]), 10).tolist() == [2, 3]
    assert cut(np.full(3, 1 / 3 - 1e-11), 9_999_999_999).sum() == 9_999_999_999
    with pytest.raises(DataError, match="steps is 0"):
        positive(size=1, steps=0)


def test_rows_of_a_client_are_in_the_order_of_classes() -> None:
    classes = [np.arange(20), np.arange(100, 120)]
    rows = deal(classes, np.array([[10, 9], [9, 10]]))
    assert rows[0].tolist() == [*range(10), *range(100, 109)]
    assert rows[1].tolist() == [*range(10, 19), *range(109, 119)]


def test_regression_targets_that_are_infinite_are_told_with_their_client() -> None:
    data = federation([0.5, 1.0, 2.0, 3.0], task=Task("regression"))
    odd = replace(data, y=torch.tensor([[0.5], [1.0], [2.0], [np.inf]]))
    with pytest.raises(DataError, match=r'infinite: row 3 has inf \(clients: "client-1"\)'):
        odd.check()
