"""A pool of rows from typed columns, as parquet files and Hugging Face data sets have them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedblocks.core.errors import DataError, nearest
from fedblocks.core.losses import IGNORE
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.data.arrays import about_fields, as_rows, as_targets
from fedblocks.data.field_bytes import about_bytes, bytes_as_they_are
from fedblocks.data.pools import DataPool
from fedblocks.data.sets.index_columns import without_index
from fedblocks.data.spellings import number_labels, says_nothing
from fedblocks.data.target_columns import Label, refuse_two_roles, target_columns
from fedblocks.data.user_ids import user_ids

Column = npt.NDArray[Any]  # [rows, ...]; of words, objects


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are for."""

    label: Label  # of numbers and several labels, a list, or names with commas between them
    user: str  # of a column that need not be there
    inputs: tuple[str, ...] = ()  # none: all others
    task: Task = CLASSIFICATION

    def targets(self, names: Sequence[str]) -> list[str]:
        """The columns of the targets in a table."""
        return target_columns(self.label, self.task, names)

    def others(self, names: Sequence[str]) -> tuple[str, ...]:
        """The columns of the inputs."""
        return self.inputs or tuple(n for n in names if n not in (*self.targets(names), self.user))

    def chosen(self, where: str, names: Sequence[str], index: Collection[str] = ()) -> Roles:
        """The same roles, with the columns of the inputs by name: an index of pandas is none."""
        others = self.inputs or without_index(where, self.others(names), index)
        return replace(self, inputs=others)

    def check(self, where: str, names: Sequence[str]) -> None:
        """Refuse columns that a table does not have."""
        check_columns(where, (*self.targets(names), *self.others(names)), names)
        if not self.task.facts.steps:  # a sequence may be learned from itself
            refuse_two_roles(self.targets(names), self.user, self.others(names))
        if not self.others(names):
            raise DataError(f"{where} has no column of inputs", "name them with `columns`")


def check_columns(where: str, wanted: Iterable[str], names: Sequence[str]) -> None:
    """Refuse names of columns that a table does not have."""
    for name in wanted:
        if name not in names:
            raise DataError(f'{where} has no column "{name}"', nearest(name, names))


def pool_of_columns(
    where: str,
    columns: Mapping[str, Column],
    roles: Roles,
    about: Mapping[str, Any],
    class_names: Sequence[str] = (),
) -> DataPool:
    """Rows of the named columns; `class_names` where labels are numbers that stand for words."""
    chosen = roles.others(list(columns))
    x, fields = inputs_of(where, {name: columns[name] for name in chosen})
    targets = {name: columns[name] for name in roles.targets(list(columns))}
    y, names = _targets(where, targets, roles.task, class_names)
    count = y.shape[-1] if not roles.task.of_classes else len(names) or int(y.max()) + 1
    users = user_ids(columns[roles.user]) if roles.user in columns else None
    known = {"columns": list(chosen), "class_names": names, **fields}
    return DataPool(x, y, count, users=users, about={**about, **known}, task=roles.task)


def inputs_of(where: str, columns: Mapping[str, Column]) -> tuple[Tensor, dict[str, Any]]:
    """One tensor for the inputs: features side by side, one array as it is, or several fields."""
    arrays = {name: _numbers(where, name, column) for name, column in columns.items()}
    if len(arrays) == 1:
        (only,) = arrays.values()
        if only.ndim > 1:
            return as_rows(only, len(only))[0], {}
        return as_rows(only[:, None], len(only), list(columns))[0], {}
    if all(array.ndim == 1 for array in arrays.values()):
        features = np.stack([array.astype(np.float64) for array in arrays.values()], 1)
        return as_rows(features, len(features), list(columns))[0], {}
    rows = len(next(iter(arrays.values())))
    x, fields = as_rows(arrays, rows)
    return x, {**about_fields(fields), **about_bytes(bytes_as_they_are(arrays, rows))}


def _numbers(where: str, name: str, column: Column) -> Column:
    """A column of numbers, all of one shape and none of them missing."""
    if column.dtype != object and column.dtype.kind in "fiub":
        return column
    first = next((value for value in column if value is not None), None)
    if first is None or len(column) != sum(value is not None for value in column):
        row = next(row for row, value in enumerate(column) if value is None)
        raise DataError(f'row {row} of "{name}" in {where} has no value', "fill it or remove it")
    _refuse_bytes(where, name, first)
    if isinstance(first, str):
        fix = "turn words into numbers (a tokenizer), or name the columns of inputs with `columns`"
        raise DataError(f'the column "{name}" of {where} holds words', fix)
    if len({np.shape(value) for value in column}) > 1:
        fix = 'bring them to one length, for texts by tokenizer(..., padding="max_length")'
        raise DataError(f'the rows of "{name}" in {where} are of unlike length', fix)
    array = np.stack([np.asarray(value) for value in column])
    return array if array.dtype.kind in "fiub" else _as_floats(where, name, array)


def _refuse_bytes(where: str, name: str, value: Any) -> None:
    """Refuse bytes, of which numpy would make numbers where they are digits."""
    if isinstance(value, bytes):
        fix = "decode them to words, or turn them into numbers or lists of numbers"
        raise DataError(f'the column "{name}" of {where} holds bytes, such as {value[:40]!r}', fix)


def _as_floats(where: str, name: str, column: Column) -> Column:
    """Decimal numbers and such as floats; dates and times are no numbers."""
    try:
        return column.astype(np.float64)
    except (TypeError, ValueError) as error:
        message = f'"{column.flat[0]}" in column "{name}", row 0 of {where}, is not a number'
        fix = "name the columns of features with `columns`, or change the file"
        raise DataError(message, fix) from error


def _targets(
    where: str, columns: Mapping[str, Column], task: Task, class_names: Sequence[str]
) -> tuple[Tensor, list[str]]:
    """Targets, and what classes or outputs are called."""
    if not task.of_classes:
        arrays = [_known(where, name, column) for name, column in columns.items()]
        flat = np.concatenate([a if a.ndim == 2 else a[:, None] for a in arrays], 1)
        names = list(columns) if len(columns) == flat.shape[1] else list(class_names)
        return as_targets(flat, task), names
    ((label, column),) = columns.items()
    if column.dtype == object and isinstance(column[0], str):
        empty = (row for row, value in enumerate(column) if says_nothing(str(value or "")))
        missing = next(empty, None)
        if missing is not None:
            message = f'there is no value in column "{label}", row {missing} of {where}'
            fix = f"fill it, or remove the row; a class that is not known is {IGNORE}"
            raise DataError(message, fix)
        labels, words = number_labels([str(value) for value in column])
        return torch.from_numpy(labels), words
    return as_targets(_numbers(where, label, column), task), list(class_names)


def _known(where: str, name: str, column: Column) -> Column:
    """Numbers; NaN where one is not known."""
    if any(isinstance(value, str) for value in (column if column.dtype == object else ())):
        fix = "name a column of numbers as the label; for classes leave the task out"
        raise DataError(f'the label "{name}" of {where} holds words', fix)
    if column.dtype != object:
        return column.astype(np.float64)
    for value in column:
        _refuse_bytes(where, name, value)
    known = np.array([np.nan if value is None else value for value in column], dtype=object)
    return _as_floats(where, name, known)
