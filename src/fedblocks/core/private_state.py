"""What many clients keep, packed: a million clients cost their numbers, and a round the
shards that it touches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from fedblocks.core.parts import Blocks, Params
from fedblocks.core.trees import map_leaves, stack, take

CLIENTS_PER_SHARD = 64  # neighbours by number; checkpoints store them as one file, too
MANY = 4096  # clients that are packed; fewer stay as they are


@dataclass(frozen=True, eq=False)
class Pack:
    """Some clients of one shard whose blocks have the same names and shapes."""

    ids: tuple[int, ...]  # ascending
    blocks: Blocks  # [clients, ...]

    def __contains__(self, client: int) -> bool:
        place = bisect_left(self.ids, client)
        return place < len(self.ids) and self.ids[place] == client

    def row(self, client: int) -> Blocks:
        """What one client keeps, as views."""
        place = bisect_left(self.ids, client)
        row: Blocks = take(self.blocks, place)
        return row

    def on(self, device: torch.device | str) -> Pack:
        """The same on a device."""
        return Pack(self.ids, map_leaves(lambda value: value.to(device), self.blocks))


@dataclass(frozen=True, eq=False)
class StackedState(Mapping[int, Blocks]):
    """What all clients of a small federation keep, as the one stack that a round left;
    rows are made when asked for.
    """

    pack: Pack

    def __contains__(self, client: object) -> bool:
        return isinstance(client, int) and client in self.pack

    def __getitem__(self, client: int) -> Blocks:
        if client not in self.pack:
            raise KeyError(client)
        return self.pack.row(client)

    def __iter__(self) -> Iterator[int]:
        return iter(self.pack.ids)

    def __len__(self) -> int:
        return len(self.pack.ids)


Shard = tuple[Pack, ...]  # one pack, or several where groups of clients differ


@dataclass(frozen=True, eq=False)
class ShardedState(Mapping[int, Blocks]):
    """Client -> its private blocks. A change makes another population, which shares the
    shards that stay the same.
    """

    shards: Mapping[int, Shard] = field(default_factory=dict)  # ascending

    def __getitem__(self, client: int) -> Blocks:
        for pack in self.shards.get(client // CLIENTS_PER_SHARD, ()):
            if client in pack:
                return pack.row(client)
        raise KeyError(client)

    def __iter__(self) -> Iterator[int]:
        return (client for number in self.shards for client in self.members(number))

    def __len__(self) -> int:
        return sum(len(pack.ids) for shard in self.shards.values() for pack in shard)

    def __bool__(self) -> bool:
        """Whether anybody kept anything, without counting them all."""
        return bool(self.shards)

    def members(self, number: int) -> list[int]:
        """The clients of a shard, ascending."""
        return sorted(client for pack in self.shards[number] for client in pack.ids)

    def merge(self, changes: Mapping[int, Blocks]) -> ShardedState:
        """The same with other blocks for some clients."""
        by_shard = groupby(sorted(changes), lambda client: client // CLIENTS_PER_SHARD)
        touched = {
            number: self._repack(number, {client: changes[client] for client in clients})
            for number, clients in by_shard
        }
        shards = {**self.shards, **touched}
        if touched.keys() <= self.shards.keys():
            return ShardedState(shards)
        return ShardedState(dict(sorted(shards.items())))

    def on(self, device: torch.device | str) -> ShardedState:
        """The same on a device."""
        shards = self.shards.items()
        moved = {number: tuple(pack.on(device) for pack in shard) for number, shard in shards}
        return ShardedState(moved)

    def _repack(self, number: int, changes: Mapping[int, Blocks]) -> Shard:
        packs = self.shards.get(number, ())
        if len(packs) == 1 and _fit_all(packs[0], changes):
            return (_replace_rows(packs[0], changes),)
        known = {client: pack.row(client) for pack in packs for client in pack.ids}
        return pack_clients({**known, **changes})


def pack_clients(private: Mapping[int, Blocks]) -> Shard:
    """Clients as packs, one for each set of names and shapes."""
    alike: dict[Any, list[int]] = {}
    for client in sorted(private):
        alike.setdefault(_form(private[client]), []).append(client)
    return tuple(
        Pack(tuple(ids), stack([private[client] for client in ids])) for ids in alike.values()
    )


def merge_private(
    private: Mapping[int, Blocks], changes: Mapping[int, Blocks]
) -> Mapping[int, Blocks]:
    """What clients keep after a round; packed once they are many."""
    if isinstance(private, ShardedState):
        return private.merge(changes)
    of_all = all(client in changes for client in private)
    if of_all and isinstance(changes, StackedState) and len(changes) < MANY:
        return changes
    together = {**private, **changes}
    return together if len(together) < MANY else ShardedState().merge(together)


def _replace_rows(pack: Pack, changes: Mapping[int, Blocks]) -> Pack:
    """A copy of a pack with some rows written anew."""
    blocks: Blocks = map_leaves(torch.clone, pack.blocks)
    for client, new in changes.items():
        place = bisect_left(pack.ids, client)
        for name, block in new.items():
            for key, value in block.items():
                blocks[name][key][place] = value
    return Pack(pack.ids, blocks)


def _fit_all(pack: Pack, changes: Mapping[int, Blocks]) -> bool:
    return all(client in pack and _fits(pack, new) for client, new in changes.items())


def _fits(pack: Pack, blocks: Blocks) -> bool:
    """Whether these could be one more row."""
    return pack.blocks.keys() == blocks.keys() and all(
        _alike(pack.blocks[name], own) for name, own in blocks.items()
    )


def _alike(rows: Params, one: Params) -> bool:
    return rows.keys() == one.keys() and all(
        value.shape == rows[k].shape[1:]
        and (value.dtype, value.device) == (rows[k].dtype, rows[k].device)
        for k, value in one.items()
    )


def _form(blocks: Blocks) -> Any:
    """Names, shapes and kinds of numbers."""
    return tuple(
        (n, tuple((k, v.shape, v.dtype, v.device) for k, v in b.items())) for n, b in blocks.items()
    )
