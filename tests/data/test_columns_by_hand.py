"""Typed columns, as parquet files and Hugging Face data sets have them, without either."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.data.sets.columns import (
    Roles,
    _known,
    _numbers,
    _targets,
    check_columns,
    inputs_of,
    pool_of_columns,
)
from fedblocks.data.user_ids import user_ids

NUMBERS, LABELS = Task("regression"), Task("multi-label")


def objects(*values: Any) -> Any:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def test_inputs_are_all_columns_that_have_no_other_role() -> None:
    roles = Roles("y", "who")
    assert roles.others(["a", "y", "who", "b"]) == ("a", "b")
    assert Roles("y", "who", ("b",)).others(["a", "y", "b"]) == ("b",)
    with pytest.raises(DataError, match='a table has no column "c"'):
        Roles("y", "who", ("b", "c")).check("a table", ["b", "y"])
    with pytest.raises(DataError, match='a table has no column "y"'):
        roles.check("a table", ["a"])
    with pytest.raises(DataError, match="a table has no column of inputs"):
        roles.check("a table", ["y", "who"])
    with pytest.raises(DataError, match='the label "y" is among `columns`'):
        Roles("y", "who", ("y",)).check("a table", ["y"])
    Roles("y", "who", ("y",), Task("next-token")).check("a table", ["y"])  # learned from itself
    check_columns("a table", ["a"], ["a", "b"])


def test_a_column_of_features_stands_beside_the_others() -> None:
    x, about = inputs_of("t", {"a": np.array([1, 2]), "b": np.array([0.5, 1.5])})
    assert x.tolist() == [[1.0, 0.5], [2.0, 1.5]] and x.dtype == torch.float32 and about == {}
    x, about = inputs_of("t", {"a": np.array([1.0, 2.0, 3.0])})
    assert x.tolist() == [[1.0], [2.0], [3.0]] and about == {}
    x, about = inputs_of("t", {"a": np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])})
    assert x.shape == (3, 2) and about == {}
    x, about = inputs_of("t", {"a": np.array([[1.0, 2.0]]), "b": np.array([3.0])})
    assert x.tolist() == [[1.0, 2.0, 3.0]] and [*about] == ["fields"]


def test_values_of_objects_are_stacked_if_all_are_there_and_alike() -> None:
    whole = np.array([3, 4])
    assert _numbers("t", "a", whole) is whole
    assert _numbers("t", "a", objects([1, 2], [3, 4])).tolist() == [[1, 2], [3, 4]]
    assert _numbers("t", "a", objects(Decimal("1.5"), Decimal(2))).tolist() == [1.5, 2.0]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (objects([1], None, None), 'row 1 of "a" in t has no value'),
        (objects(None, None), 'row 0 of "a" in t has no value'),
        (objects("one", "two"), 'the column "a" of t holds words'),
        (objects([1, 2], [3]), 'the rows of "a" in t are of unlike length'),
        (objects({}, {}), 'column "a", row 0 of t, is not a number'),
    ],
)
def test_what_is_missing_or_no_number_is_named(column: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        _numbers("t", "a", column)


def test_targets_that_are_numbers_stand_side_by_side_and_may_be_missing() -> None:
    y, names = _targets(
        "t", {"a": np.array([1, 2]), "b": objects(None, Decimal("0.5"))}, NUMBERS, ["no"]
    )
    assert names == ["a", "b"] and y[:, 0].tolist() == [1.0, 2.0]
    assert y[0, 1].isnan() and y[1, 1] == 0.5
    y, names = _targets("t", {"a": np.array([[1, 0], [0, 1]])}, LABELS, ["cat", "dog"])
    assert y.tolist() == [[1.0, 0.0], [0.0, 1.0]] and names == ["cat", "dog"]
    with pytest.raises(DataError, match='the label "a" of t holds words'):
        _known("t", "a", objects(1, "two"))


def test_labels_are_words_in_their_order_or_numbers_that_stand_for_some() -> None:
    y, names = _targets("t", {"a": objects("dog", "cat", "dog")}, CLASSIFICATION, ["no"])
    assert y.tolist() == [1, 0, 1] and names == ["cat", "dog"]
    y, names = _targets("t", {"a": np.array([1, 0, 1])}, CLASSIFICATION, ["cat", "dog"])
    assert y.tolist() == [1, 0, 1] and names == ["cat", "dog"]
    for missing in ("", None):
        with pytest.raises(DataError, match='there is no value in column "a", row 1 of t'):
            _targets("t", {"a": objects("dog", missing)}, CLASSIFICATION, [])


def test_a_pool_of_columns_says_what_it_is_made_of() -> None:
    columns = {
        "y": np.array([0, 2]), "who": objects("b", "a"), "x": np.array([1.0, 2.0]),
        "z": np.array([3.0, 4.0]),
    }  # fmt: skip
    pool = pool_of_columns("t", columns, Roles("y", "who"), {"name": "t"})
    assert pool.x.tolist() == [[1.0, 3.0], [2.0, 4.0]] and pool.y.tolist() == [0, 2]
    assert pool.classes == 3 and list(pool.users) == ["b", "a"]  # type: ignore[arg-type]
    assert pool.about == {"name": "t", "columns": ["x", "z"], "class_names": []}
    named = pool_of_columns("t", columns, Roles("y", "nobody", ("x",)), {}, ["a", "b", "c", "d"])
    assert named.classes == 4 and named.users is None and named.x.tolist() == [[1.0], [2.0]]
    numbers = pool_of_columns("t", columns, Roles(("y", "z"), "who", task=NUMBERS), {})
    assert numbers.classes == 2 and numbers.y.tolist() == [[0.0, 3.0], [2.0, 4.0]]
    assert numbers.about["class_names"] == ["y", "z"]


@pytest.mark.parametrize(
    ("users", "said"),
    [
        (objects("a", None, float("nan")), "the user id of row 1 is None, and so are 1 more"),
        (objects(float("nan"), "b"), "the user id of row 0 is nan"),
        (np.array([1.0, 2.0, np.nan]), "the user id of row 2 is nan"),
        (objects("a", 1), "users are of mixed types: 1 is"),
        (["a", 1], "users are of mixed types: 1 is"),
        ([], "there are no rows"),
        ([[1], [2]], r"users have shape \[2, 1\]"),
    ],
)
def test_a_user_id_that_is_missing_or_odd_is_named(users: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        user_ids(users)


def test_ids_of_one_kind_are_taken_as_they_are() -> None:
    assert user_ids(objects("b", "a")).dtype.kind == "U"
    assert user_ids([3, 1]).tolist() == [3, 1] and user_ids(("b", "a")).tolist() == ["b", "a"]
