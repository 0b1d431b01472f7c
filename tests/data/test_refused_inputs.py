"""Inputs and labels that hold no number for each place: told by name, alone and among several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.task import CLASSIFICATION
from fedblocks.data.arrays import as_rows, as_targets, name_targets


class Sparse:
    """As SciPy's matrices look."""

    nnz, shape, dtype, ndim = 1, (2, 2), np.dtype(float), 2

    def __len__(self) -> int:
        return 2

    def toarray(self) -> Any:
        return np.eye(2)


MASKED = np.ma.masked_array(np.ones((2, 2)), np.eye(2, dtype=bool))


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (Sparse(), "x is a sparse matrix"),
        (torch.eye(2).to_sparse(), "x is a sparse tensor"),
        ({"a": Sparse(), "b": np.ones((2, 1))}, "a is a sparse matrix"),
        ({"a": np.ones((2, 1)), "b": torch.eye(2).to_sparse()}, "b is a sparse tensor"),
        (MASKED, "x is a masked array"),
        ({"a": MASKED, "b": np.ones((2, 1))}, "a is a masked array"),
        ((np.ones((2, 1)), MASKED, np.ones((2, 1))), "input 1 is a masked array"),
        ([np.ones((2, 1)), np.ones((2, 3)), np.ones((2, 1))], "x is a list of 3 arrays of 2 rows"),
    ],
    ids=range(8),
)
def test_inputs_that_are_no_rows_of_numbers_are_refused_alone_and_among_several(
    x: Any, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        as_rows(x, 2)


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (np.ma.masked_array([1, 0], [True, False]), "y is a masked array"),
        (torch.tensor([1, 0]).to_sparse(), "y is a sparse tensor"),
        (torch.empty(2, device="meta"), "y is on the device meta"),
    ],
    ids=["masked", "sparse", "meta"],
)
def test_labels_that_hold_no_numbers_are_refused(y: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        name_targets(y, CLASSIFICATION)


def test_masked_targets_are_refused_by_themselves() -> None:
    with pytest.raises(DataError, match="y is a masked array"):
        as_targets(np.ma.masked_array([1, 0], [True, False]))
