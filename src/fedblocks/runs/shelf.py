"""Data that several runs of one process share: read once, hashed once, on the device once."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedblocks.config.model import Config
from fedblocks.data import DataPool, Federation
from fedblocks.runs.federations import federation_of, pool_of

POOLS, FEDERATIONS = 2, 6  # that are kept


@dataclass(frozen=True, eq=False)
class Shelf:
    """What was read last; files that change meanwhile are not read again."""

    pools: OrderedDict[str, DataPool | Federation] = field(default_factory=OrderedDict)
    # read, placed
    federations: OrderedDict[str, tuple[Federation, Federation]] = field(
        default_factory=OrderedDict
    )

    def pool(self, config: Config) -> DataPool | Federation:
        """The data set of a configuration."""
        key = json.dumps([config.data.name, config.data.options, _task(config)], sort_keys=True)
        if key not in self.pools:
            self.pools[key] = pool_of(config)
            _keep(self.pools, POOLS)
        self.pools.move_to_end(key)
        return self.pools[key]

    def federation(self, config: Config, device: torch.device) -> tuple[Federation, Federation]:
        """The federation of a configuration as it was read, and on a device."""
        asked = [config.data.model_dump(mode="json"), _task(config), str(device)]
        key = json.dumps(asked, sort_keys=True)
        if key not in self.federations:
            fresh = federation_of(config, self.pool)
            self.federations[key] = fresh, self._place(fresh, device)
            _keep(self.federations, FEDERATIONS)
        self.federations.move_to_end(key)
        return self.federations[key]

    def _place(self, fresh: Federation, device: torch.device) -> Federation:
        """Federations over the same rows have them on the device once."""
        for read, there in self.federations.values():
            if (
                _same(read.x, fresh.x)
                and _same(read.y, fresh.y)
                and there.device.type == device.type
            ):
                return replace(fresh, x=there.x, y=there.y)
        return fresh.to(device)


_OPEN: list[Shelf] = []  # at most one
_HASHES: WeakKeyDictionary[Federation, str] = WeakKeyDictionary()


@contextmanager
def shared_data() -> Iterator[None]:
    """Inside, runs with the same data have them from each other."""
    _OPEN.append(Shelf())
    try:
        yield
    finally:
        _OPEN.pop()


def known_federation(config: Config, device: torch.device) -> tuple[Federation, Federation]:
    """The federation of a configuration as it was read, and on a device; from the shelf
    if there is one.
    """
    if _OPEN:
        return _OPEN[-1].federation(config, device)
    fresh = federation_of(config)
    return fresh, fresh.to(device)


def hash_of(data: Federation) -> str:
    """The SHA-256 of a federation, which never changes: it takes half a second for a large one."""
    if data not in _HASHES:
        _HASHES[data] = data.hash()
    return _HASHES[data]


def remember_hash(part: Federation, of: Federation) -> None:
    """A part of a federation counts as the whole, which need not be there any more."""
    _HASHES[part] = hash_of(of)


def _task(config: Config) -> Any:
    return None if config.task is None else config.task.table


def _same(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape


def _keep(shelf: OrderedDict[str, Any], most: int) -> None:
    while len(shelf) > most:
        shelf.popitem(last=False)
