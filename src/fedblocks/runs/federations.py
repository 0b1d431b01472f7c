"""The federation that a configuration describes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from fedblocks.config.choices import make, option_named_in
from fedblocks.config.model import Config
from fedblocks.config.registry import SAVED, kinds
from fedblocks.config.sections import SPLIT, Choice, DataSection
from fedblocks.config.sources import Key
from fedblocks.core.errors import DataError, UserError
from fedblocks.core.random import generator
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.data import PARTITIONS, SHIFTS, DataPool, Federation, Partition, hidden_groups
from fedblocks.data.sets.divided import DividedPool
from fedblocks.data.testbeds import TESTBEDS

_whole: set[str] = set()  # data sets whose functions were seen to return federations
Read = Callable[[Config], DataPool | Federation]  # how the data set of a configuration is read


def federation_of(config: Config, read: Read | None = None) -> Federation:
    """The clients with their rows, checked."""
    data = config.data
    if config.ingredients is not None:
        federation = config.ingredients.data
    elif config.is_of_objects:
        fix = (
            "give that program's method and data: fedblocks.run(method, data, ...), or --code "
            "FILE on a command"
        )
        raise UserError(
            f"{config.source.name}: its net and its data were made by a Python program", fix
        )
    elif data.name == SAVED:
        with placed(config, ("data", "options", "path")):
            federation = Federation.load(data.options["path"])
    else:
        federation = _divide(config, read or pool_of)
    # objects carry their task, with functions that no name says
    task = None if config.ingredients is not None else task_of(config)
    if task is not None:
        with placed(config, ("task",)):
            federation = federation.with_task(task)
    if data.shift is not None:
        with placed(config, ("data", "shift")):
            seed = _keep_accepted(SHIFTS[data.shift.name], {"seed": data.seed})
            federation = make("shift", data.shift.table, federation=federation, **seed)
    with placed(config, ("data",)):
        return federation.check(allow_empty=_may_be_empty(config, federation))


def _may_be_empty(config: Config, federation: Federation) -> bool:
    """Whether clients may have no training rows: whoever made a federation by hand has decided
    that, and is warned; somebody has to have some.
    """
    is_by_hand = config.ingredients is not None or config.data.name == SAVED
    return is_by_hand and bool(federation.train.sizes.any())


def task_of(config: Config) -> Task | None:
    """What a configuration says is learned; nothing: as the data say."""
    return None if config.task is None else Task(**config.task.table)


def hold_out(config: Config, federation: Federation) -> tuple[list[int], list[int]]:
    """The clients that are trained on, and the unseen ones."""
    unseen = round(config.data.unseen * federation.clients)
    if (unseen == 0 and config.data.unseen > 0) or unseen >= federation.clients:
        with placed(config, ("data", "unseen")):
            message = (
                f"{config.data.unseen} of {federation.clients} clients leaves nobody on one side"
            )
            raise DataError(message, "leave at least one client on each side")
    order = generator(config.data.seed, "hold_out").permutation(federation.clients)
    return sorted(order[unseen:].tolist()), sorted(order[:unseen].tolist())


@contextmanager
def placed(config: Config, path: Key) -> Iterator[None]:
    """Errors inside say where in the configuration the cause stands."""
    try:
        yield
    except UserError as error:
        path = (*path, *option_named_in(error.message, _table_at(config, path)))
        message = f"{config.source.label(path)}: {error.message}"
        raise type(error)(message, error.fix) from error


def _table_at(config: Config, path: Key) -> Any:
    table: Any = config.resolved()
    for part in path:
        table = table.get(part) if isinstance(table, dict) else None
    return table


def _divide(config: Config, read: Read) -> Federation:
    data = config.data
    if data.testbed is not None:
        return _testbed(config, data.testbed, read)
    pool = read(config)
    if isinstance(pool, DividedPool) and data.partition_name == "by_user":
        return pool.federation()  # its parts follow time or recordings, which a new split would mix
    if isinstance(pool, Federation):
        return _as_it_is(config, pool)
    with placed(config, ("data", "partition")):
        partition = _partition(data, pool)
    with placed(config, ("data",)):
        return Federation.from_arrays(
            pool.x,
            pool.y,
            partition,
            split=data.split,
            seed=data.seed,
            stratified=data.stratified,
            classes=pool.classes,
            tags=_tags(data, pool, len(partition)),
            about=pool.about,
            task=pool.task,
        )


def _as_it_is(config: Config, federation: Federation) -> Federation:
    """The federation of a data set that divides its rows itself."""
    data = config.data
    decided = {
        "partition": data.partition_name != "by_user",
        "clients": data.clients not in (None, federation.clients),
        "split": data.split != SPLIT,
        "stratified": data.stratified,
    }
    for name, is_idle in decided.items():
        if is_idle:
            with placed(config, ("data", name)):
                message = f'the data set "{data.name}" divides its rows among clients itself'
                raise DataError(message, f"leave out data.{name}")
    _whole.add(data.name)
    return federation


def idle_seed(config: Config) -> list[str]:
    """A remark where another `data.seed` would give the same data."""
    data = config.data
    is_used = data.name not in _whole or data.shift is not None or data.unseen > 0
    if is_used or data.testbed is not None or not data.seed:
        return []
    text = f'data.seed = {data.seed} changes nothing: the data set "{data.name}" divides its rows'
    return [f"{text} among clients itself, for every seed alike"]


def pool_of(config: Config) -> DataPool | Federation:
    """The data set of a configuration."""
    with placed(config, ("data", "options")):
        load = kinds()["data"][config.data.name]
        task = _keep_accepted(load, {"task": task_of(config) or CLASSIFICATION})
        pool = make("data", {"name": config.data.name, **config.data.options}, **task)
        if not isinstance(pool, DataPool | Federation):
            message = f'the data set "{config.data.name}" is a {type(pool).__name__}'
            raise DataError(
                message, "return a fedblocks.Pool or a fedblocks.Federation from its function"
            )
        return pool


def _testbed(config: Config, chosen: Choice, read: Read) -> Federation:
    """The data set as a published federation; a test-bed of several data sets reads
    them by itself.
    """
    arguments = _keep_accepted(TESTBEDS[chosen.name], {"pool": None, "seed": config.data.seed})
    if "pool" in arguments:
        arguments["pool"] = read(config)
    with placed(config, ("data", "testbed")):
        federation: Federation = make("testbed", chosen.table, **arguments)
        return federation


def _partition(data: DataSection, pool: DataPool) -> Partition:
    assert data.partition is not None  # a configuration without one has a test-bed
    table, target = data.partition.table, PARTITIONS[data.partition.name]
    values = {
        "clients": data.clients,
        "users": pool.users,
        "coarse": pool.coarse,
        "seed": data.seed,
    }
    accepted = _keep_accepted(target, values)
    if data.clients is not None and data.clients > len(pool.y):
        raise DataError(
            f"{data.clients} clients, but only {len(pool.y)} examples",
            "use fewer clients or more examples",
        )
    for name, what in (("users", "user ids"), ("coarse", "coarse labels")):
        if name in accepted and accepted[name] is None:
            fix = "choose another partition, or a data set that has them"
            raise DataError(
                f'"{table["name"]}" needs {what}, which the data set "{data.name}" does not have',
                fix,
            )
    if isinstance(table.get("groups"), int) and data.clients is not None:
        table["groups"] = hidden_groups(data.clients, table["groups"], data.seed).tolist()
    if "users" in accepted:
        rows_of: Partition = make("partition", table, **accepted)
    else:
        rows_of = make("partition", table, labels=pool.y, **accepted)
    if data.clients is not None and len(rows_of) != data.clients:
        raise DataError(
            f"{len(rows_of)} clients, but data.clients = {data.clients}", "leave data.clients out"
        )
    return rows_of


def _keep_accepted(target: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that a function takes."""
    return {
        name: value
        for name, value in values.items()
        if name in inspect.signature(target).parameters
    }


def _tags(
    data: DataSection, pool: DataPool, clients: int
) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    """The hidden group of every user, where the data set knows it."""
    if pool.topics is None or data.partition_name != "by_user" or len(pool.topics) != clients:
        return {}
    return {"group": np.asarray(pool.topics, dtype=np.int64)}
