"""Inputs and labels from numpy, torch and torch data sets, as the tensors that a
federation holds.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedblocks.core.errors import DataError
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.data.partition import as_labels

Inputs = npt.ArrayLike | Tensor


class MapDataset(Protocol):
    """Anything with a length that gives (input, label) by number, as torch's data sets do."""

    def __len__(self) -> int: ...
    def __getitem__(self, row: int, /) -> Any: ...


def as_inputs(x: Inputs) -> Tensor:
    """Bytes (0..255) become float32 in 0..1, other real numbers float32, whole numbers
    int64 (tokens).
    """
    tensor = x.detach().cpu() if isinstance(x, Tensor) else from_numpy(np.asarray(x))
    if tensor.dtype == torch.uint8:
        return tensor.to(torch.float32) / 255
    if tensor.is_floating_point():
        return _as_float32(tensor)
    return tensor.to(torch.int64)


def _as_float32(tensor: Tensor) -> Tensor:
    """The same numbers, if float32 can hold them."""
    narrow = tensor.to(torch.float32)
    if tensor.dtype == torch.float64 and not torch.isfinite(narrow.sum()):
        large = (narrow.isinf() & tensor.isfinite()).nonzero()
        if len(large):
            row, *place = large[0].tolist()
            message = f"row {row} has {tensor[(row, *place)].item():g}, too large for float32"
            raise DataError(message, "scale the inputs, for example to mean 0 and deviation 1")
    return narrow


def as_targets(y: Inputs, task: Task = CLASSIFICATION) -> Tensor:
    """Labels as int64, [rows] or [rows, steps]; numbers and several labels as float32, [rows,
    outputs].
    """
    if task.of_classes:
        return from_numpy(as_labels(y))
    tensor = y.detach().cpu() if isinstance(y, Tensor) else from_numpy(np.asarray(y))
    return tensor.to(torch.float32).reshape(len(tensor), *(tensor.shape[1:] or (1,)))


def from_numpy(array: npt.NDArray[Any]) -> Tensor:
    """A tensor that shares memory where it can; arrays that cannot be written to are copied."""
    if array.dtype.kind not in "fiub":
        raise DataError(f"arrays of type {array.dtype} cannot be inputs or labels", "give numbers")
    wide = array.astype(np.int64) if array.dtype in (np.uint16, np.uint32, np.uint64) else array
    native = np.ascontiguousarray(wide, dtype=wide.dtype.newbyteorder("="))
    return torch.from_numpy(native if native.flags.writeable else native.copy())


def stack_dataset(dataset: MapDataset, task: Task = CLASSIFICATION) -> tuple[Tensor, Tensor]:
    """Every (input, label) of a map-style data set, stacked."""
    if not len(dataset):
        raise DataError("the data set is empty", "give one with at least one row")
    try:
        pairs = [
            (torch.as_tensor(x), torch.as_tensor(y))
            for x, y in (dataset[row] for row in range(len(dataset)))
        ]
        x, y = torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])
    except (TypeError, ValueError, RuntimeError) as error:
        fix = "each item must be (input, label) of one shape; add a transform to tensors"
        raise DataError(f"the data set cannot be stacked: {error}", fix) from error
    return as_inputs(x), as_targets(y, task)
