"""How a checkpoint divides what clients keep into files: neighbours together, packed
once there are many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch

from fedblocks.core.private_state import (
    CLIENTS_PER_SHARD,
    MANY,
    Pack,
    Shard,
    ShardedState,
    pack_clients,
)

PACKS = "packs"  # the key of a packed shard; others have client numbers as keys
# CLIENTS_PER_SHARD is part of the format: another number is another major format.


def shards_of(clients: Mapping[int, Any]) -> dict[str, Sequence[int]]:
    """File stem -> the clients in it, ascending."""
    if isinstance(clients, ShardedState):
        return {
            stem_of(number * CLIENTS_PER_SHARD): clients.members(number)
            for number in clients.shards
        }
    return {stem: list(ids) for stem, ids in groupby(sorted(clients), stem_of)}


def stem_of(client: int) -> str:
    """The file of a client, without its suffix."""
    return f"clients/{client // CLIENTS_PER_SHARD:06d}"


def tree_of(clients: Mapping[int, Any], ids: Sequence[int]) -> dict[str, Any]:
    """What one file holds."""
    if not isinstance(clients, ShardedState):
        return {str(client): clients[client] for client in ids}
    packs = clients.shards[ids[0] // CLIENTS_PER_SHARD]
    return {
        PACKS: {
            str(n): {"ids": torch.tensor(p.ids), "blocks": p.blocks} for n, p in enumerate(packs)
        }
    }


def clients_of(
    counts: Mapping[str, int], tree: Callable[[str], dict[str, Any]]
) -> Mapping[int, dict[str, Any]]:
    """All clients by number, ascending; many are packed shard by shard, or their names
    alone would fill the memory.
    """
    trees = (tree(stem) for stem in sorted(counts, key=lambda stem: int(stem.rpartition("/")[2])))
    shards = [_shard(contents) for contents in trees] if sum(counts.values()) >= MANY else None
    if shards is not None:
        return ShardedState({shard[0].ids[0] // CLIENTS_PER_SHARD: shard for shard in shards})
    return {
        client: state
        for contents in trees
        for client, state in sorted(_by_client(contents).items())
    }


def _shard(tree: Mapping[str, Any]) -> Shard:
    if PACKS not in tree:
        return pack_clients({int(client): state for client, state in tree.items()})
    return tuple(Pack(tuple(pack["ids"].tolist()), pack["blocks"]) for pack in tree[PACKS].values())


def _by_client(tree: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    if PACKS not in tree:
        return {int(client): state for client, state in tree.items()}
    return {client: pack.row(client) for pack in _shard(tree) for client in pack.ids}
