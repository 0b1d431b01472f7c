"""Inputs and labels from numpy, torch and torch data sets, as the tensors that a
federation holds.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedblocks.core.errors import DataError
from fedblocks.core.fields import Fields
from fedblocks.core.losses import IGNORE
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.data.array_kinds import as_array, refuse_mixed_rows, refuse_sparse, refuse_wide
from fedblocks.data.masked import refuse_masked
from fedblocks.data.partition import as_labels, refuse_large_labels
from fedblocks.data.spellings import number_words, refuse_nul, says_nothing

Inputs = npt.ArrayLike | Tensor
# several fields: name -> [rows, ...], or a tuple of such
FieldInputs = Mapping[str, Inputs] | tuple[Inputs, ...]
FIELDS = "fields"  # where a federation's `about` has them
PICTURES = 3  # from so many dimensions on, bytes of a field are scaled
_LOOKED_AT = 1_000_000  # numbers of the inputs that are looked at for digits
_MOST_LOST = 0.01  # of a column's standard deviation, that rounding may move a number
_ROUNDING = 1e-14  # of a column's size, that differences of one number's last digits may have
_ABOVE_INT64 = 2.0**63


def as_inputs(x: Inputs, name: str = "x") -> Tensor:
    """Bytes (0..255) become float32 in 0..1, other real numbers float32, whole numbers
    int64 (tokens).
    """
    array = _one_array(x, name)
    tensor = array.detach().cpu() if isinstance(array, Tensor) else from_numpy(array, name)
    if tensor.dtype == torch.uint64:
        refuse_wide(tensor.numpy(), name)
    if tensor.dtype == torch.uint8:
        return tensor.to(torch.float32) / 255
    if tensor.is_floating_point():
        return _as_float32(tensor)
    return tensor.to(torch.int64)


def _one_array(x: Inputs, name: str) -> npt.NDArray[Any] | Tensor:
    """Rows as an array or a tensor, of one type."""
    refuse_masked(x, name)
    refuse_sparse(x, name)
    refuse_mixed_rows(x, name)
    return x if isinstance(x, Tensor) else as_array(x, name)


def as_rows(
    x: Inputs | FieldInputs, rows: int, columns: Sequence[str] = ()
) -> tuple[Tensor, Fields | None]:
    """Inputs as one tensor, and the fields of an example where it has several: they are side by
    side in a row of numbers. `columns` are the names of features, where they have some.
    """
    refuse_sparse(x, "x")
    check_no_list(x, rows)
    if not has_fields(x, rows):
        array = _one_array(x, "x")  # type: ignore[arg-type]
        warn_of_lost_digits(array, [f'"{name}"' for name in columns])
        return as_inputs(array), None
    if isinstance(x, Mapping):
        inputs: Any = {str(name): _as_field(values, str(name)) for name, values in x.items()}
    else:
        inputs = tuple(
            _as_field(values, f"input {place}")
            for place, values in enumerate(x)  # type: ignore[arg-type]
        )
    fields = Fields.of(inputs)
    return fields.pack(inputs), fields


def about_fields(fields: Fields | None) -> dict[str, Any]:
    """What a federation's `about` says of them."""
    return {} if fields is None else {FIELDS: fields.table()}


def has_fields(x: Any, rows: int) -> bool:
    """Whether these are several arrays, each with this many rows, and not rows in a tuple."""
    if isinstance(x, Mapping):
        return True
    several = isinstance(x, tuple) and len(x) != rows
    return several and all(hasattr(one, "shape") and len(one) == rows for one in x)


def check_no_list(x: Any, rows: int) -> None:
    """Refuse a list of several arrays, each with this many rows: it is taken for rows."""
    if not isinstance(x, list) or len(x) in (0, rows):
        return
    if all(tuple(getattr(one, "shape", ()))[:1] == (rows,) for one in x):
        raise DataError(
            f"x is a list of {len(x)} arrays of {rows} rows",
            'several inputs are a dictionary, {"name": array, ...}, or a tuple of arrays',
        )


def _as_field(values: Inputs, name: str) -> Tensor:
    """Bytes are numbers of their own (a mask), but for pictures."""
    refuse_masked(values, name)
    refuse_sparse(values, name)
    array = values if isinstance(values, Tensor) else as_array(values, name)
    if array.ndim >= PICTURES:
        refuse_mixed_rows(values, name)
    warn_of_lost_digits(array, name=name)
    if str(array.dtype).endswith("uint8") and array.ndim < PICTURES:
        return as_inputs(array, name).mul(255).round().long()
    return as_inputs(array, name)


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


