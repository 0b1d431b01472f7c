"""Data that could mean two things are refused, and not read as one of them."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import fedblocks as fb
from fedblocks.core.errors import DataError
from fedblocks.data.joining import Parts

X = np.random.default_rng(0).normal(size=(40, 2)).astype("float32")
Y = np.arange(40) % 2
USERS = np.arange(40) % 4


def masked(values: Any) -> Any:
    """Its row 3 is masked."""
    return np.ma.masked_array(values, mask=(np.indices(np.shape(values))[0] == 3))


@pytest.mark.parametrize(
    ("name", "arrays"),
    [
        ("x", (masked(X), Y, USERS)),
        ("x", ([np.ma.masked_array(row, mask=i == 3) for i, row in enumerate(X)], Y, USERS)),
        ("y", (X, masked(Y), USERS)),
        ("y", (X, [np.ma.masked if i == 3 else 0 for i in range(40)], USERS)),
        ("users", (X, Y, masked(USERS))),
        ("a", ({"a": masked(X), "b": X}, Y, USERS)),
    ],
)
def test_a_masked_array_is_refused(name: str, arrays: tuple[Any, Any, Any]) -> None:
    with pytest.raises(DataError, match=f"{name} is a masked array, and row 3 of it is masked"):
        fb.Federation.from_users(*arrays)


def test_masked_arrays_are_refused_by_every_reader_of_arrays() -> None:
    numbers = fb.Task("regression")
    with pytest.raises(DataError, match="y is a masked array"):
        fb.Federation.from_users(X, masked(X[:, 0]), USERS, task=numbers)
    with pytest.raises(DataError, match="x is a masked array"):
        fb.Federation.from_arrays(masked(X), Y, [range(20), range(20, 40)])
    with pytest.raises(DataError, match="x is a masked array"):
        fb.Federation.from_parts([Parts(train=(masked(X), Y))])


def test_an_array_of_which_nothing_is_masked_is_taken() -> None:
    data = fb.Federation.from_users(np.ma.masked_array(X), Y, USERS)
    assert np.array_equal(data.x.numpy(), X)


def test_users_1_and_one_as_a_word_are_not_mixed() -> None:
    users = [1 if i % 2 else "1" for i in range(40)]
    with pytest.raises(DataError, match="users are of mixed types: 1 is an int"):
        fb.Federation.from_users(X, Y, users)


def write_table(path: Path, labels: list[str]) -> Path:
    rows = [f"{i / 7:.3f},{i % 3},{i % 4},{labels[i % len(labels)]}" for i in range(40)]
    path.write_text("\n".join(["a,b,user,label", *rows]))
    return path


def test_one_number_in_two_spellings_is_refused_as_a_label(tmp_path: Path) -> None:
    table = write_table(tmp_path / "a.csv", ["01", "1", "2"])
    with pytest.raises(DataError, match='the labels "01" and "1" are one number'):
        fb.Federation.from_csv(table)
    same = write_table(tmp_path / "b.csv", ["01", "02", "00"])
    assert sorted(set(fb.Federation.from_csv(same).y.tolist())) == [0, 1, 2]


def test_a_label_is_neither_the_user_nor_an_input(tmp_path: Path) -> None:
    table = write_table(tmp_path / "a.csv", ["0", "1"])
    with pytest.raises(DataError, match='"label" is both the label and the user'):
        fb.Federation.from_csv(table, user="label")
    with pytest.raises(DataError, match='the label "label" is among `columns`'):
        fb.Federation.from_csv(table, columns=["a", "label"])


def test_a_parquet_file_is_answered_as_a_table_is(tmp_path: Path) -> None:
    times = [datetime.datetime(2026, 1, 1)] * 40
    columns = {"a": X[:, 0], "time": times, "user": USERS, "label": Y}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    path = tmp_path / "a.parquet"
    with pytest.raises(DataError, match=r'in column "time", row 0 of .* is not a number'):
        fb.Federation.from_parquet(path)
    with pytest.raises(DataError, match=r'in column "time", row 0 of .* is not a number'):
        fb.Federation.from_parquet(path, "time", columns=["a"], task=fb.Task("regression"))
    with pytest.raises(DataError, match='the label "label" is among `columns`'):
        fb.Federation.from_parquet(path, columns=["a", "label"])
    with pytest.raises(DataError, match='"label" is both the label and the user'):
        fb.Federation.from_parquet(path, user="label", columns=["a"])
