"""Pools whose rows come with their user and their part: texts in the order of time,
signals by recording.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedblocks.core.errors import DataError
from fedblocks.data.federation import Federation
from fedblocks.data.pools import DataPool
from fedblocks.data.rows import Ints, Rows
from fedblocks.data.sets.cache import Arrays, cached_arrays
from fedblocks.data.sets.files import FileSet, LocalFiles

TRAIN, VALIDATION, TEST = 0, 1, 2


@dataclass(frozen=True, eq=False)
class DividedPool(DataPool):
    """A pool that says which rows of a user are for training, validation and test."""

    # [rows]: TRAIN, VALIDATION or TEST
    part: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        if self.users is None or not len(self.users) == len(self.part) == len(self.x):
            raise DataError(
                "a divided pool needs a user and a part for every row",
                "give users and part, one per row",
            )

    def federation(self) -> Federation:
        """One client per user, under the user's name, with the parts as they are; all
        must have rows to train on.
        """
        assert self.users is not None  # as __post_init__ saw
        names, owner = np.unique(self.users, return_inverse=True)
        train, validation, test = (
            Rows.by_owner(np.where(self.part == part, owner, -1), len(names))
            for part in (TRAIN, VALIDATION, TEST)
        )
        about = {**self.about, "partition": {"partition": "by_user"}}
        named = tuple(str(name) for name in names)
        return Federation(
            self.x, self.y, train, validation, test, self.classes, named, {}, about, self.task
        ).check()


def cached_pool(
    files: FileSet,
    make: Callable[[LocalFiles], DividedPool],
    choices: dict[str, Any],
    version: int = 1,
) -> DividedPool:
    """The pool that `make` reads from a data set's files, from the cache where it is whole.

    `choices` are what `make` depends on besides; `version` must change when `make` does.
    """
    return unpack(cached_arrays(files, lambda local: pack(make(local)), version, **choices))


def pack(pool: DividedPool) -> Arrays:
    """A pool as plain arrays."""
    names, owner = np.unique(pool.users if pool.users is not None else [], return_inverse=True)
    whole = not pool.x.is_floating_point()
    x = pool.x.numpy().astype(np.int32) if whole else pool.x.numpy()
    header = json.dumps({"classes": pool.classes, "about": pool.about}).encode()
    arrays: Arrays = {"x": x, "y": pool.y.numpy().astype(np.int32), "owner": owner, "names": names}
    return {**arrays, "part": pool.part.astype(np.int8), "header": np.frombuffer(header, np.uint8)}


def unpack(arrays: Arrays) -> DividedPool:
    """The pool that `pack` took apart."""
    header = json.loads(arrays["header"].tobytes())
    x = arrays["x"]
    x = np.array(x, np.int64 if x.dtype.kind == "i" else np.float32)
    return DividedPool(
        x=torch.from_numpy(x),
        y=torch.from_numpy(np.array(arrays["y"], np.int64)),
        classes=header["classes"],
        users=np.array(arrays["names"])[arrays["owner"]],
        about=header["about"],
        part=np.array(arrays["part"], np.int64),
    )
