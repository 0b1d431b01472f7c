"""What the server sends in a round, and what it may be answered."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedblocks.core.parts import Blocks
from fedblocks.core.server import Download, gather
from fedblocks.core.state import State, count_bytes
from fedblocks.flower.server.side import Ask, Progress, ServerSide
from fedblocks.flower.wire.admission import Expected
from fedblocks.flower.wire.downloads import read_of_one, sent_to_one, slots_of, union
from fedblocks.flower.wire.messages import (
    DownloadHeader,
    Envelope,
    Malformed,
    MoreHeader,
    RequestHeader,
    Wire,
    arrays_of,
    reply,
    wire,
)


@dataclass(frozen=True, eq=False)
class FirstDownload:
    """What a client is sent at the start of a round."""

    client: int
    message: Wire
    expected: Expected  # of its answer
    bytes_down: dict[str, int]  # by block


def first_downloads(
    side: ServerSide, progress: Progress, ask: Ask, group: str, ids: Sequence[int]
) -> Iterator[FirstDownload]:
    """Yield what each of these clients of a group is sent; a client is told once why its last
    answer was not used.
    """
    specs = side.specs[group]
    sent = gather_for(side, progress.state, group, ids)
    for member, client in enumerate(ids):
        envelope = Envelope(
            run=side.run,
            round=progress.state.round,
            client=client,
            nonce=secrets.token_hex(8),
            plan=side.plans[group],
        )
        blocks, copies = sent_to_one(specs, sent, member)
        expected = Expected(
            member=side.members[client],
            envelope=envelope,
            method=side.methods[group],
            specs=specs,
            reads={name: read_of_one(read, member) for name, read in sent.reads.items()},
            copies=copies,
            sent=blocks,
            cohort=side.cohort([client], progress.state.round),
            train=ask.train,
        )
        header = DownloadHeader(
            **reply(envelope),
            copies=copies,
            kept=progress.kept.get(client, 0),
            refused=side.refused.pop(client, ""),
            frozen=side.frozen[group],
            **vars(ask),
        )
        bytes_down = count_by_block({name: blocks.get(name, {}) for name in sent.bytes_down})
        yield FirstDownload(client, wire(header, arrays_of(blocks)), expected, bytes_down)


def gather_for(side: ServerSide, state: State, group: str, ids: Sequence[int]) -> Download:
    """Return what these clients of a group read of the server's blocks."""
    cohort = side.cohort(ids, state.round)
    return gather(side.methods[group], state, cohort, side.beginnings[group])


def second_download(
    request: RequestHeader, expected: Expected, state: State
) -> tuple[Wire, dict[str, int]]:
    """Return the slots that a client asked for, as a message, and their bytes by block."""
    slots = union(request.train, request.evaluate)
    pools = slots_of(expected.method, state)
    blocks = {
        name: {key: pools[name][key][list(chosen)] for key in expected.specs[name]}
        for name, chosen in slots.items()
    }
    header = MoreHeader(**reply(request), slots=slots)
    arrays = arrays_of({name: block for name, block in blocks.items() if slots[name]})
    return wire(header, arrays), count_by_block(blocks)


def count_by_block(blocks: Blocks) -> dict[str, int]:
    return {name: count_bytes(block) for name, block in blocks.items()}


def requested_slots(expected: Expected, request: RequestHeader | None) -> dict[str, Tensor]:
    """Return which slots of each pool a client asked for to train with: [slots], 1 where it did."""
    if request is None:
        if any(getattr(block, "on_request", False) for block in expected.federated.values()):
            raise Malformed("envelope", "it never asked for its slots")
        return {}
    sizes = {name: expected.federated[name].size for name in request.train}
    return {
        name: torch.zeros(sizes[name]).index_fill(0, torch.tensor(slots).long(), 1.0)
        for name, slots in request.train.items()
    }
