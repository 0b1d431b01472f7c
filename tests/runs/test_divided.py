"""Data sets that know their parts keep them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.config.model import Config
from fedblocks.data import DATASETS
from fedblocks.data.pools import DataSet
from fedblocks.data.sets.divided import DividedPool
from fedblocks.runs.federations import federation_of


def timed() -> DividedPool:
    """Two users of six rows each, in the order of time: four to train, one to validate,
    one to test.
    """
    part = np.tile([0, 0, 0, 0, 1, 2], 2)
    return DividedPool(
        torch.arange(12.0)[:, None],
        torch.arange(12) % 3,
        3,
        np.repeat(["ann", "bob"], 6),
        part=part,
    )


def test_by_user_a_divided_pool_keeps_the_order_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS, "timed", DataSet("timed", timed, 3, "features", "two diaries"))
    table: dict[str, Any] = {
        "rounds": 1,
        "data": {"name": "timed", "partition": {"name": "by_user"}},
        "net": {"name": "mlp"},
        "method": {"name": "fedavg", "batch_size": 2},
    }
    actual = federation_of(Config.of(table))
    assert [actual.x[rows].flatten().tolist() for rows in actual.test] == [[5.0], [11.0]]
    assert list(actual.names) == ["ann", "bob"]
