"""What a configuration may name: methods (other people's among them), data sets, partitions, shifts, nets, ...

To add something from Python, put it into the dictionary that lists its kind: `METHODS["mine"] = Mine`. An installed
package adds methods under the entry-point group "fedblocks.methods". A configuration itself never imports code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fedblocks.core.errors import UserError
from fedblocks.core.method import Method
from fedblocks.core.optimizers import SGD, Adam, AdamW, Optimizer
from fedblocks.core.schedules import Exponential, Milestones, Schedule
from fedblocks.data import DATASETS, PARTITIONS, SHIFTS
from fedblocks.data.pools import Pool
from fedblocks.data.storage import read_arrays
from fedblocks.methods import METHODS
from fedblocks.nets import NETS

GROUP = "fedblocks.methods"
SAVED, FILE = "saved", "npz"  # data sets that are files: a whole federation, or plain arrays

OPTIMIZERS: dict[str, Callable[..., Any]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
SCHEDULES: dict[str, Callable[..., Any]] = {"milestones": Milestones, "exponential": Exponential}
TABLES: dict[Any, dict[str, Callable[..., Any]]] = {Optimizer: OPTIMIZERS, Schedule: SCHEDULES}

GIVEN = {  # parameters that a run fills in by itself
    "method": {"net"},
    "net": {"input_shape", "classes"},
    "data": set[str](),
    "partition": {"labels", "clients", "users", "coarse", "seed"},
    "shift": {"federation", "seed"},
}


class Methods(Mapping[str, type[Method]]):
    """Our methods and those of installed packages, which are imported when they are asked for."""

    @property
    def _others(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=GROUP) if point.name not in METHODS}

    def __getitem__(self, name: str) -> type[Method]:
        if name in METHODS:
            return METHODS[name]
        return _loaded(self._others[name])

    def __iter__(self) -> Any:
        return iter([*METHODS, *self._others])

    def __len__(self) -> int:
        return len(METHODS) + len(self._others)

    def __contains__(self, name: object) -> bool:
        return name in METHODS or name in self._others


def _loaded(point: EntryPoint) -> type[Method]:
    package = point.dist.name if point.dist is not None else "unknown"
    try:
        found = point.load()
    except Exception as error:  # whatever other people's code does
        raise UserError(
            f'method "{point.name}" of package {package} cannot be imported: {type(error).__name__}: {error}',
            f"update or remove the package {package}",
        ) from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f'"{point.name}" of package {package} is not a method', "it must be a subclass of Method")
    return found


def saved(path: str) -> None:
    """A federation that `fedblocks data save` or `Federation.save` wrote, with its clients and parts."""


def npz(
    path: str,
    x: str = "x",  # the array of inputs
    y: str = "y",  # the array of labels
    user: str = "user",  # the array of user ids, for the partition by_user
    classes: int | None = None,  # default: the largest label and one
) -> Pool:
    """Arrays of an npz file."""
    from fedblocks.data.arrays import as_inputs, as_targets

    arrays = read_arrays(path)
    missing = [name for name in (x, y) if name not in arrays]
    if missing:
        raise UserError(f'{path} has no array "{missing[0]}"', f"it holds {', '.join(sorted(arrays))}")
    targets = as_targets(arrays[y])
    found = classes if classes is not None else int(targets.max()) + 1
    return Pool(as_inputs(arrays[x]), targets, found, users=arrays.get(user), about={"name": "npz", "path": path})


def kinds() -> dict[str, Mapping[str, Callable[..., Any]]]:
    """What may stand as `name` in each table of a configuration."""
    data: dict[str, Callable[..., Any]] = {name: found.load for name, found in DATASETS.items()}
    return {
        "method": Methods(),
        "net": NETS,
        "data": {**data, SAVED: saved, FILE: npz},
        "partition": PARTITIONS,
        "shift": SHIFTS,
    }