def warn_of_lost_digits(x: Any, columns: Sequence[str] = (), name: str = "x") -> None:
    """Say which column of float64 inputs has differences that float32 cannot hold, such as times
    in seconds since 1970; some rows are looked at.
    """
    if isinstance(x, Tensor):
        x = x.detach().cpu().numpy() if x.dtype == torch.float64 else None
    values = x
    if getattr(values, "dtype", None) != np.float64 or not values.size:
        return
    few = np.asarray(values[: max(2, _LOOKED_AT * len(values) // values.size)])
    few = few.reshape(len(few), -1)
    error = np.abs(few - few.astype(np.float32)).max(0)
    spread = few.std(0)
    lost = (error > _MOST_LOST * spread) & _has_differences(few, spread)
    if lost.any():
        column = int(lost.argmax())
        is_far = abs(float(few[:, column].mean())) > spread[column]
        advice = "subtract the mean before" if is_far else "scale the column before"
        called = columns[column] if columns else f"{column} of {name}"
        warnings.warn(
            f"column {called} has values around {few[0, column]:.10g} with a standard "
            f"deviation of {spread[column]:.3g}, which float32 rounds by up to "
            f"{error[column]:.3g}: {advice}",
            stacklevel=2,
        )


def _has_differences(few: npt.NDArray[Any], spread: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Columns whose differences mean something: those of the last digits of float64 are rounding
    themselves, but for whole numbers, such as times in nanoseconds.
    """
    is_whole = ((few == np.trunc(few)) & (np.abs(few) < _ABOVE_INT64)).all(0)
    means_something = is_whole | (spread > _ROUNDING * np.abs(few).max(0))
    mask: npt.NDArray[np.bool_] = means_something & (few.max(0) > few.min(0))
    return mask


def name_targets(y: Inputs, task: Task) -> tuple[Inputs, list[str]]:
    """Labels that are words, numbered in the order of the alphabet, and the words; others as they
    are.
    """
    refuse_masked(y, "y")
    refuse_sparse(y, "y")
    array = as_array([] if isinstance(y, Tensor) else y, "y")
    if not (task.of_classes and _is_words(y, array)):
        return y, []
    # of a list, the words before numpy had them
    refuse_nul(
        np.array(y, dtype=object).flat if isinstance(y, list | tuple) else array.flat, "the label"
    )
    words = array.astype(str)
    for word in np.unique(words).tolist():
        if says_nothing(word):
            row = int(np.argwhere(words == word)[0][0])
            fix = f'fill it, or remove the row; "{IGNORE}" is a class that is not known'
            raise DataError(f'there is no label in row {row}, but "{word}"', fix)
    return number_words(words)


def _is_words(y: Any, array: npt.NDArray[Any]) -> bool:
    """Whether labels are words; words beside numbers are refused, for "1" is not 1."""
    # of numbers that stand beside words in a list, numpy makes words
    is_list = array.dtype.kind == "U" and isinstance(y, list | tuple)
    entries = np.array(y, dtype=object) if is_list else array
    if entries.dtype.kind not in "OS":
        return array.dtype.kind == "U"
    first = {_kind_of(one): one for one in reversed(list(entries.flat))}  # kind -> the first of it
    if "bytes" in first:
        raise DataError(
            f"labels are bytes, such as {bytes(first['bytes'])!r}",
            'give words: np.char.decode(y, "utf-8"), or [label.decode() for label in y]',
        )
    if "str" not in first or "NoneType" in first:
        return False
    if len(first) > 1:
        shown = " and ".join(f"{one!r} ({kind})" for kind, one in sorted(first.items())[:2])
        fix = "give words alone, [str(label) for label in y], or whole numbers alone"
        raise DataError(f"labels are of several types, such as {shown}", fix)
    return True


def _kind_of(label: Any) -> str:
    kinds = (str, bytes)
    return next((kind.__name__ for kind in kinds if isinstance(label, kind)), type(label).__name__)


def as_targets(y: Inputs, task: Task = CLASSIFICATION) -> Tensor:
    """Labels as int64, [rows] or [rows, steps]; numbers and several labels as float32, [rows,
    outputs], or as float64 where that would round them.
    """
    refuse_masked(y, "y")
    if task.of_classes:
        labels = as_labels(y)
        refuse_large_labels(labels)
        return from_numpy(labels, "y")
    array = y if isinstance(y, Tensor) else np.asarray(y)
    if isinstance(array, np.ndarray) and array.dtype.kind not in "fiub":
        word = str(array.flat[0])[:40] if array.size else ""
        raise DataError(
            f'the labels y hold {array.dtype} such as "{word}", and targets of {task.kind} are '
            "numbers",
            f'use y.astype("float32") if they are such; for classes leave task="{task.kind}" out',
        )
    tensor = array.detach().cpu() if isinstance(array, Tensor) else from_numpy(array, "y")
    return _as_numbers(tensor).reshape(len(tensor), *(tensor.shape[1:] or (1,)))


def _as_numbers(tensor: Tensor) -> Tensor:
    """float32 where it holds the same numbers: a net of float64 trains on what was given."""
    narrow, wide = tensor.to(torch.float32), tensor.to(torch.float64)
    return narrow if torch.equal(narrow.double().nan_to_num(), wide.nan_to_num()) else wide


def from_numpy(array: npt.NDArray[Any], name: str = "x") -> Tensor:
    """A tensor that shares memory where it can; arrays that cannot be written to are copied."""
    if array.dtype.kind not in "fiub":
        raise DataError(
            f"{name}: arrays of type {array.dtype} cannot be inputs or labels", "give numbers"
        )
    refuse_wide(array, name)
    wide = array.astype(np.int64) if array.dtype in (np.uint16, np.uint32, np.uint64) else array
    wide = wide.astype(np.float64) if wide.dtype == np.longdouble else wide  # torch's widest
    native = np.ascontiguousarray(wide, dtype=wide.dtype.newbyteorder("="))
    return torch.from_numpy(native if native.flags.writeable else native.copy())
