"""Data on their way into a federation: what is refused wherever it comes in, and what is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.data.arrays import as_inputs
from fedblocks.data.pools import DataPool
from fedblocks.data.sets import idx
from fedblocks.data.sets.signals import channel_statistics
from fedblocks.data.testbeds.camera import other_camera


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (torch.eye(2).to_sparse(), "x is a sparse tensor"),
        (torch.empty(2, device="meta"), "x is on the device meta"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), "x is a masked array"),
        (torch.tensor([2**63], dtype=torch.uint64), "row 0 of x has 9223372036854775808"),
    ],
    ids=["sparse", "meta", "masked", "wide"],
)
def test_inputs_that_hold_no_numbers_are_refused_by_themselves(values: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        as_inputs(values)


def test_inputs_are_taken_without_their_history() -> None:
    x = torch.ones(2, requires_grad=True)
    assert not as_inputs(x).requires_grad


@pytest.mark.parametrize("part", ["all", "train", "test"])
def test_of_the_compact_file_of_emnist_only_the_test_part_can_be_had(
    part: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def arrays(rows: int) -> dict[str, Any]:
        x = np.full((2, 1, 28, 28), 255, np.uint8)
        return {"x": x, "y": np.array([3, 5], np.uint8), "train_rows": np.array(rows)}

    monkeypatch.setattr(idx, "cached_arrays", lambda *_, split: arrays(1))
    assert idx.emnist("digits", part).y.tolist() == {"all": [3, 5], "train": [3], "test": [5]}[part]
    monkeypatch.setattr(idx, "cached_arrays", lambda *_, split: arrays(0))
    if part == "test":
        pool = idx.emnist("digits", part)
        assert pool.y.tolist() == [3, 5] and pool.classes == 10
        assert (pool.about["name"], pool.about["split"], pool.about["part"]) == (
            "emnist", "digits", "test",
        )  # fmt: skip
        assert pool.about["source"] == idx.EMNIST_HOME
        return
    with pytest.raises(DataError, match="holds the official test part only"):
        idx.emnist("digits", part)


def test_statistics_of_channels_are_in_double_precision_and_a_constant_keeps_its_scale() -> None:
    x = np.array([[[4096.25, 4096.75], [2.0, 2.0]]], np.float32)  # [windows, channels, steps]
    mean, deviation = channel_statistics(x)
    assert mean.tolist() == [4096.5, 2.0] and deviation.tolist() == [0.25, 1.0]
    assert (mean.dtype, deviation.dtype) == (np.float64, np.float64)


def test_a_camera_sees_every_image_alike_however_many_there_are() -> None:
    draw = torch.Generator().manual_seed(0)
    pool = DataPool(
        torch.rand(1030, 1, 2, 2, generator=draw), torch.zeros(1030, dtype=torch.int64), 1
    )
    seen = other_camera(pool, side=3, noise=0.0).x
    for row in (0, 511, 512, 513, 1023, 1024, 1029):
        alone = DataPool(pool.x[row : row + 1], pool.y[:1], 1)
        torch.testing.assert_close(seen[row], other_camera(alone, side=3, noise=0.0).x[0])
