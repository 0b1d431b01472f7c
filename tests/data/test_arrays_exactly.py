"""What arrays, labels and user ids are taken for at the edges, by cases computed by hand."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.task import Task
from fedblocks.data import arrays, duplicates
from fedblocks.data.array_kinds import LARGEST, as_array, as_numpy, refuse_sparse, refuse_wide
from fedblocks.data.arrays import as_inputs, as_targets, from_numpy, name_targets
from fedblocks.data.federation import Federation
from fedblocks.data.spellings import number_labels, refuse_two_spellings, user_fields
from fedblocks.data.user_ids import user_ids


def twice(width: int = 4) -> Federation:
    """Two clients of one training row each, which are also their test rows under other numbers."""
    x = np.random.default_rng(0).random((2, width)).astype(np.float32)
    data = Federation.from_arrays(np.tile(x, (2, 1)), [0, 1, 0, 1], [[0, 2], [1, 3]])
    rows = data.train.of([[0], [1]]), data.train.of([[], []]), data.train.of([[2], [3]])
    return Federation(data.x, data.y, *rows, data.classes)


def test_inputs_of_just_as_many_numbers_as_allowed_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(duplicates, "MOST", 16)  # 4 rows of 4
    assert duplicates.repeated_tests(twice()).startswith("2 of 2 test rows equal a training row")
    monkeypatch.setattr(duplicates, "MOST", 15)
    assert duplicates.repeated_tests(twice()) == ""


@pytest.mark.parametrize("piece", [1, 7, 20, 21])
def test_marks_do_not_depend_on_how_many_rows_are_taken_at_a_time(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(0).random((5, 7)).astype(np.float32)
    whole = duplicates._marks(rows)
    monkeypatch.setattr(duplicates, "_PIECE", piece)
    assert duplicates._marks(rows).tolist() == whole.tolist()
    assert len(set(whole.tolist())) == 5


def test_the_number_of_a_class_has_at_most_six_digits_and_zeros_before_it_are_none() -> None:
    labels, words = number_labels(["9", "999999", "0000003"])
    assert labels.tolist() == [9, 999999, 3] and labels.dtype == np.int64 and words == []
    with pytest.raises(DataError, match='the label "1000000" is too large'):
        number_labels(["9", "1000000", "2"])
    with pytest.raises(DataError, match=r'the label "1{40}" is too large'):
        number_labels(["1" * 50])


def test_the_first_label_with_a_fraction_is_named() -> None:
    with pytest.raises(DataError, match=r'the label "2\.5" is a number with a fraction'):
        number_labels(["1.0", "2.5", "3.5"])
    labels, words = number_labels(["b", "1.5", "a"])
    assert labels.tolist() == [2, 0, 1] and labels.dtype == np.int64
    assert words == ["1.5", "a", "b"]


def test_an_underscore_in_one_field_makes_words_of_all() -> None:
    refuse_two_spellings(["1_0", "1", "1.0"], "label")  # Decimal would read 1_0 as 10
    with pytest.raises(DataError, match=r'the labels "1" and "1\.0" are one number'):
        refuse_two_spellings(["10", "1", "1.0"], "label")


def test_user_ids_are_numbers_only_where_all_are_and_nobody_asks_for_words() -> None:
    assert user_fields([" 2", "-10 "]).tolist() == [2, -10]
    assert user_fields(["2", "10"]).dtype == np.int64
    assert user_fields([" 2", "10"], "words").tolist() == ["2", "10"]
    assert user_fields(["2", "x"]).tolist() == ["2", "x"]


def test_a_matrix_is_sparse_with_both_signs_of_it() -> None:
    class Table:
        def toarray(self) -> None: ...

    refuse_sparse(Table(), "x")
    complex_ones = torch.ones(2, dtype=torch.complex64)
    with pytest.raises(DataError, match="x is a tensor of complex numbers"):
        refuse_sparse(complex_ones, "x")
    with pytest.raises(DataError, match="x is a sparse tensor"):
        refuse_sparse(torch.ones(2, 2).to_sparse(), "x")
    refuse_sparse(torch.ones(2), "x")


def test_a_sequence_among_objects_is_told_with_the_first_row_of_another_length() -> None:
    objects = np.empty(3, dtype=object)
    objects[:] = [[1, 2], [3, 4], 5]
    with pytest.raises(DataError, match="sequences: row 0 has 2, row 2 has 0"):
        as_array(objects, "x")
    objects[2] = [5, 6]
    with pytest.raises(DataError, match="x is an array of objects that are sequences\n"):
        as_array(objects, "x")
    with pytest.raises(DataError, match="rows of x have unequal lengths: row 0 has 2, row 2 has 1"):
        as_array([[1, 2], [3, 4], [5], []], "x")
    assert as_array(np.array([1, None], dtype=object), "x").tolist() == [1, None]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (torch.float16, np.float16),
        (torch.float32, np.float32),
        (torch.float64, np.float64),
        (torch.bfloat16, np.float32),
        (torch.int32, np.int32),
    ],
)
def test_only_numbers_of_few_bits_become_float32(kind: torch.dtype, expected: Any) -> None:
    array = as_numpy(torch.tensor([1, 2]).to(kind))
    assert array.dtype == expected and array.tolist() == [1, 2]


def test_the_largest_number_of_int64_is_taken_and_the_next_refused_by_its_row() -> None:
    refuse_wide(np.array([LARGEST], np.uint64), "x")
    refuse_wide(np.array([], np.uint64), "x")
    refuse_wide(np.array([1e30]), "x")
    with pytest.raises(DataError, match=f"row 1 of x has {LARGEST + 3}, too large"):
        refuse_wide(np.array([[LARGEST], [LARGEST + 1], [LARGEST + 3]], np.uint64), "x")


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ([1.0, np.nan], "the user id of row 1 is nan\n"),
        ([np.nan, 1.0, np.nan], "the user id of row 0 is nan, and so are 1 more"),
        (np.array(["a", None, None, None], dtype=object), "row 1 is None, and so are 2 more"),
        (np.array(["a", np.nan], dtype=object), "the user id of row 1 is nan\n"),
        (np.array(["a", 3], dtype=object), "mixed types: 3 is"),
        (("a", 2), "mixed types: 2 is"),
        ([["a"], ["b"]], r"users have shape \[2, 1\]"),
        ([], "there are no rows"),
    ],
)
def test_user_ids_that_are_none_are_told_by_their_row(users: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        user_ids(users)


def test_user_ids_stay_what_they_are() -> None:
    assert user_ids(np.array(["b", "a"], dtype=object)).dtype.kind == "U"
    assert user_ids([2.0, 1.0]).tolist() == [2.0, 1.0]
    assert user_ids(torch.tensor([2, 1])).tolist() == [2, 1]
    assert user_ids((2, 1)).tolist() == [2, 1]


def test_a_number_that_float32_cannot_hold_is_named_with_its_row() -> None:
    x = np.array([[1.0, 2.0], [np.inf, 1.0], [3.0, 1e39]])
    with pytest.raises(DataError, match=r"row 2 has 1e\+39, too large for float32"):
        as_inputs(x)
    assert as_inputs(x[:2])[1, 0] == np.inf  # told elsewhere, with its client


def test_bytes_are_shares_and_other_numbers_keep_their_kind() -> None:
    assert as_inputs(np.array([0, 51, 255], np.uint8)).tolist() == pytest.approx([0, 0.2, 1])
    assert as_inputs(np.array([0, 51], np.uint16)).tolist() == [0, 51]
    assert as_inputs(np.array([True])).dtype == torch.int64
    assert as_inputs(np.array([1.5], np.float16)).dtype == torch.float32
    assert as_inputs(np.array([1.5], np.longdouble)).tolist() == [1.5]
    assert as_inputs(np.array([1.5, 2.5], ">f4")).tolist() == [1.5, 2.5]


def test_an_array_that_nobody_may_write_to_is_copied_and_others_are_shared() -> None:
    array = np.zeros(2, np.float32)
    from_numpy(array)[0] = 1
    assert array.tolist() == [1, 0]
    array.flags.writeable = False
    from_numpy(array)[1] = 1
    assert array.tolist() == [1, 0]


def lost(x: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        arrays.warn_of_lost_digits(x)
    assert all(one.filename == __file__ for one in told)
    return [str(one.message) for one in told]


def test_digits_that_float32_loses_are_told_with_their_column() -> None:
    """Float32 has steps of 64 at 1e9: 1e9 + 0..3 all become 1e9, a loss of 3; the deviation of
    0..3 is sqrt(5 / 4) = 1.12.
    """
    times = 1e9 + np.arange(4.0)
    x = np.stack([np.arange(4.0), times], 1)
    message = (
        "column 1 of x has values around 1000000000 with a standard deviation of 1.12, which "
        "float32 rounds by up to 3: subtract the mean before"
    )
    assert lost(x) == lost(torch.from_numpy(x)) == [message]
    assert lost(x.astype(np.float32)) == lost(x[:0]) == lost([1e9, 1e9 + 1]) == []
    assert lost(np.full((4, 1), 0.1)) == []  # the same number in all rows: nothing to lose


def test_small_numbers_around_nothing_are_to_be_scaled() -> None:
    """Below 1e-45 float32 has nothing but 0; the deviation of -1, 1, 1 is 0.94, the mean 0.33."""
    (message,) = lost(np.array([[-1e-50], [1e-50], [1e-50]]))
    assert message.endswith("float32 rounds by up to 1e-50: scale the column before")


def test_only_the_first_rows_are_looked_at_for_digits_and_two_at_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = np.concatenate([np.arange(4.0), 1e9 + np.arange(4.0)])[:, None] * np.ones(2)
    monkeypatch.setattr(arrays, "_LOOKED_AT", 8)  # 8 * 8 rows // 16 numbers: four rows
    assert lost(x) == [] and len(lost(x[4:])) == 1
    monkeypatch.setattr(arrays, "_LOOKED_AT", 1)
    assert len(lost(x[4:])) == 1  # one row would have no deviation


def test_words_of_several_steps_keep_their_shape() -> None:
    y, words = name_targets([["b", "a"], ["a", "c"]], Task("classification"))
    assert np.asarray(y).tolist() == [[1, 0], [0, 2]] and words == ["a", "b", "c"]
    tensor = torch.tensor([1])
    assert name_targets(tensor, Task("classification"))[0] is tensor
    numbers = ["1", "2"]
    assert name_targets(numbers, Task("regression")) == (numbers, [])


def test_targets_are_columns_and_as_wide_as_they_must_be() -> None:
    task = Task("regression")
    assert as_targets([1, 2], task).shape == (2, 1)
    assert as_targets(np.ones((2, 3)), task).shape == (2, 3)
    assert as_targets([0.5, np.nan], task).dtype == torch.float32
    assert as_targets([0.1, np.nan], task).dtype == torch.float64
    with pytest.raises(DataError, match=r'hold <U50 such as "a{40}", and targets of regression'):
        as_targets(["a" * 50, "b"], task)
    with pytest.raises(DataError, match='such as ""'):
        as_targets(np.array([], str), task)
