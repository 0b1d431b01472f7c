"""The ways to make a federation of data as people have them: arrays, tables, folders, data sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy.typing as npt

from fedblocks.core.errors import DataError
from fedblocks.core.task import CLASSIFICATION, as_task
from fedblocks.data.array_kinds import refuse_iterator, refuse_sparse
from fedblocks.data.arrays import FieldInputs, Inputs, check_no_list, has_fields
from fedblocks.data.dividing import How, rows_of
from fedblocks.data.partitions import by_user
from fedblocks.data.pools import DataPool
from fedblocks.data.rows import same_length
from fedblocks.data.spellings import Ids
from fedblocks.data.storage import read_columns
from fedblocks.data.target_columns import USER, as_label
from fedblocks.data.torch_data import MapDataset, stack_dataset


def _named(columns: str | Sequence[str]) -> tuple[str, ...]:
    """Names of columns; a text is one name."""
    return (columns,) if isinstance(columns, str) else tuple(columns)


class Readers:
    """What reads data and divides them by `from_arrays`, whose options all take."""

    @classmethod
    def from_arrays(cls, *pool: Any, **options: Any) -> Self:
        """Divide inputs and labels over clients."""
        raise NotImplementedError

    @classmethod
    def from_users(
        cls, x: Inputs | FieldInputs, y: Inputs, users: npt.ArrayLike, **options: Any
    ) -> Self:
        """One client per user id, named after it; options as for from_arrays."""
        for name, values in {"x": x, "y": y, "users": users}.items():
            refuse_iterator(values, name)
        refuse_sparse(x, "x")
        refuse_sparse(y, "y")
        rows = rows_of(y)
        check_no_list(x, rows)
        first = x[0] if isinstance(x, tuple) and has_fields(x, rows) else x
        same_length(x=rows_of(first), y=rows, users=rows_of(users))
        return cls.from_arrays(x, y, by_user(users), **options)

    @classmethod
    def from_pool(cls, pool: DataPool, partition: How | None, user: str, **options: Any) -> Self:
        """The rows of a pool, by its users unless a partition is given."""
        if partition is None:
            if pool.users is None:
                example = "partition=lambda y: fedblocks.partitions.iid(y, clients=10)"
                message = f"nothing says whose each row is: there is no {user}"
                raise DataError(message, f"give a partition, e.g. {example}")
            partition = by_user(pool.users)
        known = {"classes": pool.classes, "about": pool.about, "task": pool.task}
        return cls.from_arrays(pool.x, pool.y, partition, **{**known, **options})

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        label: str | Sequence[str] = "label",
        user: str | None = "user",
        columns: str | Sequence[str] = (),
        partition: How | None = None,
        *,
        ids: Ids = "numbers",
        **options: Any,
    ) -> Self:
        """A table with a line of column names; by user id unless a partition is given; options as
        for from_arrays.

        `user` names the column of user ids; None: there is none, and a partition is needed.
        `columns` are the numbers that inputs are made of, by default all others. Labels that are
        words are numbered in the order of the alphabet, and `about["class_names"]` has the words.
        Of other tasks `label` may name several columns: a list, or one text with commas. User ids
        that are all whole numbers are sorted by size; `ids="words"` sorts them by the alphabet.
        """
        from fedblocks.data.sets.own import csv_table  # data sets stand on federations

        task = as_task(options.get("task", CLASSIFICATION))
        pool = csv_table(str(path), as_label(label), user or "", _named(columns), task, ids)
        return cls.from_pool(pool, partition, f'column "{user or "user"}"', **options)

    @classmethod
    def from_parquet(
        cls,
        path: str | Path,
        label: str | Sequence[str] = "label",
        user: str | None = "user",
        columns: str | Sequence[str] = (),
        partition: How | None = None,
        **options: Any,
    ) -> Self:
        """A parquet file, or a folder of such, as `from_csv` reads a table; columns of lists are
        arrays, and several such the fields of an example.
        """
        from fedblocks.data.sets.parquet import parquet_table

        task = as_task(options.get("task", CLASSIFICATION))
        pool = parquet_table(str(path), as_label(label), user or "", _named(columns), task)
        return cls.from_pool(pool, partition, f'column "{user or "user"}"', **options)

    @classmethod
    def from_hf(
        cls,
        data: Any,
        label: str | Sequence[str] = "label",
        user: str | None = "user",
        columns: str | Sequence[str] = (),
        partition: How | None = None,
        *,
        part: str = "train",
        **options: Any,
    ) -> Self:
        """A data set of Hugging Face datasets, or a folder that its `save_to_disk` wrote; options
        as for from_arrays.

        `columns` are the inputs, by default all but words; several columns of lists, such as
        input_ids and attention_mask, are the fields of an example. `part` is that of a data set
        with several.
        """
        from fedblocks.data.sets.columns import Roles
        from fedblocks.data.sets.hugging_face import choose_part, data_set_pool, load_saved

        path = str(data) if isinstance(data, str | Path) else None
        if path is not None:
            data = load_saved(path, part)
        elif hasattr(data, "keys"):
            data = data[choose_part(data, part)]
        roles = Roles(
            as_label(label),
            user or "",
            _named(columns),
            as_task(options.get("task", CLASSIFICATION)),
        )
        pool = data_set_pool(data, roles, path)
        return cls.from_pool(pool, partition, f'column "{user or "user"}"', **options)

    @classmethod
    def from_folder(
        cls, path: str | Path, side: int | None = None, partition: How | None = None, **options: Any
    ) -> Self:
        """Images in USER/CLASS/ folders, a client for each user; or in CLASS/ folders, with a
        partition.

        `side` resizes them to side x side pixels. Options as for from_arrays.
        """
        from fedblocks.data.sets.own import image_folder

        pool = image_folder(str(path), side)
        return cls.from_pool(pool, partition, "folder for each user (USER/CLASS/)", **options)

    @classmethod
    def from_npz(
        cls,
        path: str | Path,
        x: str = "x",
        y: str = "y",
        user: str = "user",
        partition: How | None = None,
        **options: Any,
    ) -> Self:
        """Arrays of an npz file, by user id unless a partition is given; options as for
        from_arrays.
        """
        options["about"] = {"name": "npz", "path": str(path), "columns": [x]} | (
            options.get("about") or {}
        )
        if partition is None:
            return cls.from_users(*read_columns(path, (x, y, user)), **options)
        inputs, labels = read_columns(path, (x, y))
        return cls.from_arrays(inputs, labels, partition, **options)

    @classmethod
    def from_torch(
        cls,
        dataset: MapDataset,
        partition: How | None = None,
        *,
        label: str = "label",
        user: str = "user",
        **options: Any,
    ) -> Self:
        """Any map-style torch data set of (input, label), or of dictionaries with a field `label`
        and, if no partition is given, one that says whose an item is; options as for from_arrays.
        """
        stacked = stack_dataset(dataset, label, user)
        if stacked.users is None and (partition is None or user != USER):
            raise DataError(
                f'nothing says whose each item is: there is no field "{user}"',
                "give a partition, e.g. lambda y: fedblocks.partitions.iid(y, clients=10), and "
                "name no user",
            )
        if partition is None:
            partition = by_user(stacked.users)
        return cls.from_arrays(stacked.x, stacked.y, partition, **options)
