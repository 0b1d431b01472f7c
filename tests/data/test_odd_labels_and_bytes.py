"""Labels that count thousands of millions, labels of one step, and bytes where words are meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks import Federation, Task
from fedblocks.core.errors import DataError
from fedblocks.data.partitions import dirichlet_labels

X = np.zeros((12, 2), "float32")
Y, USERS = np.arange(12) % 2, np.arange(12) % 3


@pytest.mark.parametrize("kind", ["int64", "float64"])
def test_labels_too_large_for_classes_are_refused_before_they_are_divided_by(kind: str) -> None:
    y = np.array([0, 10_000_000_000] * 6).astype(kind)
    with pytest.raises(DataError, match="label 10000000000 of row 1 is too large") as told:
        Federation.from_arrays(X, y, lambda labels: dirichlet_labels(labels, 2, 0.5))
    assert "np.unique" in told.value.fix
    y[:] = Y
    y[3] = 999_999
    assert Federation.from_users(X, y, USERS).classes == 1_000_000
    y[3] = 1_000_000
    with pytest.raises(DataError, match="of row 3 is too large"):
        Federation.from_users(X, torch.from_numpy(y), USERS)


def test_numbers_to_be_learned_may_be_as_large_as_they_are() -> None:
    y = np.array([0.0, 1e10] * 6)
    assert Federation.from_users(X, y, USERS, task=Task("regression")).y.max() == 1e10


def remarks(y: Any, task: str = "classification") -> list[str]:
    data = Federation.from_users(X, y, USERS, task=Task(task))  # type: ignore[arg-type]
    return [text for text in data.warnings() if "step" in text]


def test_labels_in_a_column_are_told_to_be_read_as_sequences() -> None:
    (text,) = remarks(Y[:, None])
    assert "shape [12, 1]" in text and "y[:, 0]" in text


def test_labels_as_rows_of_zeros_and_a_one_are_told_to_be_read_as_sequences() -> None:
    (text,) = remarks(np.eye(3, dtype=int)[np.arange(12) % 3])
    assert "shape [12, 3]" in text and "y.argmax(1)" in text


def test_of_labels_for_each_step_nothing_is_said() -> None:
    assert remarks(Y) == remarks(np.stack([Y, Y], 1)) == []
    assert remarks(Y[:, None], "sequence-labelling") == []


def parquet_file(path: Path, **columns: Any) -> Path:
    pa = pytest.importorskip("pyarrow", reason="pip install 'fedblocks[parquet]'")
    from pyarrow import parquet

    table = {"a": [0.5] * 12, "label": Y, "user": USERS, **columns}
    parquet.write_table(pa.table(table), path)
    return path


@pytest.mark.parametrize("column", ["a", "label"])
def test_bytes_of_a_parquet_file_are_no_numbers(column: str, tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "t.parquet", **{column: [b"12", b"3"] * 6})
    with pytest.raises(DataError, match=rf'column "{column}" of .* holds bytes, such as b\'12\''):
        Federation.from_parquet(path)
    if column == "label":
        with pytest.raises(DataError, match="holds bytes"):
            Federation.from_parquet(path, task=Task("regression"))


def test_user_ids_of_bytes_are_refused(tmp_path: Path) -> None:
    ids = [b"a", b"b", b"c"] * 4
    for users in (ids, np.array(ids), np.array(ids, object)):
        with pytest.raises(DataError, match=r"user ids are bytes, such as b'a'") as told:
            Federation.from_users(X, Y, users)
        assert "decode" in told.value.fix
    with pytest.raises(DataError, match="user ids are bytes"):
        Federation.from_parquet(parquet_file(tmp_path / "t.parquet", user=ids))
    with pytest.raises(DataError, match="of mixed types"):
        Federation.from_users(X, Y, ["a", b"b", "c"] * 4)
