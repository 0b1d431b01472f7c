"""A federation: one pool of rows, and which of them each client trains, validates and tests on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedblocks.core.errors import count_of
from fedblocks.core.fields import Fields
from fedblocks.core.task import CLASSIFICATION, Task, as_task
from fedblocks.data import checks, overview, streaming
from fedblocks.data.arrays import FIELDS, FieldInputs, Inputs, as_targets
from fedblocks.data.dividing import How, count_classes, divide, partition_of, recipe_of
from fedblocks.data.joining import (
    Joined,
    Pair,
    Parts,
    about_joined,
    join_parts,
    join_pools,
    name_pools,
)
from fedblocks.data.options import known_options
from fedblocks.data.readers import Readers
from fedblocks.data.rows import Ints, Numbered, Rows, read_only
from fedblocks.data.saved import hash_of, read_federation, write_federation
from fedblocks.data.splits import Fractions
from fedblocks.data.storage import told_as_damage, verify
from fedblocks.data.subsets import drop_unheld, hold_out, take_clients
from fedblocks.data.summary import IGNORE
from fedblocks.data.targets import describe_targets

__all__ = ["IGNORE", "Federation", "Parts", "Rows"]


@dataclass(frozen=True, eq=False)
class Federation(Readers):
    """Clients with train, validation and test rows in a shared pool."""

    # [rows, ...] float32 images, signals, features; int64 tokens; of several fields [rows, columns]
    x: Tensor
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
    streamed: bool = False  # the inputs stay in their file, as it has them, and are read as needed

    def __post_init__(self) -> None:
        names = self.names if len(self.names) else Numbered.up_to(len(self.train))
        object.__setattr__(self, "names", names if isinstance(names, Numbered) else tuple(names))
        object.__setattr__(self, "tags", {name: read_only(tag) for name, tag in self.tags.items()})
        checks.check_shapes(self)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.x.shape[1:])) or "one number"
        shape = ", ".join(self.fields.labels) if self.fields is not None else shape
        where = " in a file" if self.streamed else ""
        size = f"{count_of(self.clients, 'client')}, {count_of(len(self.x), 'row')}"
        return f"Federation({size} of {shape}{where}, {describe_targets(self)})"

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.train)

    @property
    def parts(self) -> dict[str, Rows]:
        """Train, validation and test rows by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @property
    def device(self) -> torch.device:
        """Where clients train: that of the labels, for inputs may stay in a file."""
        return self.y.device

    @property
    def input_type(self) -> torch.dtype:
        """Of the inputs that a net is given."""
        return streaming.input_type(self.x) if self.streamed else self.x.dtype

    def inputs(self, rows: npt.ArrayLike) -> Tensor:
        """The inputs of some rows, on the device; of a file only these are read."""
        chosen = np.asarray(rows, dtype=np.int64)
        if self.streamed:
            return streaming.read_rows(self.x, chosen).to(self.device)
        return self.x[torch.from_numpy(chosen).to(self.device)]

    @property
    def fields(self) -> Fields | None:
        """The fields of an example that has several, for `Net.of(..., inputs=data.fields)`."""
        table = self.about.get(FIELDS)
        return None if table is None else Fields.from_table(table)

    @classmethod
    @known_options
    def from_arrays(
        cls,
        x: Inputs | FieldInputs,
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
        task: Task | str = CLASSIFICATION,
    ) -> Federation:
        """Divide a pool over clients, and each client's rows into train, validation and test.

        Inputs of several fields are a dictionary, name -> [rows, ...], or a tuple of arrays. An
        array that is mapped from a file (`numpy.load(path, mmap_mode="r")`) stays there: the rows
        of clients are read when they train.
        """
        task = as_task(task)
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
            streamed=pool.streamed,
        )
        return federation.check(allow_empty)

    @classmethod
    @known_options
    def from_parts(
        cls,
        clients: Sequence[Parts],
        names: Sequence[str] = (),
        classes: int | None = None,
        allow_empty: bool = False,
        task: Task | str = CLASSIFICATION,
    ) -> Federation:
        """Clients that bring their own arrays for each part."""
        task = as_task(task)
        joined = join_parts(clients, names if len(names) else Numbered.up_to(len(clients)), task)
        about = {"made_from": "each client's own arrays", **about_joined(joined)}
        number = count_classes(joined.y, classes, task)
        federation = cls(joined.x, joined.y, *joined.rows, number, names, {}, about, task)
        return federation.check(allow_empty)

    @classmethod
    @known_options
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
        pools, words = name_pools(train, validation, test)
        division = partition_of(partition, as_targets(pools[0][1]))
        joined = join_pools(division, pools, seed, words)
        about = {**recipe_of(division), "pools_seed": seed, **about_joined(joined)}
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

    def with_task(self, task: Task | str) -> Federation:
        """The same rows with another loss or other metrics; targets must be of the task's kind."""
        return replace(self, task=as_task(task)).check(allow_empty=True)

    def to(self, device: str | torch.device) -> Federation:
        """The same federation with its pool on a device; inputs in a file stay there."""
        return replace(self, x=self.x if self.streamed else self.x.to(device), y=self.y.to(device))

    def subset(self, clients: Iterable[int | str]) -> Federation:
        """Only these clients, by number or name, in this order, under their own names; the pool is
        shared, not copied.
        """
        return take_clients(self, clients)

    def hold_out(self, fraction: float, seed: int = 0) -> tuple[Federation, Federation]:
        """Clients that take part, and unseen ones that are kept for a test at the end."""
        return hold_out(self, fraction, seed)

    def compact(self) -> Federation:
        """The same clients over a pool without the rows that nobody holds, as before
        saving a subset; of a file, the rows that somebody holds are read into memory.
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
