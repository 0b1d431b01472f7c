"""A federation: one pool of rows, and which of them each client trains, validates and tests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from fedblocks.core.errors import DataError, count_of
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.data import checks, overview
from fedblocks.data.arrays import Inputs, MapDataset, as_targets, stack_dataset
from fedblocks.data.dividing import How, count_classes, divide, partition_of, recipe_of, rows_of
from fedblocks.data.joining import Joined, Pair, Parts, join_parts, join_pools
from fedblocks.data.partitions import by_user
from fedblocks.data.pools import DataPool
from fedblocks.data.rows import Ints, Numbered, Rows, read_only, same_length
from fedblocks.data.saved import hash_of, read_federation, write_federation
from fedblocks.data.splits import Fractions
from fedblocks.data.storage import read_columns, told_as_damage, verify
from fedblocks.data.subsets import drop_unheld, hold_out, take_clients
from fedblocks.data.summary import IGNORE
from fedblocks.data.targets import describe_targets

__all__ = ["IGNORE", "Federation", "Parts", "Rows"]


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients with train, validation and test rows in a shared pool."""

    x: Tensor  # [rows, ...] float32 images, signals or features; int64 tokens
    # [rows] or [rows, steps] int64, IGNORE is not scored; or [rows, outputs] float32, nor is NaN
    y: Tensor
    train: Rows
    validation: Rows
    test: Rows
    classes: int  # or the outputs of a net, where these are numbers or several labels
    names: Sequence[str] = ()  # default client-0, client-1, ...
    # one integer per client: hidden group, device, ...
    tags: Mapping[str, Ints] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)  # how it was made, as plain JSON values
    task: Task = CLASSIFICATION  # what is learned: loss, metrics, what a prediction is

    def __post_init__(self) -> None:
        names = self.names if len(self.names) else Numbered.up_to(len(self.train))
        object.__setattr__(self, "names", names if isinstance(names, Numbered) else tuple(names))
        object.__setattr__(self, "tags", {name: read_only(tag) for name, tag in self.tags.items()})
        checks.check_shapes(self)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.x.shape[1:])) or "one number"
        return (
            f"Federation({count_of(self.clients, 'client')}, {len(self.x)} rows of {shape}, "
            f"{describe_targets(self)})"
        )

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.train)

    @property
    def parts(self) -> dict[str, Rows]:
        """Train, validation and test rows by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @classmethod
    def from_arrays(
        cls,
        x: Inputs,
        y: Inputs,
        partition: How,
        *,
        split: Fractions = (0.7, 0.1, 0.2),
        seed: int = 0,
        stratified: bool = False,
        classes: int | None = None,
        tags: Mapping[str, Ints] | None = None,
        about: dict[str, Any] | None = None,
        allow_empty: bool = False,
        task: Task = CLASSIFICATION,
    ) -> Federation:
        """Divide a pool over clients, and each client's rows into train, validation and test."""
        pool = divide((x, y), task, partition, split, seed, stratified)
        federation = cls(
            pool.x,
            pool.y,
            *pool.parts,
            classes=count_classes(pool.y, classes, task),
            names=pool.names,
            tags=tags or {},
            about={**(about or {}), **pool.recipe},
            task=task,
        )
        return federation.check(allow_empty)

    @classmethod
    def from_users(cls, x: Inputs, y: Inputs, users: npt.ArrayLike, **options: Any) -> Federation:
        """One client per user id, named after it; options as for from_arrays."""
        same_length(x=rows_of(x), y=rows_of(y), users=rows_of(users))
        return cls.from_arrays(x, y, by_user(users), **options)

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        label: str = "label",
        user: str | None = "user",
        columns: Sequence[str] = (),
        partition: How | None = None,
        **options: Any,
    ) -> Federation:
        """A table with a line of column names; by user id unless a partition is given; options as
        for from_arrays.

        `user` names the column of user ids; None: there is none, and a partition is needed.
        `columns` are the numbers that inputs are made of, by default all others. Labels that are
        words are numbered in the order of the alphabet, and `about["class_names"]` has the words.
        Of other tasks `label` may name several columns, with commas between them.
        """
        from fedblocks.data.sets.own import csv_table  # data sets stand on federations

        task = options.get("task", CLASSIFICATION)
        pool = csv_table(str(path), label, user or "", tuple(columns), task)
        return cls.from_pool(pool, partition, f'column "{user or "user"}"', **options)

    @classmethod
    def from_folder(
        cls, path: str | Path, side: int | None = None, partition: How | None = None, **options: Any
    ) -> Federation:
        """Images in USER/CLASS/ folders, a client for each user; or in CLASS/ folders, with a
        partition.

        `side` resizes them to side x side pixels. Options as for from_arrays.
        """
        from fedblocks.data.sets.own import image_folder

        pool = image_folder(str(path), side)
        return cls.from_pool(pool, partition, "folder for each user (USER/CLASS/)", **options)

    @classmethod
    def from_pool(
        cls, pool: DataPool, partition: How | None, user: str, **options: Any
    ) -> Federation:
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
    def from_npz(
        cls,
        path: str | Path,
        x: str = "x",
        y: str = "y",
        user: str = "user",
        partition: How | None = None,
        **options: Any,
    ) -> Federation:
        """Arrays of an npz file, by user id unless a partition is given; options as for
        from_arrays.
        """
        if partition is None:
            return cls.from_users(*read_columns(path, (x, y, user)), **options)
        inputs, labels = read_columns(path, (x, y))
        return cls.from_arrays(inputs, labels, partition, **options)

    @classmethod
    def from_torch(cls, dataset: MapDataset, partition: How, **options: Any) -> Federation:
        """Any map-style torch data set of (input, label); options as for from_arrays."""
        task = options.get("task", CLASSIFICATION)
        return cls.from_arrays(*stack_dataset(dataset, task), partition, **options)

    @classmethod
    def from_parts(
        cls,
        clients: Sequence[Parts],
        names: Sequence[str] = (),
        classes: int | None = None,
        allow_empty: bool = False,
        task: Task = CLASSIFICATION,
    ) -> Federation:
        """Clients that bring their own arrays for each part."""
        joined = join_parts(clients, names if len(names) else Numbered.up_to(len(clients)), task)
        about = {"made_from": "each client's own arrays"}
        number = count_classes(joined.y, classes, task)
        federation = cls(joined.x, joined.y, *joined.rows, number, names, {}, about, task)
        return federation.check(allow_empty)

    @classmethod
    def from_pools(
        cls,
        train: Pair,
        test: Pair,
        partition: How,
        *,
        validation: Pair | None = None,
        seed: int = 0,
        classes: int | None = None,
        allow_empty: bool = False,
    ) -> Federation:
        """Official pools: the partition divides the train pool, and the others by the
        same shares of every class.
        """
        division = partition_of(partition, as_targets(train[1]))
        joined = join_pools(division, train, validation, test, seed)
        about = {**recipe_of(division), "pools_seed": seed}
        number = count_classes(joined.y, classes)
        return cls.from_joined(joined, number, division.names, about).check(allow_empty)

    @classmethod
    def from_joined(
        cls, joined: Joined, classes: int, names: Sequence[str], about: dict[str, Any]
    ) -> Federation:
        """A federation over a pool that was put together from several."""
        return cls(joined.x, joined.y, *joined.rows, classes, names, {}, about)

    def hash(self) -> str:
        """SHA-256 of inputs, labels and split: what training sees, not names, tags or
        the recipe.
        """
        return hash_of(self)

    def check(self, allow_empty: bool = False) -> Federation:
        """This federation, or DataError with the clients whose data cannot be used."""
        checks.check(self, allow_empty)
        return self

    def warnings(self, few: int = 10) -> list[str]:
        """Readable remarks: one-class clients, fewer than `few` training rows, no test
        rows, leaks.
        """
        return checks.warnings(self, few)

    def preview(self, most: int | None = None) -> list[dict[str, Any]]:
        """One line per client, ready for a table."""
        return overview.preview(self, most)

    def describe(self) -> dict[str, Any]:
        """Sizes, shapes and label spread, as plain JSON values."""
        return overview.describe(self)

    def with_task(self, task: Task) -> Federation:
        """The same rows with another loss or other metrics; targets must be of the task's kind."""
        return replace(self, task=task).check(allow_empty=True)

    def to(self, device: str | torch.device) -> Federation:
        """The same federation with its pool on a device."""
        return replace(self, x=self.x.to(device), y=self.y.to(device))

    def subset(self, clients: npt.ArrayLike) -> Federation:
        """Only these clients, in this order, under their own names; the pool is shared,
        not copied.
        """
        return take_clients(self, clients)

    def hold_out(self, fraction: float, seed: int = 0) -> tuple[Federation, Federation]:
        """Clients that take part, and unseen ones that are kept for a test at the end."""
        return hold_out(self, fraction, seed)

    def compact(self) -> Federation:
        """The same clients over a pool without the rows that nobody holds, as before
        saving a subset.
        """
        return drop_unheld(self)

    def save(self, path: str | Path) -> None:
        """One npz file with a JSON header; no code runs when it is loaded."""
        write_federation(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Federation:
        """Read a saved federation; a damaged file is refused."""
        with told_as_damage(path, "Federation"):
            header, fields = read_federation(path)
            federation = cls(**fields)
            verify(path, header, federation.hash())
        return federation
