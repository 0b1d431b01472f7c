"""A pool of rows before it is divided, and the record of a data set that can be loaded by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.data.rows import Ints, same_length

Kind = Literal["images", "signals", "features", "tokens"]


@dataclass(frozen=True, eq=False)
class DataPool:
    """Inputs and labels, with what a partition may need besides."""

    x: Tensor  # [rows, ...]
    y: Tensor  # [rows] or [rows, steps]; [rows, outputs] of numbers or several labels
    classes: int  # or outputs
    users: npt.NDArray[np.int64 | np.str_] | None = None  # [rows]: who each row is from
    coarse: Ints | None = None  # [rows]: coarse label of each row
    topics: Ints | None = None  # [users]: the hidden group of each user, where it is known
    about: dict[str, Any] = field(default_factory=dict)  # source, licence, how it was made
    task: Task = CLASSIFICATION

    def __post_init__(self) -> None:
        others = {"users": self.users, "coarse": self.coarse}
        same_length(
            x=len(self.x), y=len(self.y), **{k: len(v) for k, v in others.items() if v is not None}
        )


@dataclass(frozen=True)
class DataSet:
    """A data set by name."""

    name: str
    load: Callable[..., DataPool]
    classes: int | None  # None: set by the arguments of `load`
    kind: Kind
    about: str  # one line: what it is, where it is from
