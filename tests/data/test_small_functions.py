"""Small functions on data, each against numbers worked out by hand."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.task import Task
from fedblocks.data import shifts
from fedblocks.data.arrays import as_rows, has_fields, name_targets
from fedblocks.data.dirichlets import draw_counts, label_groups, normalise
from fedblocks.data.dividing import count_classes, rows_of
from fedblocks.data.overview import tag_counts
from fedblocks.data.partition import cut, deal, share_out
from fedblocks.data.rows import some_names
from fedblocks.data.streaming import is_in_file, pieces
from fedblocks.data.synthetic import next_token_windows
from fedblocks.data.user_ids import user_ids


def test_cuts_are_where_shares_add_up_to_whole_rows() -> None:
    assert cut(np.array([0.25, 0.25, 0.5]), 10).tolist() == [2, 3, 5]  # ends 2.5, 5, 10
    assert cut(np.array([0.3, 0.3]), 10).tolist() == [3, 3]  # 4 rows are left out
    assert cut(np.array([1 / 3] * 3), 3).tolist() == [1, 1, 1]


def test_what_rounding_owes_goes_to_those_it_took_most_from() -> None:
    counts, owed = share_out(np.array([0.5, 0.5, 0.0]), 3, np.zeros(3))
    assert counts.tolist() == [2, 1, 0] and owed.tolist() == [-0.5, 0.5, 0.0]
    counts, owed = share_out(np.array([0.5, 0.5, 0.0]), 3, owed)
    assert counts.tolist() == [1, 2, 0] and owed.tolist() == [0.0, 0.0, 0.0]


def test_rows_of_each_class_are_dealt_in_their_order() -> None:
    dealt = deal([np.array([7, 8, 9]), np.array([1, 2])], np.array([[1, 2], [0, 1]]))
    assert [own.tolist() for own in dealt] == [[7], [8, 9, 1]]


def test_weights_that_have_all_become_nothing_are_even() -> None:
    allowed = np.array([True, False, True])
    assert normalise(np.array([1.0, 5.0, 3.0]), allowed).tolist() == [0.25, 0.0, 0.75]
    assert normalise(np.zeros(3), allowed).tolist() == [0.5, 0.0, 0.5]


def test_no_more_is_drawn_than_there_is() -> None:
    rng = np.random.default_rng(0)
    assert (
        draw_counts(rng, np.array([0.98, 0.01, 0.01]), np.array([2, 2, 2]), 6).tolist() == [2] * 3
    )
    assert draw_counts(rng, np.array([1.0, 0.0]), np.array([5, 5]), 4).tolist() == [4, 0]


def test_groups_of_classes_are_as_even_as_can_be_and_the_larger_ones_last() -> None:
    groups = label_groups(8, 3, random.Random(0))
    assert [len(group) for group in groups] == [2, 3, 3]
    together = [one for group in groups for one in group]
    assert sorted(together) == list(range(8)) != together


def test_a_group_keeps_a_window_of_the_classes_and_the_windows_lie_around_a_circle() -> None:
    weights = shifts.class_weights(4, 8, keep=0.5)
    assert weights.sum(1).tolist() == [4.0] * 4 and weights.sum(0).tolist() == [2.0] * 8
    assert (weights[0] + weights[2]).tolist() == [1.0] * 8  # half a circle apart
    assert shifts.class_weights(2, 3, keep=0.01).sum(1).tolist() == [1.0, 1.0]


def test_streams_are_cut_and_padded_at_their_end() -> None:
    x, y = next_token_windows([1, 2, 3, 4], 2, padding=9)
    assert x.tolist() == [[1, 2], [3, 9]] and y.tolist() == [[2, 3], [4, -100]]
    assert next_token_windows([1, 2, 3], 2)[0].tolist() == [[1, 2]]


def test_names_are_listed_up_to_a_number_of_them() -> None:
    names = ["a", "b", "c"]
    assert some_names(names, [0, 1, 2], most=3) == '"a", "b", "c"'
    assert some_names(names, [0, 1, 2], most=2) == '"a", "b" and 1 more'


def test_several_fields_are_a_dictionary_or_a_tuple_of_arrays_with_all_rows() -> None:
    a, b = np.zeros((3, 2)), np.zeros((3, 4))
    assert has_fields({"a": a}, 3) and has_fields((a, b), 3)
    assert not has_fields((a, b[:2]), 3) and not has_fields([a, b], 3)
    assert not has_fields((a[0], a[1], a[2]), 3)  # three rows
    packed, fields = as_rows((a, b), 3)
    assert packed.shape == (3, 6) and fields is not None and as_rows(a, 3)[1] is None


def test_bytes_are_a_picture_in_0_to_1_and_a_mask_stays_whole() -> None:
    picture = np.full((2, 1, 2, 2), 255, np.uint8)
    mask = np.array([[0, 1], [1, 200]], np.uint8)
    packed, fields = as_rows({"picture": picture, "mask": mask}, 2)
    assert fields is not None
    back = dict(zip(fields.labels, fields.unpack(packed), strict=True))
    assert back["picture"].max() == 1.0 and back["mask"].tolist() == mask.tolist()


def test_words_become_numbers_of_classes_and_nothing_else_does() -> None:
    assert name_targets(["b", "a", "b"], Task())[1] == ["a", "b"]
    assert np.asarray(name_targets(["b", "a", "b"], Task())[0]).tolist() == [1, 0, 1]
    words = np.array(["b", "a"], dtype=object)
    assert name_targets(words, Task())[1] == ["a", "b"]
    assert name_targets(words, Task("regression")) == (words, [])
    unknown = np.array(["b", None], dtype=object)
    assert name_targets(unknown, Task())[1] == [] and name_targets([], Task())[1] == []


def test_classes_are_counted_from_the_largest_label_unless_somebody_says() -> None:
    y = torch.tensor([0, 4, 1])
    assert count_classes(y, None) == 5 and count_classes(y, 7) == 7
    assert count_classes(y[:0], None) == 1
    assert count_classes(torch.zeros(3, 2), None, Task("regression")) == 2


def test_rows_are_those_of_the_first_field_and_a_number_has_none() -> None:
    assert (
        rows_of({"a": [1, 2], "b": [1]}) == 2
        and rows_of([1]) == 1
        and rows_of(7) == 0 == rows_of({})
    )


def test_only_an_array_whose_rows_lie_in_a_file_stays_there(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6.0).reshape(3, 2))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert is_in_file(mapped) and is_in_file(mapped[1:])
    assert not is_in_file(mapped.T) and not is_in_file(np.asarray(mapped))
    assert not is_in_file(mapped[:, 0]) and not is_in_file(mapped.astype(">f8"))


def test_a_file_is_looked_at_in_pieces_that_cover_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedblocks.data.streaming.PIECE", 20)
    x = torch.arange(10.0).view(5, 2)  # 8 bytes a row
    assert [(first, piece.tolist()) for first, piece in pieces(x)] == [
        (0, [[0, 1], [2, 3]]), (2, [[4, 5], [6, 7]]), (4, [[8, 9]]),
    ]  # fmt: skip
    monkeypatch.setattr("fedblocks.data.streaming.PIECE", 1)
    assert [len(piece) for _, piece in pieces(x)] == [1] * 5


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ([], "there are no rows"), ([[1, 2]], "not one id for each row"),
        ([1.0, np.nan, np.nan], "the user id of row 1 is nan, and so are 1 more"),
        (np.array(["a", None], dtype=object), "the user id of row 1 is None\n"),
        (np.array(["a", 3], dtype=object), "mixed types: 3 is an? "),
    ],
)  # fmt: skip
def test_a_user_id_that_is_missing_or_odd_is_told(users: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        user_ids(users)


def test_user_ids_are_numbers_or_words() -> None:
    assert user_ids([2, 1]).tolist() == [2, 1] and user_ids([0.5]).tolist() == [0.5]
    words = user_ids(np.array(["b", "a"], dtype=object))
    assert words.tolist() == ["b", "a"] and words.dtype.kind == "U"


def test_tags_are_counted() -> None:
    assert tag_counts(np.array([1, 0, 1])) == {"0": 1, "1": 2}
