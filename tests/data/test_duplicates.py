"""Rows that are both trained and tested on, under one number or two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedblocks as fb
from fedblocks.data import Parts, duplicates

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(120, 4)).astype("float32"), RNG.integers(0, 2, 120)


def told(data: fb.Federation) -> list[str]:
    return [text for text in data.warnings() if "test rows equal a training row" in text]


def parts(x: Any, y: Any, other: Any, labels: Any) -> fb.Federation:
    return fb.Federation.from_parts(
        [Parts(train=(x[i::3], y[i::3]), test=(other[i::3], labels[i::3])) for i in range(3)]
    )


def test_equal_arrays_for_training_and_test_are_told() -> None:
    assert told(parts(X, Y, X, Y))[0].startswith("120 of 120 test rows equal a training row")
    assert told(parts(X, Y, RNG.normal(size=X.shape).astype("float32"), Y)) == []


def test_a_row_that_is_there_six_times_is_found_wherever_it_went() -> None:
    data = fb.Federation.from_users(np.tile(X[:20], (6, 1)), np.tile(Y[:20], 6), np.arange(120) % 3)
    assert told(data)[0].startswith("24 of 24")


def test_the_same_input_with_another_target_is_another_row() -> None:
    assert told(parts(X, Y, X, 1 - Y)) == []


def test_a_few_equal_rows_are_usual() -> None:
    other = RNG.normal(size=X.shape).astype("float32")
    other[:11] = X[:11]
    assert told(parts(X, Y, other, Y)) == []  # 11 of 120, below a tenth
    other[11] = X[11]
    assert told(parts(X, Y, other, Y))[0].startswith("12 of 120")


def test_rows_under_one_number_are_told_by_their_numbers() -> None:
    data = fb.Federation.from_arrays(X, Y, [list(range(60)), list(range(40, 100))])
    assert any("are both trained and tested on" in text for text in data.warnings())
    assert told(data) == []


def test_what_is_alike_by_its_nature_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    few, tokens, zeros = X[:, :3], np.tile([[1, 2, 3, 4]], (120, 1)), np.zeros_like(X)
    for x in (few, tokens, zeros):
        assert told(parts(x, Y, x, Y)) == []
    monkeypatch.setattr(duplicates, "MOST", 100)
    assert told(parts(X, Y, X, Y)) == []


@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_marks_of_equal_rows_are_equal_and_of_others_are_not(kind: Any) -> None:
    rows = RNG.integers(-5, 5, (200, 7)).astype(kind)
    rows[100:] = rows[:100]
    marks = duplicates._marks(rows)
    assert (marks[:100] == marks[100:]).all()
    assert len(np.unique(marks)) == len(np.unique(rows, axis=0))
