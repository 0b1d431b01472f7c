"""Parquet files with a column for the user, read by pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fedblocks.core.errors import DataError
from fedblocks.core.options import Help
from fedblocks.core.requirements import require_packages
from fedblocks.core.special_files import missing_file, refuse_special
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.data.options import checked
from fedblocks.data.pools import DataPool, DataSet
from fedblocks.data.sets.columns import Column, Roles, pool_of_columns
from fedblocks.data.sets.index_columns import index_in
from fedblocks.data.sets.own import refuse_missing_user
from fedblocks.data.target_columns import Label

NUMBERS = ("int", "uint", "float", "double", "halffloat", "bool")  # types of pyarrow


@checked
def parquet_table(
    path: Annotated[str, Help("a parquet file, or a folder of such")],
    label: Annotated[Label, Help("the column of labels, or a list of columns")] = "label",
    user: Annotated[str, Help("the column of user ids, if there is one")] = "user",
    columns: Annotated[tuple[str, ...], Help("the columns of inputs; default: all others")] = (),
    task: Task = CLASSIFICATION,
) -> DataPool:
    """Features [rows, columns] of a parquet file; a column of lists is an array [rows, ...], and
    several such are the fields of an example.
    """
    names = column_names(path)
    refuse_missing_user(path, user, names)
    roles = Roles(label, user, tuple(columns), task).chosen(path, names, index_columns(path))
    roles.check(path, names)
    held = user if user in names else ""
    wanted = [*roles.targets(names), *([held] if held else []), *roles.others(names)]
    refuse_unlike_files(path, wanted, roles.others(names))
    about = {"name": "parquet", "path": path}
    return pool_of_columns(path, read_parquet(path, wanted), roles, about)


def column_names(path: str) -> list[str]:
    """The columns of a file."""
    return [str(name) for name in _open(path).schema.names]


def index_columns(path: str) -> list[str]:
    """The columns of a file that were the index of a table of pandas."""
    return index_in(_open(path).schema.metadata)


def read_parquet(path: str, names: list[str]) -> dict[str, Column]:
    """Some columns of a file; the others are not read."""
    try:
        table = _open(path).to_table(columns=list(dict.fromkeys(names)))
        columns = {name: as_column(table.column(name)) for name in table.column_names}
    except DataError:
        raise
    except Exception as error:  # whatever a damaged file leads to
        raise DataError(
            f"{path} cannot be read as parquet: {error}", "it is damaged or cut short: get it again"
        ) from error
    if not len(table):
        raise DataError(f"{path} has no rows", "give a table with at least one row")
    return columns


def refuse_unlike_files(path: str, names: Sequence[str], inputs: Sequence[str]) -> None:
    """Refuse columns that are of another kind in one file of a folder than in another: they would
    be read as the first file has them, bytes unscaled and the user "01" as 1.
    """
    first: dict[str, tuple[str, str]] = {}  # by column: what it is, and in which file
    for file in _open(path).get_fragments():
        types = {field.name: _entries(field.type) for field in file.physical_schema}
        for name in names:
            if not (kind := _kind(types.get(name, ""), name in inputs)):
                continue
            known, where = first.setdefault(name, (kind, file.path))
            if kind != known:
                message = f'the column "{name}" is {known} in {where}, and {kind} in {file.path}'
                raise DataError(message, "bring it to one type and one scale in all files")


def _kind(type_name: str, is_input: bool) -> str:
    """What a type of pyarrow is, where it would be read as another; empty: anything else."""
    if type_name == "uint8" and is_input:
        return "bytes (uint8)"
    if type_name.startswith(NUMBERS):
        return "numbers"
    return "words" if "string" in type_name and "<" not in type_name else ""


def as_column(values: Any) -> Column:
    """A column of pyarrow as an array; rows that are words, lists or missing are objects."""
    plain = values.combine_chunks() if hasattr(values, "combine_chunks") else values
    kind = str(plain.type)
    if kind.startswith(NUMBERS) and not plain.null_count:
        return np.asarray(plain.to_numpy(zero_copy_only=False))
    rows = plain.to_pylist()
    if _entries(plain.type) == "uint8" and kind != "uint8":
        rows = [_as_bytes(row) for row in rows]
    column = np.empty(len(plain), dtype=object)
    for place, row in enumerate(rows):
        column[place] = row
    return column


def _entries(kind: Any) -> str:
    """The type of a column's numbers, also of those in lists of lists, such as uint8."""
    kind = getattr(kind, "storage_type", kind)  # of a type that datasets made, such as Array3D
    while "list" in str(kind).partition("<")[0]:
        kind = kind.value_type
    return str(kind)


def _as_bytes(row: Any) -> Any:
    """A row of lists as the bytes that it was: as plain numbers it would not be scaled."""
    try:
        return None if row is None else np.asarray(row, dtype=np.uint8)
    except (TypeError, ValueError):  # without some of its numbers, which is told elsewhere
        return row


def _open(path: str) -> Any:
    require_packages("a parquet file", "parquet", "pyarrow")
    if not Path(path).exists():
        raise missing_file(path)
    refuse_special(path)
    try:
        return import_module("pyarrow.dataset").dataset(path, format="parquet")
    except Exception as error:
        raise DataError(
            f"{path} cannot be read as parquet: {error}", "give a file that ends in .parquet"
        ) from error


SETS = {
    "parquet": DataSet(
        "parquet",
        parquet_table,
        None,
        "features",
        "your own parquet file, with a column for the user if there is one",
    ),
}
