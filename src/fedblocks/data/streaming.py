"""Inputs that stay in a file, mapped by numpy: rows are read when somebody asks for them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedblocks.data.arrays import as_inputs

PIECE = 2**25  # bytes that are looked at together where all rows are


def is_in_file(x: Any) -> bool:
    """Whether this is an array mapped from a file, whose rows lie there one after the other."""
    mapped = isinstance(x, np.memmap) and getattr(x, "filename", None) is not None
    return mapped and x.ndim > 0 and x.flags.c_contiguous and x.dtype.isnative


def share_file(x: Any) -> Tensor:
    """The same memory as a tensor, of the type that the file has; nothing is read."""
    as_inputs(x[:0])  # refuses types that are no inputs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nobody may write to it, and nobody does
        return torch.from_numpy(np.asarray(x))


def input_type(x: Tensor) -> torch.dtype:
    """Of the inputs that rows of a file become."""
    return as_inputs(x[:0]).dtype


def read_rows(x: Tensor, rows: npt.NDArray[np.int64]) -> Tensor:
    """Some rows of a file as inputs, in memory of their own."""
    return as_inputs(x.numpy()[rows])


def pieces(x: Tensor) -> Iterator[tuple[int, Tensor]]:
    """All rows of a file, a piece after the other, each with the number of its first row."""
    each = max(1, x[:1].nbytes)
    step = max(1, PIECE // each)
    for first in range(0, len(x), step):
        yield first, as_inputs(x.numpy()[first : first + step])
