"""Small parts of the data at their edges, each by a case that can be computed by hand."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.random import generator
from fedblocks.core.task import Task
from fedblocks.data.arrays import check_no_list
from fedblocks.data.duplicates import _marks
from fedblocks.data.federation import Federation
from fedblocks.data.pachinko import parents
from fedblocks.data.partitions import iid
from fedblocks.data.rows import Rows, read_only
from fedblocks.data.sets.angles import lean
from fedblocks.data.sets.columns import _targets
from fedblocks.data.sets.har_groups import sides
from fedblocks.data.sets.signals import Windows
from fedblocks.data.shifts import permute_labels, rotate
from fedblocks.data.streaming import share_file
from fedblocks.data.testbeds.camera import blur_images


def test_a_blur_reaches_three_widths_on_both_sides() -> None:
    """Of width 2: six pixels. A dot becomes exp(-d^2 / 8) of its middle, nothing from 7 on."""
    image = torch.zeros(1, 1, 31, 31)
    image[0, 0, 15, 15] = 1.0
    row = blur_images(image, 2.0)[0, 0, 15]
    assert row[15 + 6] / row[15] == pytest.approx(np.exp(-36 / 8), rel=1e-4)
    assert row[15 + 7] == 0 and row[15 - 7] == 0


def test_numbers_that_a_table_holds_as_objects_are_no_words() -> None:
    """As words, 10 would come before 9."""
    column = np.array([10, 9, 10], dtype=object)
    targets, _ = _targets("a table", {"kind": column}, Task("classification"), ())
    assert targets.tolist() == [10, 9, 10]
    words, names = _targets(
        "a table", {"kind": np.array(["b", "a"], dtype=object)}, Task("classification"), ()
    )
    assert words.tolist() == [1, 0] and names == ["a", "b"]


def test_a_file_that_nobody_may_write_to_is_shared_without_a_warning(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((3, 2), np.float32))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    torch.set_warn_always(True)  # or torch warns of this once in a process
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert share_file(x).sum() == 6
    finally:
        torch.set_warn_always(False)


def test_the_mark_of_a_row_is_a_sum_with_random_factors_modulo_2_to_64() -> None:
    first, second = generator(0, "duplicates", 2).integers(-(2**63), 2**63 - 1, 2).tolist()
    marks = _marks(np.array([[1, 2], [3, 4]], np.int8)).tolist()
    sums = [first + 2 * second, 3 * first + 4 * second]
    assert marks == [(value + 2**63) % 2**64 - 2**63 for value in sums]


def test_a_fine_label_that_nobody_has_is_under_the_first_coarse_one() -> None:
    assert parents(np.array([0, 2]), np.array([5, 6])).tolist() == [5, 0, 6]


def test_windows_that_are_just_enough_are_all_taken() -> None:
    """Two recordings of two windows: one for training, the other for test."""
    four = np.zeros(4, np.int64)
    cut = Windows(np.zeros((4, 3, 2)), four, four, np.array([0, 0, 1, 1]))
    rng = np.random.default_rng(0)
    train, test = sides(cut, 0, 2, 2, rng, ["walks"])
    assert sorted([*train.tolist(), *test.tolist()]) == [0, 1, 2, 3]
    for more in ((3, 2), (2, 3)):
        with pytest.raises(DataError, match=r"walks: \d \+ \d windows, where"):
            sides(cut, 0, *more, rng, ["walks"])


def test_an_angle_is_that_of_a_mean_in_double_precision() -> None:
    """(1e8 + 1 - 1e8) / 3 along both axes is a third: 45 degrees. In single precision it is 0."""
    steps = np.array([1e8, 1.0, -1e8], np.float32)
    third = np.full(3, 1 / 3, np.float32)
    angle = lean(np.stack([steps, third, np.zeros(3, np.float32)])[None])
    assert angle.tolist() == pytest.approx([np.pi / 4], abs=1e-6)


def test_a_list_of_arrays_is_refused_only_where_all_have_the_rows_of_the_labels() -> None:
    three, four = np.zeros((3, 2)), np.zeros((4, 2))
    check_no_list([three, four], 3)
    with pytest.raises(DataError, match="x is a list of 2 arrays of 3 rows"):
        check_no_list([three, three], 3)


def test_row_numbers_are_long_whatever_they_were() -> None:
    for values in ([], [1, 2], np.array([1, 2], np.int32)):
        assert read_only(values).dtype == np.int64
    assert Rows.of([[], np.array([1], np.int32)]).index.dtype == np.int64


@pytest.mark.parametrize("shift", [rotate, permute_labels])
def test_a_shift_leaves_the_data_that_it_was_given_as_they_were(shift: Any) -> None:
    x, y = np.random.default_rng(0).random((8, 1, 4, 4)).astype(np.float32), [0, 1, 2, 3] * 2
    data = Federation.from_arrays(x, np.array(y), iid(np.array(y), 4))
    before = data.hash()
    shifted = shift(data, groups=2)
    assert data.hash() == before != shifted.hash()
