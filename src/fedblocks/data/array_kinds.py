"""Arrays and tensors that no federation takes: sparse ones, rows of unequal length, generators, and
bytes beside other numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedblocks.core.errors import DataError

LARGEST = 2**63 - 1  # of int64


def refuse_sparse(values: Any, name: str) -> None:
    """Refuse tensors and matrices that do not hold a number for each place."""
    if isinstance(values, Tensor):
        _refuse_odd_tensor(values, name)
    elif hasattr(values, "toarray") and hasattr(values, "nnz"):  # SciPy's
        raise DataError(f"{name} is a sparse matrix", f"give {name}.toarray()")


def _refuse_odd_tensor(tensor: Tensor, name: str) -> None:
    if tensor.is_nested:
        raise _unequal(f"{name} is a nested tensor, whose rows have unequal lengths")
    if tensor.layout != torch.strided:
        raise DataError(f"{name} is a sparse tensor", f"give {name}.to_dense()")
    if tensor.is_quantized:
        raise DataError(f"{name} is a quantized tensor", f"give {name}.dequantize()")
    if tensor.is_complex():
        fix = f"give torch.view_as_real({name}), or its absolute values"
        raise DataError(f"{name} is a tensor of complex numbers", fix)
    if tensor.is_meta:
        raise DataError(f"{name} is on the device meta, and holds no numbers", "give its numbers")


def refuse_iterator(values: Any, name: str) -> None:
    """Refuse a generator, which has no length and can be read once only."""
    if hasattr(values, "__next__"):
        message = f"{name}: a generator or another iterator, which can be read once only"
        raise DataError(message, "give all rows as an array or a list: list(...)")


def as_array(values: Any, name: str) -> npt.NDArray[Any]:
    """Rows as an array; those of unequal length are refused."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        raise _unequal(f"the rows of {name} have unequal lengths{_two_lengths(values)}") from None
    if array.dtype == object and any(_is_sequence(one) for one in array.flat):
        raise _unequal(f"{name} is an array of objects that are sequences{_two_lengths(values)}")
    return array


def as_numpy(tensor: Tensor) -> npt.NDArray[Any]:
    """The numbers of a tensor; kinds of few bits, which numpy does not know, as float32."""
    plain = tensor.detach().cpu()
    known = (torch.float16, torch.float32, torch.float64)
    is_narrow = plain.is_floating_point() and plain.dtype not in known
    return (plain.float() if is_narrow else plain).numpy()


def refuse_wide(array: npt.NDArray[Any], name: str) -> None:
    """Refuse whole numbers above those of int64, which would become negative ones."""
    if array.dtype == np.uint64 and array.size and int(array.max()) > LARGEST:
        row = int(np.argwhere(array > LARGEST)[0][0])
        message = f"row {row} of {name} has {int(array.max())}, too large for int64"
        raise DataError(message, "number tokens and categories from 0")


def refuse_bytes_beside_others(arrays: Iterable[tuple[str, Any]]) -> None:
    """Refuse named arrays of which some hold bytes: only these would be divided by 255. Those
    without rows have no numbers.
    """
    named = [(kind_of(values), name) for name, values in arrays if _size(values)]
    of_bytes = next((name for kind, name in named if kind == "uint8"), None)
    other = next((one for one in named if one[0] != "uint8"), None)
    if of_bytes is None or other is None:
        return
    message = (
        f"{of_bytes} holds bytes (uint8), which are divided by 255, and {other[1]} holds "
        f"{other[0]}, which stays as it is"
    )
    fix = 'bring all to one type and one scale: bytes, or x.astype("float32")'
    raise DataError(message, fix)


def refuse_mixed_rows(values: Any, name: str) -> None:
    """Refuse a list of rows of which some hold bytes: numpy and torch would make them one type."""
    rows = values if isinstance(values, list | tuple) else ()
    if any(hasattr(row, "dtype") for row in rows):
        refuse_bytes_beside_others((f"row {at} of {name}", row) for at, row in enumerate(rows))


def kind_of(values: Any) -> str:
    """The type of an array's numbers, or of the first one in a list: uint8, float32, int, ..."""
    while isinstance(values, list | tuple) and values:
        values = values[0]
    if hasattr(values, "to_numpy"):  # a table of pandas
        values = np.asarray(values[:1])
    return str(getattr(values, "dtype", type(values).__name__)).removeprefix("torch.")


def dims_of(values: Any) -> int:
    """The dimensions of an array, or of nested lists by their first entries."""
    if isinstance(values, list | tuple):
        return 1 + (dims_of(values[0]) if values else 0)
    return int(getattr(values, "ndim", 0))


def _size(values: Any) -> int:
    """How many rows an array has; of one number, 1."""
    return len(values) if dims_of(values) else 1


def _is_sequence(value: Any) -> bool:
    return isinstance(value, list | tuple | np.ndarray | Tensor)


def _two_lengths(values: Any) -> str:
    """The first row, and the first that is of another length."""
    lengths = [len(one) if hasattr(one, "__len__") else 0 for one in values]
    odd = next((row for row, length in enumerate(lengths) if length != lengths[0]), None)
    return "" if odd is None else f": row 0 has {lengths[0]}, row {odd} has {lengths[odd]}"


def _unequal(message: str) -> DataError:
    return DataError(message, "pad them to one length, and give one array, [rows, length]")
