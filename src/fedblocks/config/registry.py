"""What a configuration may name: methods (other people's among them), data sets, partitions,
shifts, nets, ...

To add something from Python, put it into the dictionary that lists its kind: `METHODS["mine"] =
Mine`. An installed package adds methods, nets (functions of input_shape and classes) and data sets
(functions that return a Pool or a Federation) under the entry-point groups "fedblocks.methods",
"fedblocks.nets" and "fedblocks.datasets". A configuration itself never imports code; `--code` on
the command line does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, ClassVar

from fedblocks.config.own_nets import check_net_function
from fedblocks.core.augmentations import AUGMENTATIONS, Augmentation
from fedblocks.core.errors import UserError, nearest
from fedblocks.core.method import Method
from fedblocks.core.optimizers import SGD, Adam, AdamW, Optimizer
from fedblocks.core.options import AtLeast, Help
from fedblocks.core.samplers import SAMPLERS
from fedblocks.core.schedules import Cosine, Exponential, Milestones, Ramp, Schedule
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.data import DATASETS, PARTITIONS, SHIFTS
from fedblocks.data.pools import DataPool, DataSet
from fedblocks.data.storage import read_arrays
from fedblocks.data.testbeds import TESTBEDS
from fedblocks.methods import METHODS
from fedblocks.nets import NETS

SAVED = "saved"  # a data set that is a file with a whole federation
FILE = "npz"  # a data set that is a file with plain arrays
REMOTE = "remote"  # data that stay with the clients of a real federation
CODE = "FEDBLOCKS_CODE"  # variable that names code for the processes that a command starts
PYTHON = "python"  # nets and data that were handed over as objects, and have no name
BY_CODE = "if it is yours, add --code FILE, the Python file that defines it"

OPTIMIZERS: dict[str, Callable[..., Any]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
SCHEDULES: dict[str, Callable[..., Any]] = {
    "milestones": Milestones,
    "exponential": Exponential,
    "linear": Ramp,
    "cosine": Cosine,
}
TABLES: dict[Any, dict[str, Callable[..., Any]]] = {
    Optimizer: OPTIMIZERS,
    Schedule: SCHEDULES,
    Augmentation: AUGMENTATIONS,
}

FILLED_IN = {  # parameters that a run fills in by itself
    "method": {"net"},
    "net": {"input_shape", "classes"},
    "data": {"task"},
    "partition": {"labels", "clients", "users", "coarse", "seed"},
    "shift": {"federation", "seed"},
    "testbed": {"pool", "seed"},
    "sampler": set[str](),
}


# methods that need a net with adapters, which a configuration cannot make by itself: name -> class
ADAPTER_METHODS = {
    "fedavg_lora": "FedAvgLoRA",
    "ffa_lora": "FFALoRA",
    "fedsa_lora": "FedSALoRA",
    "product_lora": "ProductLoRA",
    "dual_lora": "DualLoRA",
}
# classes of methods that files of the user define and put nowhere: name -> file
UNLISTED: dict[str, str] = {}


def unlisted_method(name: str) -> str:
    """What to write for a method that exists and is not registered: in a file that defines it, or
    one that needs a net with adapters.
    """
    plain = name.replace("_", "").replace("-", "").lower()
    for known, title in ADAPTER_METHODS.items():
        if title.lower() == plain:
            return (
                f"it needs a net with adapters: in a file for --code write "
                f'METHODS["{known}"] = fedblocks.{title}, and put a function that returns '
                "fedblocks.lora(...) into NETS; see docs/adapters.md"
            )
    for title, file in UNLISTED.items():
        if title.lower() == plain:
            line = f'METHODS["{name}"] = {title}'
            return f"{file} defines {title} but does not put it into METHODS; add {line}"
    return ""


class UnknownName(UserError, KeyError):
    """A name that nothing is listed under."""


def _is_our_code(target: Any) -> bool:
    return str(getattr(target, "__module__", "")).startswith("fedblocks.")


class Named(Mapping[str, Any]):
    """Ours, and those of installed packages, which are imported when they are asked for."""

    group: ClassVar[str]  # of entry points
    what: ClassVar[str]  # for people
    ours: Mapping[str, Any]

    @property
    def _others(self) -> dict[str, EntryPoint]:
        return {
            point.name: point
            for point in entry_points(group=self.group)
            if point.name not in self.ours
        }

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise UnknownName(
                f'there is no {self.what} "{name}"', f"{nearest(name, self)}; {BY_CODE}"
            )
        if name not in self.ours:
            return self._load(self._others[name])
        self._check(self.ours[name], f'{self.what} "{name}"')
        return self.ours[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self.ours, *self._others])

    def __len__(self) -> int:
        return len(self.ours) + len(self._others)

    def __contains__(self, name: object) -> bool:
        return name in self.ours or name in self._others

    def package_of(self, name: str) -> str | None:
        """The installed package that brings a name; None: it is ours, or was only put
        into a dictionary.
        """
        # reading what all packages bring takes a tenth of a second
        if _is_our_code(self.ours.get(name)):
            return None
        points = [point for point in entry_points(group=self.group) if point.name == name]
        package = points[0].dist if points else None
        return None if package is None else f"{package.name} {package.version}"

    def _load(self, point: EntryPoint) -> Any:
        package = point.dist.name if point.dist is not None else "unknown"
        try:
            target = point.load()
        except Exception as error:  # whatever other people's code does
            raise UserError(
                f'{self.what} "{point.name}" of package {package} cannot be imported: '
                f"{type(error).__name__}: {error}",
                f"update or remove the package {package}",
            ) from error
        self._check(target, f'{self.what} "{point.name}" of package {package}')
        return target

    def _check(self, target: Any, called: str) -> None:
        raise NotImplementedError


class Methods(Named):
    """Classes by name."""

    group = "fedblocks.methods"
    what = "method"
    ours = METHODS

    def _check(self, target: Any, called: str) -> None:
        if not (isinstance(target, type) and issubclass(target, Method)):
            raise UserError(f"{called} is not a method", "it must be a subclass of Method")


class Nets(Named):
    """Functions of input shape and classes that return a net, by name."""

    group = "fedblocks.nets"
    what = "net"
    ours = NETS

    def _check(self, target: Any, called: str) -> None:
        check_net_function(target, called)


class DataSets(Named):
    """Functions that return a pool or a federation, by name."""

    group = "fedblocks.datasets"
    what = "data set"

    def __init__(self) -> None:
        files = {SAVED: saved, FILE: npz, REMOTE: remote}
        loaders = {
            name: entry.load if isinstance(entry, DataSet) else entry
            for name, entry in DATASETS.items()
        }
        self.ours = {**loaders, **files}

    def _check(self, target: Any, called: str) -> None:
        if not callable(target):
            raise UserError(
                f"{called} is not a data set",
                "it must be a function that returns a Pool or a Federation",
            )


def is_own_data(name: object) -> bool:
    """Whether a data set is the user's, whose function may return whole federations."""
    named = DataSets()
    ours = isinstance(DATASETS.get(str(name)), DataSet) or name in (SAVED, FILE, REMOTE)
    return name in named and not ours


