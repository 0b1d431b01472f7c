"""Checkpoints of several ranks: the first writes and reads them, and what clients of other ranks
keep passes through it shard by shard, so that no rank ever holds more than its part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedblocks.core.parts import Blocks
from fedblocks.core.private_state import (
    CLIENTS_PER_SHARD,
    MANY,
    Shard,
    ShardedState,
    pack_clients,
)
from fedblocks.data.rows import Ints
from fedblocks.runs.ranks.ranks import Ranks
from fedblocks.runs.storage import checkpoint
from fedblocks.runs.storage.checkpoint import Loaded
from fedblocks.runs.storage.manifest import files_of, read_manifest, read_verified
from fedblocks.runs.storage.shards import clients_of
from fedblocks.runs.storage.trees import unpack

SHARD, CLIENTS, SERVER = "shard", "clients", "server"


@dataclass(frozen=True, eq=False)
class GatheredState(ShardedState):
    """What all clients keep, as the first rank sees it while a checkpoint is written: a shard of
    other ranks is fetched when it is asked for.
    """

    ids: Mapping[int, list[int]] = field(default_factory=dict)  # shard -> its clients, ascending

    def members(self, number: int) -> list[int]:
        return self.ids[number]


@dataclass(frozen=True, eq=False)
class FetchedShards(Mapping[int, Shard]):
    """Shard number -> its packs, for which the ranks that have some of it are asked."""

    ranks: Ranks
    private: Mapping[int, Blocks]  # of the clients of the first rank
    holders: Mapping[int, list[int]]  # shard -> ranks that have clients of it

    def __iter__(self) -> Iterator[int]:
        return iter(self.holders)

    def __len__(self) -> int:
        return len(self.holders)

    def __getitem__(self, number: int) -> Shard:
        members = members_of(self.private, number)
        for rank in self.holders[number]:
            if rank:
                self.ranks.tell({SHARD: number, "of": rank})
                received = self.ranks.receive(rank)
                members |= {int(client): blocks for client, blocks in received.items()}
        return pack_clients(members)


def members_of(private: Mapping[int, Blocks], number: int) -> dict[int, Blocks]:
    """What the clients of a shard keep, on the CPU."""
    numbers = range(number * CLIENTS_PER_SHARD, (number + 1) * CLIENTS_PER_SHARD)
    return {
        client: {
            name: {k: v.cpu() for k, v in block.items()} for name, block in private[client].items()
        }
        for client in numbers
        if client in private
    }


def gathered_state(ranks: Ranks, private: Mapping[int, Blocks]) -> GatheredState:
    """What all clients keep, at the first rank; the others have to `serve_shards` while it is
    read.
    """
    said = ranks.collect_tree({"ids": torch.tensor(sorted(private), dtype=torch.long)})
    ids: dict[int, list[int]] = {}
    holders: dict[int, list[int]] = {}
    for rank, own in enumerate(said):
        for client in own["ids"].tolist():
            number = client // CLIENTS_PER_SHARD
            ids.setdefault(number, []).append(client)
            if rank not in holders.setdefault(number, []):
                holders[number].append(rank)
    ordered = {number: sorted(ids[number]) for number in sorted(ids)}
    shards = FetchedShards(ranks, private, {number: holders[number] for number in ordered})
    return GatheredState(shards, ordered)


def serve_shard(ranks: Ranks, private: Mapping[int, Blocks], message: Mapping[str, Any]) -> None:
    """Send what the first rank asks for, if it asks this rank."""
    if SHARD in message and message["of"] == ranks.number:
        members = members_of(private, message[SHARD])
        ranks.send({str(client): blocks for client, blocks in members.items()}, 0)


@dataclass(frozen=True, eq=False)
class Scattering:
    """A checkpoint on its way from the first rank to all of them."""

    ranks: Ranks
    owners: Ints  # [clients]
    pieces: list[tuple[int, Any]] = field(
        default_factory=list
    )  # of this rank: clients in all, tree
    server: list[dict[str, Any]] = field(default_factory=list)

    def load(self, root: Path, recorded: int) -> Loaded:
        """The newest whole checkpoint at the first rank, with its own clients; the others are sent
        theirs.
        """
        return checkpoint.load(root, recorded, self._read)

    def serve(self, message: Mapping[str, Any]) -> None:
        """Take what the first rank sends to this one."""
        if message["to"] != self.ranks.number:
            return
        tree = self.ranks.receive(0)
        if message["what"] == SERVER:
            self.server.append(tree)
        else:
            self.pieces.append((message["clients"], tree))

    def _read(self, folder: Path) -> Loaded:
        manifest = read_manifest(folder)
        for stem in ("shared", *manifest["clients"]):  # before anything is sent
            for name in files_of(stem):
                read_verified(folder, name, manifest["files"].get(name))

        def tree(stem: str) -> dict[str, Any]:
            pair = (read_verified(folder, n, manifest["files"].get(n)) for n in files_of(stem))
            return unpack(*pair)

        shared = tree("shared")
        for rank in range(1, self.ranks.count):
            self._send(rank, SERVER, shared, 0)
        everybody = sum(manifest["clients"].values())
        for stem in sorted(manifest["clients"], key=lambda one: int(one.rpartition("/")[2])):
            self._hand_out(clients_of({stem: 1}, tree), everybody)
        return Loaded(manifest["round"], shared, self.private(), [])

    def _hand_out(self, clients: Mapping[int, Any], everybody: int) -> None:
        by_rank: dict[int, dict[str, Any]] = {}
        for client, blocks in clients.items():
            by_rank.setdefault(int(self.owners[client]), {})[str(client)] = blocks
        for rank, own in by_rank.items():
            if rank == self.ranks.number:
                self.pieces.append((everybody, own))
            else:
                self._send(rank, CLIENTS, own, everybody)

    def _send(self, rank: int, what: str, tree: Mapping[str, Any], everybody: int) -> None:
        self.ranks.tell({"to": rank, "what": what, "clients": everybody})
        self.ranks.send(tree, rank)

    def private(self) -> Mapping[int, Blocks]:
        """What the clients of this rank keep; packed if they are many."""
        known: dict[int, Blocks] = {}
        shards: dict[int, Shard] = {}
        for everybody, tree in self.pieces:
            clients = {int(client): blocks for client, blocks in tree.items()}
            if everybody < MANY:
                known |= clients
            else:
                shards[min(clients) // CLIENTS_PER_SHARD] = pack_clients(clients)
        return ShardedState(shards) if shards else dict(sorted(known.items()))


def scattered_state(
    ranks: Ranks, owners: Ints, folder: tuple[Path, int] | None
) -> tuple[Loaded, Sequence[str]]:
    """The last checkpoint of a run, as each rank needs it: the server's part, and what its own
    clients keep. `folder`, of checkpoints, and the last round on record are known to the first.
    """
    scattering = Scattering(ranks, owners)
    ends: list[Loaded] = []

    def at_first() -> Any:
        assert folder is not None
        ends.append(scattering.load(*folder))
        return {"round": ends[0].round, "skipped": ends[0].skipped}

    said = ranks.lead(at_first, scattering.serve)
    if ends:
        return ends[0], said["skipped"]
    server, private = scattering.server[-1], scattering.private()
    return Loaded(said["round"], server, private, []), said["skipped"]
