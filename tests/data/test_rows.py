"""Rows: who holds what, for a handful of clients and for a million."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedblocks.core.errors import DataError
from fedblocks.data.rows import Numbered, Rows, some_names
from fedblocks.data.splits import part_sizes
from fedblocks.data.summary import labels_held, spread

hands = st.lists(st.lists(st.integers(0, 99), max_size=6), min_size=1, max_size=8)


@given(hands)
def test_rows_give_back_the_lists_they_were_made_of(lists: list[list[int]]) -> None:
    rows = Rows.of(lists)
    assert [rows[c].tolist() for c in range(len(rows))] == lists
    assert rows.sizes.tolist() == [len(hand) for hand in lists]
    assert [hand.tolist() for hand in rows] == lists


@given(hands, st.data())
def test_take_is_a_list_of_the_chosen_clients(lists: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=10))
    assert [hand.tolist() for hand in Rows.of(lists).take(chosen)] == [lists[c] for c in chosen]


@given(st.lists(st.integers(-1, 4), min_size=1, max_size=30))
def test_by_owner_gives_each_row_to_its_owner_and_minus_one_to_nobody(owner: list[int]) -> None:
    rows = Rows.by_owner(owner, 5)
    assert [hand.tolist() for hand in rows] == [
        [r for r, o in enumerate(owner) if o == c] for c in range(5)
    ]


def test_where_keeps_entries_and_clients() -> None:
    kept = Rows.of([[5, 6], [7], [8, 9]]).where(np.array([True, False, False, True, True]))
    assert [hand.tolist() for hand in kept] == [[5], [], [8, 9]]


def test_rows_cannot_be_written_to() -> None:
    rows = Rows.of([[1, 2], [3]])
    with pytest.raises(ValueError, match="read-only"):
        rows.index[0] = 9
    rows[0][0] = 9  # a copy
    assert rows[0].tolist() == [1, 2]


def test_a_client_that_does_not_exist_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        Rows.of([[1]])[1]


@pytest.mark.parametrize("offsets", [[0, 2], [1, 3], [0, 2, 1, 3]])
def test_offsets_that_do_not_fit_are_refused(offsets: list[int]) -> None:
    with pytest.raises(DataError, match="offsets"):
        Rows(np.arange(3), np.array(offsets))


def test_a_million_clients_take_well_under_five_seconds_of_processor_time() -> None:
    start = time.process_time()
    rows = Rows.by_owner(np.arange(3_000_000) % 1_000_000, 1_000_000)
    part = rows.take(np.arange(0, 1_000_000, 2))
    names = Numbered.up_to(1_000_000).take(np.arange(0, 1_000_000, 2))
    assert rows[999_999].tolist() == [999_999, 1_999_999, 2_999_999]
    assert part[1].tolist() == [2, 1_000_002, 2_000_002]
    assert names[1] == "client-2"
    assert time.process_time() - start < 5


def test_long_lists_of_clients_are_shortened_in_messages() -> None:
    assert some_names(Numbered.up_to(9), range(8), most=2) == '"client-0", "client-1" and 6 more'
    assert list(Numbered.up_to(4)[1:3]) == ["client-1", "client-2"]


def test_labels_are_counted_by_client_and_one_without_labels_has_none() -> None:
    labels = np.array([[3, 3], [1, -100], [-100, -100], [3, 1]])
    held = labels_held(Rows.of([[0, 1], [2], [], [0, 3]]), labels)
    assert held.classes.tolist() == [2, 0, 0, 2]
    assert held.top_share.tolist() == [2 / 3, 0.0, 0.0, 3 / 4]


def test_sizes_are_summed_up() -> None:
    assert spread(np.array([4, 1, 2, 9])) == {"total": 16, "min": 1, "median": 3.0, "max": 9}
    assert spread(np.array([], int)) == {"total": 0, "min": 0, "median": 0.0, "max": 0}


@pytest.mark.parametrize(
    "fractions", [(0.5, 0.5), (1.2, -0.1, -0.1), (0.5, 0.1, 0.1), (0.0, 0.5, 0.5), (0.7, 0.2, 0.2)]
)
def test_a_split_that_does_not_add_up_is_refused(fractions: tuple[float, ...]) -> None:
    with pytest.raises(DataError, match="split"):
        part_sizes(np.array([10]), fractions)  # type: ignore[arg-type]


def test_sizes_of_parts_are_rounded_for_the_test_part_and_down_for_validation() -> None:
    sizes = np.array([0, 1, 2, 3, 10, 14, 101])
    train, validation = part_sizes(sizes, (0.6, 0.2, 0.2))
    # test: 0.2 of the rows, rounded, at least one and never all; validation: 0.2, rounded down
    assert (sizes - train - validation).tolist() == [0, 0, 1, 1, 2, 3, 20]
    assert validation.tolist() == [0, 0, 0, 0, 2, 2, 20]
    train, validation = part_sizes(sizes, (0.75, 0.25, 0.0))
    assert validation.tolist() == [0, 0, 0, 0, 2, 3, 25] and (train + validation == sizes).all()
