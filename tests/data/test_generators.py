"""Rows that can be read once only are told as such."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedblocks import Federation
from fedblocks.core.errors import DataError
from fedblocks.data.partitions import iid

Y, USERS = np.arange(12) % 2, np.arange(12) % 3
X = np.arange(24.0).reshape(12, 2)


def test_a_generator_is_told_as_such() -> None:
    rows: Any = (row for row in X)
    with pytest.raises(DataError, match="x: a generator") as told:
        Federation.from_users(rows, Y, USERS)
    assert "list(...)" in told.value.fix
    with pytest.raises(DataError, match="users: a generator"):
        Federation.from_users(X, Y, iter(USERS))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="x: a generator"):
        Federation.from_arrays(rows, Y, iid(Y, 2))
