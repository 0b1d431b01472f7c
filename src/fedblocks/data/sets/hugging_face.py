"""Data sets of Hugging Face: objects of its package datasets, and folders that it saved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fedblocks.core.errors import DataError, a_kind, nearest
from fedblocks.core.options import Help
from fedblocks.core.requirements import require_packages
from fedblocks.core.special_files import refuse_special
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.data.options import checked
from fedblocks.data.pools import DataPool, DataSet
from fedblocks.data.sets.columns import Column, Roles, pool_of_columns
from fedblocks.data.sets.index_columns import without_index
from fedblocks.data.sets.own import refuse_missing_user
from fedblocks.data.sets.parquet import as_column
from fedblocks.data.sets.pixels import pixels_of, stack_pictures
from fedblocks.data.target_columns import Label

WORDS = ("string", "large_string")  # columns that are no inputs unless they are named


@checked
def saved_data_set(
    path: Annotated[str, Help("a folder that save_to_disk of Hugging Face datasets wrote")],
    label: Annotated[Label, Help("the column of labels, or a list of columns")] = "label",
    user: Annotated[str, Help("the column of user ids, if there is one")] = "user",
    columns: Annotated[
        tuple[str, ...], Help("the columns of inputs; default: all others but words")
    ] = (),
    part: Annotated[str, Help("of a folder with several parts")] = "train",
    task: Task = CLASSIFICATION,
) -> DataPool:
    """Rows of a saved Hugging Face data set; several columns of lists are the fields of an
    example.
    """
    data = load_saved(path, part)
    return data_set_pool(data, Roles(label, user, tuple(columns), task), path)


def load_saved(path: str, part: str) -> Any:
    """The data set in a folder; of several, the part of this name."""
    require_packages("a data set of Hugging Face", "hub", "datasets")
    if not Path(path).is_dir():
        fix = "name a folder that save_to_disk wrote; for one of the hub give load_dataset(...)"
        raise DataError(f"{path} is not a folder", fix)
    refuse_special(path)
    try:
        data = import_module("datasets").load_from_disk(path)
    except Exception as error:  # whatever a damaged folder leads to
        fix = "name a folder that save_to_disk wrote"
        raise DataError(f"{path} is not a saved data set: {error}", fix) from error
    return data[choose_part(data, part)] if hasattr(data, "keys") else data


def choose_part(data: Any, part: str) -> str:
    """The part of a data set that has several."""
    if part not in data:
        raise DataError(f'the data set has no part "{part}"', nearest(part, data))
    return part


def data_set_pool(data: Any, roles: Roles, path: str | None = None) -> DataPool:
    """The rows of a data set as an object."""
    if not hasattr(data, "column_names") or not hasattr(data, "features"):
        fix = "give a datasets.Dataset, such as load_dataset(...)['train']"
        raise DataError(f"{a_kind(data)} is not a data set of Hugging Face", fix)
    if not hasattr(data, "__len__"):
        fix = "load it without streaming=True"
        raise DataError("the data set is a stream, whose rows have no numbers", fix)
    _refuse_transform(data)
    where = path or "the data set"
    names = [str(name) for name in data.column_names]
    refuse_missing_user(where, roles.user, names)
    others = roles.inputs or tuple(n for n in roles.others(names) if not _is_words(data, n))
    roles = replace(roles, inputs=roles.inputs or without_index(where, others))
    roles.check(where, names)
    targets = roles.targets(names)
    wanted = {*targets, *roles.inputs, roles.user}
    columns = read_data_set(data, [name for name in names if name in wanted])
    about = {"name": "hugging_face", **({} if path is None else {"path": path})}
    return pool_of_columns(where, columns, roles, about, _class_names(data, targets[0]))


def _refuse_transform(data: Any) -> None:
    """Refuse a data set whose rows go through a function when they are read: here it would not be
    called.
    """
    if (getattr(data, "format", None) or {}).get("type") == "custom":
        message = "the data set has a transform (with_transform, set_transform)"
        fix = (
            "give from_torch(data, label=..., user=...), which runs it, or write what it does into "
            "the data set: data.with_format(None).map(...)"
        )
        raise DataError(f"{message}, which from_hf does not run", fix)


def read_data_set(data: Any, names: Iterable[str]) -> dict[str, Column]:
    """Some columns of a data set."""
    return {name: _column(data, name) for name in names}


def _column(data: Any, name: str) -> Column:
    kind = type(data.features[name]).__name__
    if kind == "Image":
        rows = enumerate(data.select_columns([name]))
        where = f'"{name}" in the data set'
        return stack_pictures([pixels_of(row[name], f"row {at} of {where}") for at, row in rows])
    if kind in ("Array2D", "Array3D", "Array4D"):
        array = np.asarray(data.select_columns([name]).with_format("numpy")[:][name])
        # whole numbers of any width come as int64
        kept = getattr(data.features[name], "dtype", "")
        is_bytes = kept == "uint8" and array.dtype.kind in "iu"
        return array.astype(np.uint8) if is_bytes else array
    return as_column(data.select_columns([name]).with_format("arrow")[:].column(name))


def _is_words(data: Any, name: str) -> bool:
    return getattr(data.features[name], "dtype", "") in WORDS


def _class_names(data: Any, label: str) -> list[str]:
    """What the numbers of labels stand for, where the data set says it."""
    feature = data.features.get(label)
    inner = getattr(feature, "feature", feature)
    return [str(name) for name in getattr(inner, "names", None) or []]


SETS = {
    "hugging_face": DataSet(
        "hugging_face",
        saved_data_set,
        None,
        "features",
        "your own data set that Hugging Face datasets saved, with a column for the user",
    ),
}
