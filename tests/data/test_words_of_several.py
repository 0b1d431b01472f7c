"""Labels that are words, of clients that bring their own arrays and of official pools: numbered
alike for all, as they are where one pool is divided.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedblocks as fb
from fedblocks.data import Parts

X = np.arange(12, dtype="float32")[:, None]


def parts(train: Any, test: Any) -> Parts:
    return Parts(train=(X[: len(train)], np.array(train)), test=(X[: len(test)], np.array(test)))


def test_clients_that_bring_words_have_one_numbering() -> None:
    data = fb.Federation.from_parts(
        [parts(["cat", "ant", "cat"], ["ant"]), parts(["bee", "cat"], ["dog"])]
    )
    # ant 0, bee 1, cat 2, dog 3; training rows of both clients come first
    assert data.y.tolist() == [2, 0, 2, 1, 2, 0, 3]
    assert data.classes == 4 and data.about["class_names"] == ["ant", "bee", "cat", "dog"]


def test_words_of_one_client_are_numbered_as_from_users_numbers_them() -> None:
    words = ["b", "a"] * 6
    one = fb.Federation.from_parts([parts(words, words)])
    other = fb.Federation.from_users(X, words, [0] * 12)
    assert one.about["class_names"] == other.about["class_names"] == ["a", "b"]
    assert one.y[:12].tolist() == other.y.tolist()


@pytest.mark.parametrize("with_validation", [True, False])
def test_official_pools_may_have_words(with_validation: bool) -> None:
    train = X, np.array(["b", "a", "c"] * 4)
    test = X[:3], np.array(["c", "b", "a"])
    halves = [list(range(6)), list(range(6, 12))]
    rest = {"validation": test} if with_validation else {}
    data = fb.Federation.from_pools(train, test, halves, **rest)  # type: ignore[arg-type]
    assert data.y.tolist() == [1, 0, 2] * 4 + [2, 1, 0] * (2 if with_validation else 1)
    assert data.about["class_names"] == ["a", "b", "c"]


def test_words_beside_numbers_are_refused_with_whose_they_are() -> None:
    with pytest.raises(fb.DataError, match=r"client-1 \(train\): labels are numbers"):
        fb.Federation.from_parts([parts(["a", "b"], ["a"]), parts([0, 1], [1])])


def test_a_part_without_rows_has_no_labels_to_name() -> None:
    data = fb.Federation.from_parts([parts(["a", "b"], []), parts(["b"], ["a"])])
    assert data.y.tolist() == [0, 1, 1, 0]
