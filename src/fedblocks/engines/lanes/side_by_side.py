"""The end of a round for several lanes at once: their slots side by side, as if they were those of one server.

A server's share of a round is a hundred small operations, which a device waits for; lanes have it once, not each.
No sum runs over two lanes, so that a NaN of one is none of the others': zero times NaN is not zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedblocks.core.admission import Examination, examined, fitting, sound
from fedblocks.core.aggregate import Upload, Uploads, reduced
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks
from fedblocks.core.state import State
from fedblocks.engines.close_round import ClientResults, Speculation, speculate, speculation_of

Offers = Mapping[str, ClientResults]  # of one lane, by group
Methods = Mapping[str, Method]


def speculate_lanes(
    methods: Sequence[Methods], states: Sequence[State], offers: Sequence[Offers]
) -> list[Speculation | None]:
    """What `hopeful` says of every lane."""
    if not _alike(states, offers):
        return [speculate(*given) for given in zip(methods, states, offers, strict=True)]
    names = {upload.name for offer in offers[0].values() for upload in offer.uploads.values()}
    servers = [{name: state.server[name] for name in names} for state in states]
    whole = replace(
        states[0],
        server=_joined(servers),
        memory={name: _joined([state.memory[name] for state in states]) for name in names},
    )
    groups = {group: _uploads([own[group] for own in offers]) for group in offers[0]}
    after = reduced(whole, groups)
    ends = _apart(after, states, servers)
    found = [_examined([own[group] for own in offers], groups[group], ends) for group in groups]
    examinations = [dict(zip(groups, own, strict=True)) for own in zip(*found, strict=True)]
    return [speculation_of(*given) for given in zip(methods, states, offers, ends, examinations, strict=True)]


def _alike(states: Sequence[State], offers: Sequence[Offers]) -> bool:
    """Whether lanes can be taken together: the same groups in all, copies of the right shape."""
    right = all(fitting(o.uploads, s.server) for own, s in zip(offers, states, strict=True) for o in own.values())
    return len(offers) > 1 and right and bool(offers[0]) and all(own.keys() == offers[0].keys() for own in offers)


def _uploads(offers: Sequence[ClientResults]) -> Uploads:
    populations = [offer.job.cohort.population for offer in offers]
    starts = [sum(populations[:lane]) for lane in range(len(offers))]
    return {name: _upload([offer.uploads[name] for offer in offers], starts) for name in offers[0].uploads}


def _upload(found: Sequence[Upload], starts: Sequence[int]) -> Upload:
    """The uploads of all lanes as one: each lane has clients of its own, and writes slots of its own."""
    ids = [upload.ids + start for upload, start in zip(found, starts, strict=True)]
    copies = {k: torch.cat([upload.copies[k] for upload in found]) for k in found[0].copies}
    weights, lanes = torch.cat([upload.weights for upload in found]), tuple(len(upload.ids) for upload in found)
    return replace(found[0], ids=torch.cat(ids), copies=copies, weights=weights, lanes=lanes)


def _examined(offers: Sequence[ClientResults], uploads: Uploads, ends: Sequence[State]) -> list[Examination]:
    """What is to be looked at in a group of clients, for each lane; that shapes are right is known."""
    ids = torch.cat([offer.job.cohort.ids for offer in offers])
    limits = torch.cat([offer.limits for offer in offers])
    private = _joined([offer.private for offer in offers])
    sizes = [len(offer.job.ids) for offer in offers]
    written = [upload.name for upload in uploads.values() if upload.copies and not upload.own]
    sums = {name: sound([end.server[name] for end in ends], sizes) for name in written}
    whole = examined(uploads, private, ids, limits, sums=sums)
    parts = zip(torch.split(whole.ids, sizes), torch.split(whole.passed, sizes, 1), strict=True)
    return [Examination(whole.checks, own, passed) for own, passed in parts]


def _apart(after: State, states: Sequence[State], servers: Sequence[Blocks]) -> list[State]:
    """The next state of every lane, before methods conclude."""
    ends = [replace(state, round=after.round, server=dict(state.server), memory=dict(state.memory)) for state in states]
    for name, block in after.server.items():
        counts = [_slots(server, name) for server in servers]
        slots = _cut(block, counts)
        memories = {moment: _cut(values, counts) for moment, values in after.memory[name].items()}
        for lane, end in enumerate(ends):
            end.server[name] = slots[lane]
            end.memory[name] = {moment: values[lane] for moment, values in memories.items()}
    return ends


def _slots(server: Blocks, name: str) -> int:
    return len(next(iter(server[name].values())))


def _cut(block: Mapping[str, Tensor], counts: list[int]) -> list[dict[str, Tensor]]:
    """[slots of all lanes, ...] -> those of each."""
    pieces = {k: torch.split(v, counts) for k, v in block.items()}
    return [{k: v[lane] for k, v in pieces.items()} for lane in range(len(counts))]


def _joined(trees: Sequence[Blocks]) -> Blocks:
    return {name: {k: torch.cat([tree[name][k] for tree in trees]) for k in block} for name, block in trees[0].items()}