def saved(
    path: Annotated[str, Help("the npz file that was saved")],
) -> None:
    """A federation that `fedblocks data save` or `Federation.save` wrote, with its
    clients and parts.
    """


def npz(
    path: Annotated[str, Help("an npz file")],
    x: Annotated[str, Help("the array of inputs")] = "x",
    y: Annotated[str, Help("the array of labels")] = "y",
    user: Annotated[str, Help("the array of user ids, for the partition by_user")] = "user",
    classes: Annotated[int | None, AtLeast(1), Help("default: the largest label and one")] = None,
    task: Task = CLASSIFICATION,
) -> DataPool:
    """Arrays of an npz file."""
    from fedblocks.data.arrays import as_inputs, as_targets, name_targets
    from fedblocks.data.dividing import count_classes

    arrays = read_arrays(path)
    missing = [name for name in (x, y) if name not in arrays]
    if missing:
        raise UserError(
            f'{path} has no array "{missing[0]}"', f"it holds {', '.join(sorted(arrays))}"
        )
    labels, words = name_targets(arrays[y], task)
    targets = as_targets(labels, task)
    count = count_classes(targets, classes, task)
    return DataPool(
        as_inputs(arrays[x]),
        targets,
        count,
        users=arrays.get(user),
        about={"name": "npz", "path": path, "columns": [x], "class_names": words},
        task=task,
    )


def remote(
    input_shape: Annotated[tuple[int, ...], AtLeast(1), Help("of one example")],
    classes: Annotated[int, AtLeast(1), Help("how many labels there are")],
    label_shape: Annotated[
        tuple[int, ...], AtLeast(1), Help("of the labels of one example: [] is a single label")
    ] = (),
    tokens: Annotated[bool, Help("whether inputs are whole numbers, as words are")] = False,
) -> DataPool:
    """Data that stay with the clients of a real federation; its server knows their
    shape and no more.
    """
    raise UserError(
        "the clients of a federation hold these data", "start it with `fedblocks federation run`"
    )


def kinds() -> dict[str, Mapping[str, Callable[..., Any]]]:
    """What may stand as `name` in each table of a configuration."""
    _read_code_of_the_command()
    return {
        "method": Methods(),
        "net": Nets(),
        "data": DataSets(),
        "partition": PARTITIONS,
        "shift": SHIFTS,
        "testbed": TESTBEDS,
        "sampler": SAMPLERS,
    }


_code_was_read = False


def _read_code_of_the_command() -> None:
    """In a process that a command with `--code` started: read the same code, once."""
    global _code_was_read
    sources = "" if _code_was_read else os.environ.get(CODE, "")
    _code_was_read = True
    if sources:
        from fedblocks.config.code.loading import Code  # it needs what is defined here

        Code.read(sources.split(os.pathsep))
